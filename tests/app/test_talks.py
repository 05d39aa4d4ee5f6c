"""Conversation cases: read strictly, run turn by turn, and reported like any other case."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
import yaml
from command import AIRLINE, inside

from dispatcher import Embedded, InProcess, batch, cases
from sandbox.errors import InputError
from sandbox.settings import Settings

COUNT = "def before_agent_callback(c):\n    c.variables['n'] = c.variables.get('n', 0) + 1\n"


@pytest.fixture
def app(tmp_path: Path) -> Path:
    folder = tmp_path / "agents" / "Desk" / "before_agent_callbacks"
    folder.mkdir(parents=True)
    (folder / "count.py").write_text(COUNT)
    return tmp_path


def load(app: Path, text: str, name: str = "cases.yaml") -> list[cases.Case]:
    (app / name).write_text(text)
    return list(cases.find(app))


def run(app: Path, text: str, transport: InProcess, name: str = "cases.yaml") -> list[batch.Checked]:
    results = list(batch.evaluate(load(app, text, name), transport))
    return sorted(results, key=lambda result: result.case.name)


MISTAKES = {
    "- name: a\n  turns: []\n": (1, "a conversation needs at least one turn"),
    "- name: a\n  turns:\n    - {usr: hi}\n": (3, "unknown key 'usr' in turn; there are: user, event, content, variables, model, expect"),
    "- name: a\n  turns:\n    - user: hi\n      event: x\n": (3, "a turn needs one of: user, event, content"),
    "- name: a\n  turns:\n    - user: hi\n      expect:\n        txt: x\n": (5, "unknown key 'txt' in expect; there are: status, text, payload"),
    "- name: a\n  turns:\n    - user: hi\n      expect: {status: fine}\n": (4, "status 'fine' is none of ok, fallback, error"),
    "- name: a\n  turns:\n    - user: hi\n      expect: {text: {matches: '('}}\n": (4, "no regular expression"),
    "- name: a\n  turns:\n    - user: hi\n      model:\n        - {txt: x}\n": (5, "unknown key 'txt' in turn"),
    "- name: a\n  turns:\n    - user: hi\n      model:\n        - {text: a, error: b}\n": (5, "a model's response is one of: text and calls, parts, error"),
    "- name: a\n  turns:\n    - user: hi\n      model:\n        - {parts: [{text: a, inline_data: {}}]}\n": (5, "model.0.parts.0: "),
    "- name: a\n  turns:\n    - user: hi\n      model:\n        - calls: [{nme: x}]\n": (5, "unknown key 'nme' in turn"),
    "- name: a\n  turns:\n    - content: {parts: 5}\n": (3, "turn: content.parts: "),
    "- name: a\n  turns:\n    - hello\n": (3, "turn: an object is needed"),
    "- name: a\n  agent: Nobody\n  turns: [{user: hi}]\n": (2, "no such agent; there are: Desk"),
    "- name: a\n  turns: [{user: hi}]\n  expect: {}\n": (3, "a conversation has no `expect`; each of its turns has"),
    "- name: a\n  turns: [{user: hi}]\n  arguments: {}\n": (3, "a conversation has no `arguments`"),
    "- name: a\n  hook: before_agent_callback\n  turns: [{user: hi}]\n  expect: {}\n": (1, "needs one of: hook, tool, turns"),
    "- name: a\n  hook: before_agent_callback\n  on_error: raise\n  expect: {}\n": (3, "`on_error` is of a conversation"),
    "- name: a\n  hook: before_agent_callback\n": (1, "case needs 'expect'"),
    "- name: a\n  turns: [{user: hi}]\n  on_error: ignore\n": (3, "on_error"),
}  # fmt: skip


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_names_the_file_and_the_line_before_anything_runs(app: Path, text: str) -> None:
    line, why = MISTAKES[text]
    with pytest.raises(InputError) as raised:
        load(app, text)
    assert raised.value.line == line, raised.value
    assert raised.value.where.endswith("cases.yaml")
    assert why in raised.value.why


HOLDS = """
- name: two turns share a session
  context: {variables: {n: 40}}
  turns:
    - {user: hi, model: [hello], expect: {text: hello, variables: {n: 41}, spans: [before_agent_callback, model]}}
    - event: idle
      model: [still there]
      expect:
        variables: {n: 42}
        requests: [{contents: [{role: user}, {role: model}, {parts: [{text: <event>idle</event>}]}]}]
