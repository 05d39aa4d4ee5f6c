"""What code finds without importing it, and what it can import."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

GLOBALS = """
    context tools async_tools ces_requests requests get_variable set_variable remove_variable logger
    AsyncTools Blob CallbackContext Content Event EventActions ExternalResponse FunctionCall FunctionDeclaration
    FunctionResponse GenerateContentConfig HttpMethod LlmRequest LlmResponse Part Requests StatusError Tool ToolContext
    ToolDeclaration Tools GuardrailResult create_guardrail_result
""".split()
TYPING = "Any Optional Dict List Union Iterator Callable Tuple Literal".split()


@pytest.mark.parametrize("name", GLOBALS)
def test_a_promised_name_is_there(bench, name):
    for fidelity in ("documented", "live"):
        reply = bench.run("before_agent_callback", f"{name}\ndef before_agent_callback(c): {name}", fidelity=fidelity)
        assert (reply.error, reply.warnings) == (None, ())


@pytest.mark.parametrize("name", TYPING)
def test_a_typing_name_is_there_with_a_warning(bench, name):
    code = f"def before_agent_callback(c) -> {name}: pass"
    reply = bench.run("before_agent_callback", code)
    assert reply.error is None
    assert reply.warnings == (f"first.py: the live service rejects these names without `from typing import {name}`",)
    assert bench.run("before_agent_callback", code, fidelity="live").error.type == "NameError"


@pytest.mark.parametrize(
    "code",
    [
        "from typing import Optional\ndef before_agent_callback(c) -> Optional[int]: pass",
        "import typing\ndef before_agent_callback(c) -> typing.Optional[int]: pass",
        "from typing import *\nfrom typing import Optional\ndef before_agent_callback(c) -> Optional[int]: pass",
        "class Optional: pass\ndef before_agent_callback(c) -> Optional: pass",
        "from __future__ import annotations\ndef before_agent_callback(c) -> Optional[int]: pass",
        "def before_agent_callback(c): 'Optional'",
        "def before_agent_callback(c):\n    List = 1\n    return None if List else 2",
    ],
)
def test_an_imported_or_unused_typing_name_is_not_warned_about(bench, code):
    assert bench.run("before_agent_callback", code).warnings == ()


def test_a_typing_name_deep_in_a_large_file_is_found(bench):
    filler = "\n".join(f"name_{i} = {i}" for i in range(400))
    code = f"{filler}\ndef before_agent_callback(c):\n    def inner():\n        x: List[int] = Dict\n    inner()\n"
    assert bench.run("before_agent_callback", code).warnings[0].endswith("`from typing import Dict`")


def test_the_file_has_a_name_and_a_module(bench):
    code = """
        from __future__ import annotations
        import dataclasses, inspect, pickle, pydantic

        class Choice(pydantic.BaseModel):
            one: Other | None = None

        class Other(pydantic.BaseModel):
            number: int = 1

        @dataclasses.dataclass
        class Point:
            x: int = 1

        def before_agent_callback(c):
            c.state["file"] = __file__
            c.state["main"] = __name__ == "__main__"
            c.state["one"] = Choice(one={"number": "2"}).one.number
            c.state["point"] = pickle.loads(pickle.dumps(Point(3))).x
            c.state["line"] = inspect.getsource(Point).splitlines()[-1].strip()
    """
    reply = bench.run("before_agent_callback", code)
    assert reply.set == {"file": "first.py", "main": False, "one": 2, "point": 3, "line": "x: int = 1"}


@pytest.mark.parametrize("module", ["ces_public", "ces_internal"])
def test_the_runtimes_modules_have_all_its_names(bench, module):
    code = f"import {module}\nfrom {module} import Part as P, tools as t\n"
    code += f"def before_agent_callback(c):\n    assert P is Part is {module}.Part and t is tools\n"
    for fidelity in ("documented", "live"):
        assert bench.run("before_agent_callback", code, fidelity=fidelity).error is None
    assert module not in sys.modules


def test_the_http_names_are_modules_where_the_documents_are_followed(bench):
    code = "import requests as r, ces_requests as q\ndef before_agent_callback(c): assert r is q is requests\n"
    assert bench.run("before_agent_callback", code).error is None
    code = "import ces_requests as q\ndef before_agent_callback(c): pass\n"  # a `requests` may be installed here
    error = bench.run("before_agent_callback", code, fidelity="live").error
    assert (error.type, error.message) == ("ModuleNotFoundError", "No module named 'ces_requests'")


def event(author, *texts):
    return {"author": author, "content": {"parts": [{"text": text} for text in texts]}}


EVENTS = [
    event("user", "old"),
    event("bot", "a"),
    event("user", "b"),
    event("user", "c", "d"),
    event("bot", "e", "f"),
    event("user"),
]


@pytest.mark.parametrize(
    ("fidelity", "user", "agent"),
    [("documented", ["b", "c", "d"], ["e", "f"]), ("live", ["b", "d", "c", "f", "e"], ["f", "e"])],
)
def test_the_last_chunk_is_in_conversation_order_but_for_the_librarys_quirks(bench, fidelity, user, agent):
    code = "v['user'] = [p.text for p in c.get_last_user_input()]\nv['agent'] = [p.text for p in c.get_last_agent_output()]"
    reply = bench.before_agent(code, context={"events": EVENTS}, fidelity=fidelity)
    assert reply.set == {"user": user, "agent": agent}


DOORS = """
    import json, sys
    from sandbox.guest import chain, imports
    from sandbox.invocation import Code, Invocation, Reply, Source

    imports.close_doors()

    def run(code):
        sources = Code(sources=(Source(name="f.py", text=code),)).encode()
        body = Invocation(hook="before_agent_callback").encode()
        return Reply.decode(chain.run_chain(sources, body, None))

    for code in json.load(sys.stdin):
        reply = run(code + "\\ndef before_agent_callback(c): c.state['ok'] = True")
        print(reply.error.message if reply.error else reply.set["ok"])
"""

IMPORTS = {  # code -> True, or the ordinary text
    "import celery": "No module named 'celery'",
    "import sandbox": "No module named 'sandbox'",
    "import sandbox.ces": "No module named 'sandbox'",
    "from sandbox.guest import chain": "No module named 'sandbox'",
    "import msgpack": "No module named 'msgpack'",
    "import worker": "No module named 'worker'",
    "import pytest": "No module named 'pytest'",
    "import google.cloud.storage": "No module named 'google",
    "import importlib.util; assert importlib.util.find_spec('celery') is None": True,
    "import __main__; assert not hasattr(__main__, 'run')": True,
    "import socket, ssl, urllib.request, subprocess, ctypes, multiprocessing, threading, sqlite3": True,
    "import pydantic, pydantic_core, annotated_types, typing_extensions": True,
    "import ces_public, requests": True,
    "class Mine(Part): note: str = 'x'\nassert Mine(text='a').note == 'x'": True,
    "class Mine(CallbackContext): pass\nMine(variables={})": True,
    "import pydantic\nclass M(pydantic.BaseModel):\n    part: Part | None = None\nM.model_json_schema(); M(part={'text': 'x'})": True,
    "Part(text='x').model_copy(deep=True); Content.model_validate_json('{}'); Part.model_json_schema()": True,
    "import copy, pickle\nassert copy.deepcopy(Part(text='x')) == Part(text='x')": True,
}


def test_behind_closed_doors_only_what_was_promised_can_be_imported():
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(DOORS)],
        input=json.dumps(list(IMPORTS)),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = done.stdout.splitlines()
    for (code, expected), line in zip(IMPORTS.items(), seen, strict=True):
        assert line.startswith(str(expected)), (code, line)
