"""Python tools: which function, which arguments, what the model is told."""

from __future__ import annotations

import pytest


def call(bench, code, given, **more):
    return bench.run("python_tool", code, arguments={"input": given}, **more)


@pytest.mark.parametrize(
    ("entry", "expected"), [("", {"result": "first"}), ("second", {"result": "second"})], ids=["first", "named"]
)
def test_the_entry_is_the_one_named_else_the_first_defined(bench, entry, expected):
    code = "from json import dumps\ndef first(): return 'first'\ndef second(): return 'second'\n"
    assert call(bench, code, {}, entry=entry).returned == expected


def test_an_entry_that_is_not_there_names_what_is(bench):
    error = call(bench, "def look_up(): pass", {}, entry="lookup").error
    assert error.type == "HookNotFound"
    assert "look_up must be spelt lookup" in error.message


RESULTS = {
    "None": None,
    "7": 7,
    "'text'": "text",
    "{'a': (1, 2)}": {"a": [1, 2]},
    "{'result': 1}": {"result": 1},
    "{'decision': 'OK'}": {"decision": "OK"},
    "Part(text='x')": {"text": "x"},
}


@pytest.mark.parametrize("expression", RESULTS)
def test_any_json_value_is_the_result_and_is_wrapped(bench, expression):
    reply = call(bench, f"def tool(): return {expression}", {})
    assert (reply.answered_by, reply.returned) == ("first.py", {"result": RESULTS[expression]})


def test_live_whole_numbers_become_floats(bench):
    returned = call(bench, "def tool(n: int): return {'n': n, 'ok': True}", {"n": 3}, fidelity="live").returned
    assert returned == {"result": {"n": 3.0, "ok": True}}
    assert type(returned["result"]["n"]) is float
    assert returned["result"]["ok"] is True


COERCED = {  # signature -> given, what the function gets
    "x: int": ({"x": 3.0}, 3),
    "x: 'int'": ({"x": "3"}, 3),
    "x: float": ({"x": 3}, 3.0),
    "x: str": ({"x": 5}, "5"),
    "x: bool": ({"x": "true"}, True),
    "x: list[int]": ({"x": ["1", 2.0]}, [1, 2]),
    "x: Optional[int] = None": ({"x": None}, None),
    "x: Optional[int] = 4": ({}, 4),
    "x: dict[str, int]": ({"x": {"a": "1"}}, {"a": 1}),
    "x: Literal['a', 'b']": ({"x": "b"}, "b"),
    "x: 'Undefined'": ({"x": "as it is"}, "as it is"),
    "x": ({"x": [1]}, [1]),
    "*, x": ({"x": 1}, 1),
    "**x": ({"y": 1}, {"y": 1}),
}


@pytest.mark.parametrize("signature", COERCED)
def test_arguments_are_made_into_what_the_annotation_asks_for(bench, signature):
    given, expected = COERCED[signature]
    returned = call(bench, f"def tool({signature}): return [x, type(x).__name__]", given).returned
    assert returned == {"result": [expected, type(expected).__name__]}


def test_a_model_may_be_asked_for(bench):
    code = "import pydantic\nclass Order(pydantic.BaseModel):\n    id: int\ndef tool(o: Order): return o.id\n"
    assert call(bench, code, {"o": {"id": "9"}}).returned is not None
    assert call(bench, code, {"o": {"id": "9"}}, entry="tool").returned == {"result": 9}


def test_an_argument_nobody_asked_for_is_left_out_and_said(bench):
    reply = call(bench, "def tool(a): return a", {"a": 1, "b": 2})
    assert reply.returned == {"result": 1}
    assert reply.warnings == ("first.py: argument 'b' is not a parameter of the tool; it was left out",)


FAILURES = {  # code -> type, what the model is told
    "def tool(a, b): pass": ("MissingParameter", "Missing parameter 'b'"),
    "def tool(a): raise ValueError('bad id')": (
        "ValueError",
        "Python function execution failed: ValueError: bad id",
    ),
    "def tool(a): raise KeyError": ("KeyError", "Python function execution failed: KeyError"),
    "def tool(a: list): pass": (
        "TypeError",
        "Python function execution failed: TypeError: parameter 'a': Input should be a valid list",
    ),
}


@pytest.mark.parametrize("code", FAILURES)
def test_a_failure_is_told_in_the_platforms_words_and_writes_nothing(bench, code):
    reply = call(bench, code.replace(": ", ": set_variable('x', 1); ", 1) if "raise" in code else code, {"a": 1})
    kind, text = FAILURES[code]
    assert (reply.error.type, reply.set) == (kind, {})
    assert reply.returned == {"status": "error", "error": text}


def test_the_context_is_a_global_with_the_calls_id_and_the_state(bench):
    code = "def tool():\n    context.state['n'] += 1\n    return [context.function_call_id, isinstance(context, ToolContext)]"
    reply = call(bench, code, {}, variables={"n": 1}, context={"function_call_id": "c1"})
    assert (reply.returned, reply.set) == ({"result": ["c1", True]}, {"n": 2})


def test_an_async_tool_is_awaited(bench):
    assert call(bench, "async def tool(a): return a", {"a": 1}).returned == {"result": 1}