"""


@pytest.mark.parametrize("kind", ["yaml", "json", "jsonl"])
def test_a_conversation_holds_in_each_kind_of_file(app: Path, transport: InProcess, kind: str) -> None:
    given = yaml.safe_load(HOLDS)
    text = {"yaml": HOLDS, "json": json.dumps(given), "jsonl": json.dumps(given[0])}[kind]
    (result,) = run(app, text, transport, f"cases.{kind}")
    assert result.mismatches == ()
    assert (result.verdict.hook, result.verdict.status.value) == ("conversation", "ok")
    assert result.verdict.state_delta.set == {"n": 42}
    assert result.verdict.tier
    assert [turn["text"] for turn in result.verdict.returned["turns"]] == ["hello", "still there"]


FAILS = """
- name: a the text is another
  turns: [{user: hi, model: [hello], expect: {text: bye}}]
- name: b the model is asked less often than the script says
  turns: [{user: hi, model: [hello, never], expect: {}}]
- name: c the model is asked more often
  turns: [{user: hi, expect: {}}]
- name: d a turn that never came
  turns:
    - user: hi
      model: [calls: [{name: end_session, args: {reason: done}}]]
      expect: {ended: true}
    - {user: there?, model: [x], expect: {text: x}}
"""


def test_what_does_not_hold_is_named_with_its_turn(app: Path, transport: InProcess) -> None:
    (app / "agents" / "Desk" / "Desk.json").write_text('{"tools": ["end_session"]}')
    text, less, more, over = run(app, FAILS, transport)
    assert [(m.path, m.expected, m.actual) for m in text.mismatches] == [("turns[0].text", "bye", "hello")]
    assert [(m.path, m.expected, m.actual) for m in less.mismatches] == [("turns[0].model_calls", 2, 1)]
    assert {m.path for m in more.mismatches} == {"turns[0].model_calls", "turns[0].status"}
    assert "the script has no response for model call 1" in more.verdict.detail
    assert [m.path for m in over.mismatches] == ["turns[1]"]


RAISES = """
- name: raised
  on_error: raise
  agent: Desk
  turns: [{user: hi, expect: {status: error, error: {matches: "ValueError: no"}}}]
- name: continued
  on_error: continue
  turns: [{user: hi, model: [fine], expect: {text: fine}}]
- name: fallen back
  turns: [{user: hi, expect: {status: fallback, trace: {before_agent_callback: {status: callback_error}}}}]
"""


def test_every_policy_can_be_a_case(app: Path, transport: InProcess) -> None:
    code = "def before_agent_callback(c):\n    raise ValueError('no')\n"
    (app / "agents" / "Desk" / "before_agent_callbacks" / "count.py").write_text(code)
    results = run(app, RAISES, transport)
    assert [(result.case.name, result.mismatches) for result in results] == [
        ("continued", ()),
        ("fallen back", ()),
        ("raised", ()),
    ]
    assert [result.verdict.status.value for result in results] == ["ok", "callback_error", "callback_error"]


def test_another_script_or_another_code_is_another_digest(app: Path) -> None:
    (before,) = load(app, "- {name: a, turns: [{user: hi, model: [x]}]}")
    (script,) = load(app, "- {name: a, turns: [{user: hi, model: [y]}]}")
    (app / "agents" / "Desk" / "before_agent_callbacks" / "count.py").write_text(COUNT + "# new\n")
    (code,) = load(app, "- {name: a, turns: [{user: hi, model: [y]}]}")
    assert len({before.digest, script.digest, code.digest}) == 3


def test_conversations_and_callback_cases_run_side_by_side_over_the_queue(app: Path) -> None:
    text = HOLDS + "- {name: one hook, hook: before_agent_callback, expect: {variables: {n: 1}}}\n"
    with Embedded(2, Settings()) as pool:
        results = list(batch.evaluate(load(app, text) * 5, pool.transport, 4))
    assert len(results) == 10
    assert [result.mismatches for result in results] == [()] * 10


def test_an_evaluation_that_is_broken_off_leaves_no_thread(app: Path, transport: InProcess) -> None:
    found = load(app, "- {name: a, turns: [{user: hi, model: [x]}]}") * 20
    running = batch.evaluate(found, transport, 4)
    next(running)
    running.close()
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("hookpool-talk")]


def test_eval_shows_the_turn_that_fails() -> None:
    ended = inside("eval", str(AIRLINE / "evaluations" / "conversations.yaml"), "--pool", "inline", "--filter", "card")
    assert ended.code == 0, ended.out
    assert "pass  a card number is answered before the model sees it" in ended.out
