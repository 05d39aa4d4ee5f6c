"""Case files: everything that is wrong with one is said before anything runs, with file and line."""

from pathlib import Path

import pytest

from dispatcher import cases
from sandbox.contract import Call
from sandbox.errors import InputError

HOOK = "def before_agent_callback(callback_context):\n    return None\n"
TOOL = "def add(a: int, b: int) -> int:\n    return a + b\n"


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """An app with one agent of two callbacks, and one Python tool."""
    for name, text in {
        "app.json": '{"variableDeclarations": [{"name": "count", "schema": {"default": 3}}]}',
        "agents/Desk/before_agent_callbacks/one/python_code.py": HOOK,
        "agents/Desk/before_agent_callbacks/two/python_code.py": HOOK,
        "tools/add/python_function/python_code.py": TOOL,
        "loose.py": HOOK,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def load(app: Path, text: str, name: str = "cases/a.yaml") -> tuple[cases.Case, ...]:
    path = app / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return cases.load(app).cases


def test_a_case_is_bound_to_the_agents_callbacks_in_order_and_the_apps_variables(app: Path) -> None:
    text = "- name: a\n  hook: before_agent_callback\n  context: {sessionId: s1, variables: {mine: 1}}\n  expect: {returned: null}\n"
    (case,) = load(app, text)
    assert [Path(source.name).parent.name for source in case.sources] == ["one", "two"]
    assert (case.agent, case.session.session_id, case.session.agent_name) == ("Desk", "s1", "Desk")
    assert case.session.variables == {"count": 3, "mine": 1}
    assert case.expect == {"status": "ok", "returned": None}
    assert case.where == f"{app}/cases/a.yaml:1"


def test_callbacks_are_named_by_their_folder_or_by_any_file_of_the_app(app: Path) -> None:
    text = "- {name: a, hook: before_agent_callback, callbacks: [two, loose.py], expect: {}}"
    (case,) = load(app, text)
    assert [source.name for source in case.sources] == [
        "agents/Desk/before_agent_callbacks/two/python_code.py",
        "loose.py",
    ]


def test_a_tool_case_has_the_tools_own_arguments(app: Path) -> None:
    (case,) = load(app, "- {name: a, tool: add, arguments: {a: 1, b: 2}, expect: {returned: {result: 3}}}")
    assert (case.hook, case.arguments) == ("python_tool", {"input": {"a": 1, "b": 2}})


def test_an_expected_error_implies_its_status(app: Path) -> None:
    (case,) = load(app, "- {name: a, hook: before_agent_callback, expect: {error: {type: KeyError}}}")
    assert case.expect["status"] == "callback_error"


@pytest.mark.parametrize(
    "name", ["cases/a.yaml", "cases/a.json", "evaluations/a.yml", "cases.yaml", "smoke.cases.json"]
)
def test_case_files_are_found_where_people_put_them(app: Path, name: str) -> None:
    text = '[{"name": "a", "hook": "before_agent_callback", "expect": {}}]'
    assert len(load(app, text, name)) == 1


def test_one_case_file_can_be_given_and_finds_its_app(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(app, "- {name: a, hook: before_agent_callback, expect: {}}")
    load(app, "- {name: b, hook: before_agent_callback, expect: {}}", "cases/b.yaml")
    assert [case.name for case in cases.load(app / "cases" / "b.yaml").cases] == ["b"]
    monkeypatch.chdir(app)
    (case,) = cases.load(Path("cases/b.yaml")).cases
    assert case.where.endswith("cases/b.yaml:1")


def test_a_bare_folder_of_callbacks_needs_no_agents(tmp_path: Path) -> None:
    (tmp_path / "greet.py").write_text(HOOK)
    text = "- {name: a, hook: before_agent_callback, callbacks: [greet.py], expect: {}}"
    (case,) = load(tmp_path, text, "cases.yaml")
    assert [source.name for source in case.sources] == ["greet.py"]


GOOD = "- name: a\n  hook: before_agent_callback\n"


@pytest.mark.parametrize(
    ("text", "line", "why"),
    [
        (GOOD + "  expct: {}\n", 3, "unknown key 'expct' in case; there are: name, description"),
        (GOOD, 1, "case needs 'expect'"),
        (
            GOOD + "  expect:\n    retuned: 1\n",
            4,
            "unknown key 'retuned' in expect; there are: invocation_id, hook, status",
        ),
        (GOOD + "  expect:\n    status: fine\n", 4, "status 'fine' is none of ok, callback_error"),
        (GOOD + "  expect:\n    stdout:\n      matches: '['\n", 4, "matches: '[' is no regular expression"),
        (GOOD + "  expect:\n    stdout: {matches: one, two}\n", 4, "matches: quote the text, it has a comma"),
        (
            GOOD + "  context:\n    varables: {}\n  expect: {}\n",
            4,
            "unknown key 'varables' in context; there are: session_id",
        ),
        (GOOD + "  context:\n    variables: 5\n  expect: {}\n", 4, "context: variables: "),
        (GOOD + "  arguments:\n    llm_request: {}\n  expect: {}\n", 4, "before_agent_callback takes no arguments"),
        (
            GOOD + "  context:\n    events:\n    - content:\n        prts: []\n  expect: {}\n",
            6,
            "unknown key context.events[0].content.prts",
        ),
        (
            "- name: a\n  hook: before_model_callback\n  callbacks: [loose.py]\n  arguments:\n    llmRequest:\n      conents: []\n  expect: {}\n",
            6,
            "unknown key arguments.llmRequest.conents",
        ),
        (GOOD + "  limits:\n    wall: 3\n  expect: {}\n", 3, "limit wall: no such limit; there are wall_s"),
        (GOOD + "  dialect: adk3\n  expect: {}\n", 3, "case: dialect: Input should be 'ces', 'adk' or 'veadk'"),
        (GOOD + "  agent: Nobody\n  expect: {}\n", 3, "agent 'Nobody': no such agent; there are: Desk"),
        (GOOD + "  callbacks: []\n  expect: {}\n", 3, "case 'a' names no callback"),
        (GOOD + "  code: 3\n  expect: {}\n", 3, "case: code: Input should be a valid string"),
        (GOOD + "  tools:\n    x: 1\n  expect: {}\n", 4, "case: tools.x: Input should be a valid dictionary"),
        (GOOD + "  tools:\n    x: {retuns: 1}\n  expect: {}\n", 4, "unknown key 'retuns' in case tools.x"),
        (
            "- name: a\n  hook: python_test\n  arguments: {input: 3}\n  expect: {}\n",
            1,
            "a case of python_test says which: arguments {input: {test: NAME}}",
        ),
        (
            GOOD + "  callbacks: [three]\n  expect: {}\n",
            3,
            "callback 'three': no such file in the app; the agent has: one, two",
        ),
        (GOOD + "  tools: {t: {returns: 1, error: x}}\n  expect: {}\n", 3, "an answer has either `returns` or `error`"),
        ("- name: a\n  hook: after_agent\n  expect: {}\n", 2, "hook 'after_agent' is none of before_agent_callback"),
        (
            "- name: a\n  hook: after_agent_callback\n  expect: {}\n",
            2,
            "agent 'Desk' has no enabled after_agent_callback",
        ),
        ("- name: a\n  tool: sub\n  expect: {}\n", 2, "tool 'sub': no such tool; there are: add"),
        ("- name: a\n  expect: {}\n", 1, "case 'a' needs one of: hook, tool"),
        (GOOD + "  expect: {}\n" + GOOD + "  expect: {}\n", 4, "case 'a' is there already, in line 1"),
        ("name: a\n", 1, "a list of cases is needed"),
        ("- just text\n", 1, "case: an object is needed"),
        ("[]\n", None, "no cases: neither evaluations/*"),
    ],
)
def test_a_mistake_in_a_case_names_the_file_and_the_line(app: Path, text: str, line: int | None, why: str) -> None:
    with pytest.raises(InputError) as caught:
        load(app, text)
    where = f"{app}/cases/a.yaml:{line}: " if line else f"{app}: "
    assert str(caught.value).startswith(where)
    assert why in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_argument_is_said_before_anything_runs(app: Path) -> None:
    text = "- {name: a, hook: before_tool_callback, callbacks: [loose.py], arguments: {tool: {name: t}}, expect: {}}"
    with pytest.raises(InputError, match=r"arguments\.input: missing; before_tool_callback takes tool, input"):
        load(app, text)


def test_canned_tools_answer_call_by_call_and_then_stay(app: Path) -> None:
    text = "- {name: a, tool: add, tools: {t: [{error: busy}, {returns: 5}]}, expect: {}}"
    (case,) = load(app, text)
    host = case.host()
    answers = [host.call(Call(n, "tool", "t", b"")) for n in range(3)]
    assert [(answer.ok, answer.text, answer.reason) for answer in answers] == [
        (False, '{"error": "busy"}', "busy"),
        (True, '{"result": 5}', ""),
        (True, '{"result": 5}', ""),
    ]
    assert not host.call(Call(4, "tool", "other", b"")).ok
    assert not host.call(Call(5, "http", "GET", b"")).ok
    assert case.host().call(Call(1, "tool", "t", b"")).reason == "busy", "each run starts afresh"


CODE_HERE = """
- name: a
  hook: before_agent_callback
  code: ["def before_agent_callback(c): pass", "def before_agent_callback(c): return 1"]
  expect: {}
- {name: b, hook: python_tool, code: "def t(): pass", entry: t, arguments: {input: {}}, expect: {}}
"""


def test_a_case_may_bring_its_code_along_and_needs_no_app(tmp_path: Path) -> None:
    (tmp_path / "cases.yaml").write_text(CODE_HERE)
    chain, tool = cases.load(tmp_path).cases
    assert [source.name for source in chain.sources] == ["code.py", "code_2.py"]
    assert chain.sources[1].text == "def before_agent_callback(c): return 1"
    assert (tool.hook, tool.entry, tool.session.agent_name) == ("python_tool", "t", "")


@pytest.mark.parametrize(
    ("case", "why"),
    [
        ("{name: a, hook: before_agent_callback, code: x, callbacks: [y], expect: {}}", "both `code` and `callbacks`"),
        ("{name: a, hook: before_agent_callback, code: x, entry: f, expect: {}}", "`entry` names the function"),
        ("{name: a, hook: python_tool, entry: f, expect: {}}", "`entry` names the function"),
        ("{name: a, hook: before_agent_callback, callbacks: [y.py], expect: {}}", "no such file in the app"),
    ],
)
def test_code_in_a_case_is_all_the_code_it_has(tmp_path: Path, case: str, why: str) -> None:
    (tmp_path / "cases.yaml").write_text(f"- {case}")
    with pytest.raises(InputError, match=why):
        cases.load(tmp_path)
