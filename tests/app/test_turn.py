"""One turn: each rule of the documents is a promise here, run over real sandboxes."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from turns import Talk, agent, an_app, call, calls, python_tool, source, spans, with_agent

from dispatcher import MemoryStore, Profile, Session
from dispatcher.lines import Rules
from dispatcher.resources import SLOTS, Action, Callback, ErrorHandling, Guardrail, ModelSettings, Tool, TransferRule
from sandbox.contract import Limits
from sandbox.errors import InputError, MergeRejected, TurnError

type Talking = Callable[..., Talk]

LOG = 'c.variables["log"] = c.variables.get("log", []) + ["{}"]'


def logs(hook: str, parameters: str, *more: str) -> str:
    """A callback that writes its hook into the variable `log`."""
    lines = [f"def {hook}_callback({parameters}):", f"    {LOG.format(hook)}", *(f"    {line}" for line in more)]
    return "\n".join(lines)


BEFORE_AGENT = logs("before_agent", "c")
AFTER_AGENT = logs("after_agent", "c")
BEFORE_MODEL = logs("before_model", "c, r")
AFTER_MODEL = logs("after_model", "c, r")
BEFORE_TOOL = logs("before_tool", "t, i, c")
AFTER_TOOL = logs("after_tool", "t, i, c, r")
SIX = {
    "before_agent": BEFORE_AGENT,
    "before_model": BEFORE_MODEL,
    "after_model": AFTER_MODEL,
    "before_tool": BEFORE_TOOL,
    "after_tool": AFTER_TOOL,
    "after_agent": AFTER_AGENT,
}
ADD = python_tool("add", "def add(a: int, b: int) -> int:\n    return a + b\n")


# -- the order -------------------------------------------------------------------------------------


def test_every_hook_runs_in_the_order_of_the_documents(talk: Talking) -> None:
    conversation = talk(an_app(agent(**SIX), tools=(ADD,)), calls(call("add", a=1, b=2)), "three")
    turn = conversation.say()
    assert turn.variables["log"] == [
        "before_agent", "before_model", "after_model", "before_tool", "after_tool", "before_model", "after_model", "after_agent",
    ]  # fmt: skip
    assert (turn.status, turn.text, turn.agent, turn.ended) == ("ok", "three", "Desk", False)
    assert turn.tool_calls == [
        {"id": turn.tool_calls[0]["id"], "name": "add", "args": {"a": 1, "b": 2}, "response": {"result": 3}}
    ]
    assert spans(turn) == [
        "before_agent", "before_model", "model", "after_model", "before_tool", "add", "after_tool",
        "before_model", "model", "after_model", "after_agent",
    ]  # fmt: skip


def test_a_span_says_who_when_how_long_and_what_became_of_it(talk: Talking) -> None:
    turn = talk(an_app(agent(**SIX), tools=(ADD,)), calls(call("add", a=1, b=2)), "three").say()
    assert {span.agent for span in turn.trace} == {"Desk"}
    assert all(span.status == "ok" and span.ms > 0 and span.start_ms >= 0 for span in turn.trace)
    run = [span.invocation_id for span in turn.trace if span.kind != "model"]
    assert all(run)
    assert len(set(run)) == len(run)


def test_a_callback_sees_who_it_is_and_what_was_said(talk: Talking) -> None:
    code = """
    def before_agent_callback(c):
        c.variables["seen"] = [
            c.agent_name, c.session_id, bool(c.invocation_id), c.user_content.parts[0].text,
            [p.text for p in c.get_last_user_input()], c.turn_index,
        ]
    """
    conversation = talk(an_app(agent(before_agent=code)), "a", "b")
    assert conversation.say("hi").variables["seen"] == ["Desk", "s", True, "hi", ["hi"], 0]
    assert conversation.say("again").variables["seen"][3:] == ["again", ["again"], 1]


def test_before_agent_runs_on_every_turn_and_the_history_grows(talk: Talking) -> None:
    count = "def before_agent_callback(c):\n    c.variables['n'] = c.variables.get('n', 0) + 1\n"
    conversation = talk(an_app(agent(before_agent=count)), "one", "two")
    conversation.say("first")
    assert conversation.say("second").variables["n"] == 2
    assert [content["parts"][0]["text"] for content in conversation.seen()] == ["first", "one", "second"]
    assert [content["role"] for content in conversation.seen()] == ["user", "model", "user"]


# -- what answers, and what is skipped -------------------------------------------------------------


def test_a_content_of_before_agent_is_the_reply_and_neither_model_nor_after_agent_run(talk: Talking) -> None:
    answers = logs("before_agent", "c", "return Content(parts=[Part.from_text('closed')])")
    turn = talk(an_app(agent(**{**SIX, "before_agent": answers}))).say()
    assert turn.text == "closed"
    assert spans(turn) == ["before_agent"]
    assert turn.events[-1]["content"] == {"role": "model", "parts": [{"text": "closed"}]}


def test_a_content_of_after_agent_replaces_what_the_agent_said(talk: Talking) -> None:
    answers = "def after_agent_callback(c):\n    return Content(parts=[Part.from_text('better')])\n"
    conversation = talk(
        an_app(agent(after_agent=answers), tools=(ADD,)), calls(call("add", a=1, b=1), text="wait"), "worse", "x"
    )
    turn = conversation.say()
    assert [item["type"] for item in turn.outputs] == ["tool_calls", "text"]
    assert turn.text == "better"
    conversation.say("and?")
    texts = [part["text"] for content in conversation.seen() for part in content["parts"] if "text" in part]
    assert texts == ["hello", "better", "and?"]


@pytest.mark.parametrize("profile", [Profile(fidelity="live"), Profile(dialect="adk"), Profile(dialect="veadk")])
def test_live_and_in_the_other_dialects_a_content_of_after_agent_is_appended(talk: Talking, profile: Profile) -> None:
    answers = "def after_agent_callback(c):\n    return Content(parts=[Part.from_text('more')])\n"
    assert talk(an_app(agent(after_agent=answers)), "said", profile=profile).say().text == "said\nmore"


def test_a_response_of_before_model_is_used_as_if_the_model_had_said_it_and_after_model_does_not_run(
    talk: Talking,
) -> None:
    answers = logs("before_model", "c, r", "return LlmResponse.from_parts([Part.from_text('canned')])")
    conversation = talk(an_app(agent(**{**SIX, "before_model": answers})))
    turn = conversation.say()
    assert (turn.text, conversation.model.asked) == ("canned", [])
    assert spans(turn) == ["before_agent", "before_model", "after_agent"]
    assert next(span for span in turn.trace if span.name == "before_model_callback").answered_by is not None


def test_a_response_of_after_model_replaces_the_models(talk: Talking) -> None:
    answers = "def after_model_callback(c, r):\n    return LlmResponse.from_parts([Part.from_text('polite')])\n"
    assert talk(an_app(agent(after_model=answers)), "rude").say().text == "polite"


def test_a_dict_of_before_tool_is_the_result_the_tool_does_not_run_and_after_tool_does(talk: Talking) -> None:
    answers = logs("before_tool", "t, i, c", "return {'result': 'cached'}")
    turn = talk(
        an_app(agent(before_tool=answers, after_tool=AFTER_TOOL), tools=(ADD,)), calls(call("add", a=1, b=2)), "done"
    ).say()
    assert turn.tool_calls[0]["response"] == {"result": "cached"}
    assert turn.variables["log"] == ["before_tool", "after_tool"]
    assert next(span for span in turn.trace if span.kind == "tool").status == "skipped"


def test_an_empty_dict_of_a_tool_hook_answers(talk: Talking) -> None:
    answers = "def before_tool_callback(t, i, c):\n    return {}\n"
    turn = talk(an_app(agent(before_tool=answers), tools=(ADD,)), calls(call("add", a=1, b=2)), "done").say()
    assert turn.tool_calls[0]["response"] == {}


def test_a_dict_of_after_tool_replaces_the_response_the_model_gets(talk: Talking) -> None:
    answers = "def after_tool_callback(t, i, c, r):\n    return {'seen': r, 'tool': t.name}\n"
    conversation = talk(an_app(agent(after_tool=answers), tools=(ADD,)), calls(call("add", a=1, b=2)), "done")
    conversation.say()
    (part,) = conversation.seen()[-1]["parts"]
    assert part["function_response"]["response"] == {"seen": {"result": 3}, "tool": "add"}


def test_in_place_changes_of_every_argument_count(talk: Talking) -> None:
    before_model = "def before_model_callback(c, r):\n    r.append_instructions(['be kind'])\n    r.contents[0].parts[0].text = 'HELLO'\n"
    after_model = (
        "def after_model_callback(c, r):\n    for p in r.content.parts:\n        p.text = p.text and p.text.upper()\n"
    )
    before_tool = "def before_tool_callback(t, i, c):\n    i['b'] = 40\n"
    after_tool = "def after_tool_callback(t, i, c, r):\n    r['note'] = i['b']\n"
    conversation = talk(
        an_app(agent(before_model=before_model, after_model=after_model, before_tool=before_tool, after_tool=after_tool), tools=(ADD,)),
        calls(call("add", a=2)), "quiet",
    )  # fmt: skip
    turn = conversation.say()
    assert turn.text == "QUIET"
    assert turn.tool_calls[0]["args"] == {"a": 2, "b": 40}
    assert turn.tool_calls[0]["response"] == {"result": 42, "note": 40}
    assert conversation.model.asked[0].request["config"]["system_instruction"] == {"parts": [{"text": "be kind"}]}
    assert conversation.seen(0)[-1]["parts"] == [{"text": "HELLO"}]


def test_an_empty_response_ends_the_turn_with_an_empty_reply(talk: Talking) -> None:
    silent = "def before_model_callback(c, r):\n    return LlmResponse.from_parts([])\n"
    turn = talk(an_app(agent(before_model=silent))).say()
    assert (turn.status, turn.outputs) == ("ok", [])


def test_a_content_without_a_role_or_with_agent_is_the_models_in_the_history(talk: Talking) -> None:
    code = "def after_model_callback(c, r):\n    return LlmResponse(content=Content(parts=[Part.from_text('x')], role='agent'))\n"
    conversation = talk(an_app(agent(after_model=code)), "a", "b")
    conversation.say()
    conversation.say()
    assert [content["role"] for content in conversation.seen()] == ["user", "model", "user"]


# -- function calls --------------------------------------------------------------------------------


@pytest.mark.parametrize("hook", ["before_model", "after_model"])
def test_a_function_call_returned_by_a_model_hook_is_executed_and_its_result_goes_to_the_next_model_call(
    talk: Talking, hook: str
) -> None:
    code = f"""
    def {hook}_callback(c, r):
        if c.variables.get("once"):
            return None
        c.variables["once"] = True
        return LlmResponse.from_parts([Part.from_function_call("add", {{"a": 20, "b": 22}})])
    """
    script = ["done"] if hook == "before_model" else ["first", "done"]
    conversation = talk(an_app(agent(**{hook: code}), tools=(ADD,)), *script)
    turn = conversation.say()
    assert turn.text == "done"
    assert conversation.seen()[-1]["parts"][0]["function_response"]["response"] == {"result": 42}


def test_an_eleventh_pass_ends_the_turn_with_an_error(talk: Talking) -> None:
    conversation = talk(an_app(tools=(ADD,)), *[calls(call("add", a=1, b=1))] * 11)
    turn = conversation.say()
    assert (turn.status, turn.error) == ("error", "more than 10 model calls in one turn")
    assert len(conversation.model.asked) == len(turn.tool_calls) == 10
    assert conversation.stored.events[-1]["error_message"] == turn.error


def test_calls_of_one_response_see_the_state_as_it_was_and_their_deltas_merge_in_call_order(talk: Talking) -> None:
    code = """
    def before_tool_callback(t, i, c):
        c.variables["seen_by_" + i["who"]] = c.variables.get("last")
        c.variables["last"] = i["who"]
        c.variables.pop("dropped_by_" + i["who"], None)
    """
    app = an_app(agent(before_tool=code))
    start = Session(session_id="s", variables={"last": "nobody", "dropped_by_b": 1})
    conversation = talk(app, calls(*(call("t", who=who) for who in "abc")), "done", tools={"t": {}}, session=start)
    variables = conversation.say().variables
    assert [variables[f"seen_by_{who}"] for who in "abc"] == ["nobody"] * 3
    assert variables["last"] == "c"
    assert "dropped_by_b" not in variables


@pytest.mark.parametrize("rules", [None, Rules(sequential=True)])
def test_sequential_calls_see_what_the_ones_before_them_did(talk: Talking, rules: Rules | None) -> None:
    code = "def before_tool_callback(t, i, c):\n    c.variables['order'] = c.variables.get('order', '') + i['who']\n"
    app = an_app(agent(before_tool=code), sequential=rules is None)
    conversation = talk(
        app, calls(*(call("t", who=who) for who in "abc")), "done", tools={"t": {}}, rules=rules or Rules()
    )
    assert conversation.say().variables["order"] == "abc"


def test_parallel_calls_really_overlap(talk: Talking) -> None:
    slow = python_tool("slow", "import time\ndef slow():\n    time.sleep(1)\n")
    turn = talk(an_app(tools=(slow,)), calls(call("slow"), call("slow")), "done").say()
    first, second = (span for span in turn.trace if span.kind == "tool")
    assert second.start_ms < first.start_ms + first.ms


def test_a_python_tool_writes_into_the_turn_and_knows_its_call(talk: Talking) -> None:
    code = "def note(text):\n    set_variable('note', text)\n    return context.function_call_id\n"
    before = "def before_tool_callback(t, i, c):\n    c.variables['id'] = c.function_call_id\n"
    app = an_app(agent(before_tool=before), tools=(python_tool("note", code),))
    turn = talk(app, calls(call("note", text="x")), "done").say()
    assert turn.variables == {"note": "x", "id": turn.tool_calls[0]["id"]}
    assert turn.tool_calls[0]["response"] == {"result": turn.tool_calls[0]["id"]}


def test_a_tool_that_is_no_code_gives_its_object_as_it_is_and_wraps_what_is_none(talk: Talking) -> None:
    conversation = talk(
        an_app(), calls(call("crm"), call("clock")), "done", tools={"crm": {"name": "Ann"}, "clock": "noon"}
    )
    assert [one["response"] for one in conversation.say().tool_calls] == [{"name": "Ann"}, {"result": "noon"}]


def test_a_tool_nobody_can_run_is_told_to_the_model(talk: Talking) -> None:
    search = Tool("web search", "web_search", kind="googleSearchTool")
    turn = talk(an_app(tools=(search,)), calls(call("web_search", query="x")), "sorry").say()
    (called,) = turn.tool_calls
    assert "nobody here answers tool 'web search' (googleSearchTool)" in called["response"]["error"]
    assert (turn.status, turn.text) == ("ok", "sorry")


def test_a_python_tool_that_fails_is_an_error_for_the_model_and_after_tool_sees_it(talk: Talking) -> None:
    after = "def after_tool_callback(t, i, c, r):\n    c.variables['told'] = r\n"
    bad = python_tool("bad", "def bad():\n    raise ValueError('no')\n")
    turn = talk(an_app(agent(after_tool=after), tools=(bad,)), calls(call("bad")), "sorry").say()
    told = {"status": "error", "error": "Python function execution failed: ValueError: no"}
    assert turn.tool_calls[0]["response"] == turn.variables["told"] == told
    assert (turn.status, next(span for span in turn.trace if span.kind == "tool").status) == ("ok", "error")


def test_a_fake_answers_in_fake_mode_and_none_runs_the_tool(talk: Talking) -> None:
    fake = source(
        "fake.py", "def fake_tool_call(tool, input, c):\n    return {'faked': tool.name} if input['a'] else None\n"
    )
    tool = replace(ADD, fake=fake, fake_mode=True)
    turn = talk(an_app(tools=(tool,)), calls(call("add", a=1, b=1), call("add", a=0, b=1)), "done").say()
    assert [one["response"] for one in turn.tool_calls] == [{"faked": "add"}, {"result": 1}]


def test_a_host_stands_in_for_a_tool_of_the_app_in_the_same_shape(talk: Talking) -> None:
    turn = talk(an_app(tools=(ADD,)), calls(call("add", a=1, b=1)), "done", tools={"add": {"sum": "canned"}}).say()
    assert turn.tool_calls[0]["response"] == {"result": {"sum": "canned"}}


def test_callbacks_call_the_same_tools_and_no_tool_hook_runs_for_those(talk: Talking) -> None:
    code = (
        "def before_agent_callback(c):\n    c.variables['got'] = [tools.add(a=1, b=1).json(), tools.crm({}).json()]\n"
    )
    app = an_app(agent(before_agent=code, before_tool=BEFORE_TOOL), tools=(ADD,))
    turn = talk(app, "done", tools={"crm": {"name": "Ann"}}).say()
    assert turn.variables["got"] == [{"result": 2}, {"result": {"name": "Ann"}}]
    assert "log" not in turn.variables


def test_a_hidden_tool_is_gone_from_the_request_and_cannot_be_called(talk: Talking) -> None:
    hide = "def before_model_callback(c, r):\n    r.config.hide_tool('add up')\n"
    app = an_app(agent(before_model=hide), tools=(replace(ADD, name="add up"), replace(ADD, name="other")))
    conversation = talk(app, calls(call("add_up", a=1, b=1)), "done")
    turn = conversation.say()
    assert conversation.model.asked[0].request["config"]["tools"] == [{"function_declarations": [{"name": "other"}]}]
    assert [one.name for one in conversation.model.asked[0].tools] == ["other"]
    assert "is not among the tools" in turn.tool_calls[0]["response"]["error"]


def test_an_agent_has_the_tools_its_manifest_lists(talk: Talking) -> None:
    app = with_agent(an_app(tools=(ADD, replace(ADD, name="other"))), tools=("add", "elsewhere"))
    conversation = talk(app, calls(call("other", a=1, b=1)), "done")
    turn = conversation.say()
    assert [one.name for one in conversation.model.asked[0].tools] == ["add", "elsewhere"]
    assert "error" in turn.tool_calls[0]["response"]


# -- payloads --------------------------------------------------------------------------------------


def payload_hook(hook: str, parts: str) -> str:
    return f"import json\ndef {hook}_callback(c, r):\n    return LlmResponse.from_parts([{parts}])\n"


PAYLOAD = "Part.from_json(json.dumps({'chips': ['yes', 'no']}))"
ITEM = {"type": "payload", "payload": {"chips": ["yes", "no"]}}


def test_only_a_payload(talk: Talking) -> None:
    turn = talk(an_app(agent(before_model=payload_hook("before_model", PAYLOAD)))).say()
    assert turn.outputs == [ITEM]


def test_a_payload_with_the_models_text(talk: Talking) -> None:
    code = payload_hook("after_model", f"*r.content.parts, {PAYLOAD}")
    assert talk(an_app(agent(after_model=code)), "which?").say().outputs == [{"type": "text", "text": "which?"}, ITEM]


def test_a_payload_with_fixed_text_in_the_order_of_the_parts(talk: Talking) -> None:
    code = payload_hook("before_model", f"{PAYLOAD}, Part.from_text('hold on'), {PAYLOAD}")
    outputs = talk(an_app(agent(before_model=code))).say().outputs
    assert outputs == [ITEM, {"type": "text", "text": "hold on"}, ITEM]


def test_the_model_never_sees_a_payload_again_and_the_text_stays(talk: Talking) -> None:
    code = payload_hook("after_model", f"*r.content.parts, {PAYLOAD}")
    conversation = talk(an_app(agent(after_model=code)), "which?", "bye")
    conversation.say()
    conversation.say("yes")
    assert conversation.seen() == [
        {"role": "user", "parts": [{"text": "hello"}]},
        {"role": "model", "parts": [{"text": "which?"}]},
        {"role": "user", "parts": [{"text": "yes"}]},
    ]
    assert "inline_data" in json.dumps(conversation.stored.events)


def test_a_payload_that_a_callback_puts_into_a_request_does_not_reach_the_model(talk: Talking) -> None:
    code = f"import json\ndef before_model_callback(c, r):\n    r.contents.append(Content(role='user', parts=[{PAYLOAD}]))\n"
    conversation = talk(an_app(agent(before_model=code)), "ok")
    conversation.say()
    assert conversation.seen() == [{"role": "user", "parts": [{"text": "hello"}]}]


@pytest.mark.parametrize("value", ["[1, 2]", "7", "null", '"text"'])
def test_a_json_array_or_scalar_is_wrapped_with_a_warning(talk: Talking, value: str) -> None:
    turn = talk(an_app(agent(before_model=payload_hook("before_model", f"Part.from_json({value!r})")))).say()
    assert turn.outputs == [{"type": "payload", "payload": {"value": json.loads(value)}}]
    assert any("was wrapped" in warning for warning in turn.warnings)


def test_a_payload_that_is_no_json_is_an_error_of_that_callback(talk: Talking) -> None:
    turn = talk(an_app(agent(before_model=payload_hook("before_model", "Part.from_json('{')")))).say()
    assert turn.status == "fallback"
    assert "before_model_callback_1.py" in (turn.error or "")
    assert "the custom payload is not valid JSON" in (turn.error or "")


def test_a_customized_response_and_audio_are_items_of_their_own_kind(talk: Talking) -> None:
    parts = "Part.from_customized_response(content='hi', enable_dtmf=True), Part.from_audio('gs://a.wav')"
    first, second = talk(an_app(agent(before_model=payload_hook("before_model", parts)))).say().outputs
    assert (first["type"], first["agent_response"]["enableDtmf"]) == ("agent_response", True)
    assert (second["type"], second["audio"]["audioUri"]) == ("audio", "gs://a.wav")


# -- transfer and end ------------------------------------------------------------------------------


def two_agents(**hooks: str):
    return an_app(agent("Front Desk", **hooks), agent("Back Desk", before_agent=BEFORE_AGENT))


def test_transfer_to_agent_switches_the_agent_within_the_turn_and_for_the_next(talk: Talking) -> None:
    conversation = talk(
        two_agents(after_agent=AFTER_AGENT),
        calls(call("transfer_to_agent", agent_name="Back_Desk")),
        "I am back",
        "still",
    )
    app = replace(
        conversation.app,
        agents=(replace(conversation.app.agents[0], children=("Back Desk",)), conversation.app.agents[1]),
    )
    conversation.conversation.app = app
    turn = conversation.say()
    assert (turn.agent, turn.text) == ("Back Desk", "I am back")
    assert turn.variables["log"] == ["after_agent", "before_agent"]
    assert conversation.say("go on").agent == "Back Desk"
    assert conversation.seen(1)[1]["parts"][0]["function_call"]["name"] == "transfer_to_agent"


def test_a_transfer_call_in_a_content_of_before_agent_is_executed_and_after_agent_does_not_run(talk: Talking) -> None:
    code = "def before_agent_callback(c):\n    return Content(parts=[Part.from_text('one moment'), Part.from_agent_transfer('Back Desk')])\n"
    turn = talk(two_agents(before_agent=code, after_agent=AFTER_AGENT), "hello").say()
    assert (turn.agent, turn.text, turn.variables["log"]) == ("Back Desk", "one moment\nhello", ["before_agent"])


def test_before_tool_may_refuse_a_transfer(talk: Talking) -> None:
    refuse = "def before_tool_callback(t, i, c):\n    return {'error': 'not now'}\n"
    app = two_agents(before_tool=refuse)
    app = replace(app, agents=(replace(app.agents[0], children=("Back Desk",)), app.agents[1]))
    turn = talk(app, calls(call("transfer_to_agent", agent_name="Back Desk")), "stay").say()
    assert (turn.agent, turn.text) == ("Front Desk", "stay")


def test_a_transfer_to_nobody_is_told_to_the_model(talk: Talking) -> None:
    app = two_agents()
    app = replace(app, agents=(replace(app.agents[0], children=("Back Desk",)), app.agents[1]))
    conversation = talk(app, calls(call("transfer_to_agent", agent_name="Nobody")), "hm")
    turn = conversation.say()
    assert turn.agent == "Front Desk"
    assert "there are: Front Desk, Back Desk" in str(conversation.seen()[-1])


def test_agents_that_send_each_other_the_conversation_end_the_turn_with_an_error(talk: Talking) -> None:
    def send(to: str) -> str:
        return f"def before_agent_callback(c):\n    return Content(parts=[Part.from_agent_transfer({to!r})])\n"

    app = an_app(agent("A", before_agent=send("B")), agent("B", before_agent=send("A")))
    turn = talk(app, rules=Rules(model_calls=3)).say()
    assert (turn.status, turn.error) == ("error", "more than 3 transfers in one turn, the last to A")


def test_end_session_ends_the_session_and_it_takes_no_more_turns(talk: Talking) -> None:
    code = "def after_model_callback(c, r):\n    return LlmResponse.from_parts([Part.from_text('bye'), Part.from_end_session(reason='done', escalated=True)])\n"
    conversation = talk(an_app(agent(after_model=code, after_agent=AFTER_AGENT)), "hm", "never")
    turn = conversation.say()
    assert turn.ended
    assert turn.outputs == [
        {"type": "text", "text": "bye"},
        {"type": "end_session", "reason": "done", "escalated": True},
    ]
    assert turn.variables["log"] == ["after_agent"]
    with pytest.raises(InputError, match="session 's': has ended") as raised:
        conversation.say("hello?")
    assert raised.value.where == "session 's'"
    assert conversation.model.left == 1


def test_before_agent_may_end_the_session(talk: Talking) -> None:
    code = "def before_agent_callback(c):\n    return Content(parts=[Part.from_end_session(reason='spam')])\n"
    turn = talk(an_app(agent(before_agent=code))).say()
    assert turn.outputs == [{"type": "end_session", "reason": "spam", "escalated": False}]


def test_another_call_in_an_agent_hooks_content_is_not_executed_and_said(talk: Talking) -> None:
    code = (
        "def before_agent_callback(c):\n    return Content(parts=[Part.from_function_call('add', {'a': 1, 'b': 1})])\n"
    )
    turn = talk(an_app(agent(before_agent=code), tools=(ADD,))).say()
    assert turn.tool_calls == []
    assert "the call of 'add' in an agent hook's Content is not executed" in turn.warnings


def test_a_transfer_rule_made_of_code_is_asked_before_every_model_call(talk: Talking) -> None:
    condition = source(
        "rule.py", "def should_trigger_transfer_callback(c):\n    return c.variables.get('angry', False)\n"
    )
    upset = "def after_tool_callback(t, i, c, r):\n    c.variables['angry'] = True\n"
    calm = "def before_model_callback(c, r):\n    c.variables['angry'] = False\n"
    front = replace(
        agent("Front", after_tool=upset),
        children=("Back",),
        rules=(TransferRule("Back", condition), TransferRule("Back", source("up.py", "def should_trigger_transfer_callback(c):\n    return 'home' in str(c.user_content.parts)\n"), to_parent=True)),
    )  # fmt: skip
    app = an_app(front, agent("Back", before_model=calm), tools=(ADD,))
    conversation = talk(app, calls(call("add", a=1, b=1)), "back here", "front again")
    turn = conversation.say()
    assert (turn.agent, turn.text) == ("Back", "back here")
    assert spans(turn, "rule") == ["transfer to Back", "transfer to Back", "transfer to Front"]
    assert conversation.say("home").agent == "Front"


# -- guardrails ------------------------------------------------------------------------------------


def guard(slot: str, parameters: str, body: str, action: Action | None = None) -> Guardrail:
    code = source(f"{slot}.py", f"def {slot}_callback({parameters}):\n    {body}\n")
    return Guardrail("No Cards", "No_Cards", callbacks=(Callback(f"{slot}_guardrail", code),), action=action)


TRIGGER = "return create_guardrail_result('TRIGGER', 'a card')"
SLOT_PARAMETERS = {"before_agent": "c", "before_model": "c, r", "after_model": "c, r", "after_agent": "c"}


@pytest.mark.parametrize("slot", SLOTS)
def test_a_guardrail_that_triggers_answers_in_its_slot(talk: Talking, slot: str) -> None:
    rail = guard(slot, SLOT_PARAMETERS[slot], TRIGGER, Action("respond", "No cards, please."))
    app = with_agent(an_app(agent(**SIX), guardrails=(rail,)), guardrails=("No_Cards",))
    conversation = talk(app, "my answer")
    turn = conversation.say()
    assert turn.text == "No cards, please."
    span = next(span for span in turn.trace if span.kind == "guardrail")
    assert (span.name, span.status, span.note) == (f"No Cards ({slot})", "ok", "a card")
    skipped = {
        "before_agent": {"before_model", "after_agent"},
        "before_model": {"after_model"},
        "after_model": set(),
        "after_agent": set(),
    }[slot]
    assert not skipped & set(spans(turn, "hook"))
    assert len(conversation.model.asked) == slot.startswith("after")


def test_a_guardrail_that_is_content_changes_nothing(talk: Talking) -> None:
    rails = tuple(guard(slot, SLOT_PARAMETERS[slot], "return {'decision': 'OK'}") for slot in SLOTS)
    rails = tuple(replace(rail, name=f"{index}", folder=f"{index}") for index, rail in enumerate(rails))
    turn = talk(an_app(agent(), guardrails=rails, everywhere=("0", "1", "2", "3")), "fine").say()
    assert turn.text == "fine"
    assert spans(turn, "guardrail") == [f"{index} ({slot})" for index, slot in enumerate(SLOTS)]


def test_a_guardrail_without_an_action_refuses_and_one_that_transfers_does(talk: Talking) -> None:
    rail = guard("before_agent", "c", TRIGGER)
    app = an_app(agent("Front"), agent("Back"), guardrails=(rail,), everywhere=("No Cards",))
    assert talk(app).say().text == Rules().refusal
    handing = replace(app, everywhere=(), guardrails=(replace(rail, action=Action("transfer", "Back")),))
    turn = talk(with_agent(handing, guardrails=("No Cards",)), "back here").say()
    assert (turn.agent, turn.text) == ("Back", "back here")


def test_a_guardrails_prompt_is_answered_by_the_model_without_tools(talk: Talking) -> None:
    rail = guard("before_model", "c, r", TRIGGER, Action("generate", "Decline politely."))
    conversation = talk(an_app(agent(), tools=(ADD,), guardrails=(rail,), everywhere=("No Cards",)), "I must decline.")
    assert conversation.say().text == "I must decline."
    (ask,) = conversation.model.asked
    assert ask.request["config"]["system_instruction"] == {"parts": [{"text": "Decline politely."}]}
    assert ask.tools == ()


def test_a_guardrail_that_crashes_does_not_open_the_gate(talk: Talking) -> None:
    rail = guard("before_model", "c, r", "raise RuntimeError('oops')")
    conversation = talk(an_app(agent(), guardrails=(rail,), everywhere=("No Cards",)), "let through")
    turn = conversation.say()
    assert (turn.status, turn.text, conversation.model.asked) == ("fallback", Rules().fallback, [])


# -- failures --------------------------------------------------------------------------------------

RAISES = "def after_agent_callback(c):\n    c.variables['half'] = 1\n    raise ValueError('broken')\n"


def test_fallback_rolls_the_whole_turn_back_and_the_trace_says_why(talk: Talking) -> None:
    app = an_app(agent(**{**SIX, "after_agent": RAISES}), tools=(ADD,))
    start = Session(session_id="s", variables={"kept": 1})
    conversation = talk(app, calls(call("add", a=1, b=2)), "three", "again", session=start)
    turn = conversation.say()
    assert (turn.status, turn.outputs) == ("fallback", [{"type": "text", "text": Rules().fallback}])
    assert turn.variables == conversation.stored.variables == {"kept": 1}
    assert (turn.state_delta.set, turn.state_delta.remove) == ({}, [])
    last = turn.trace[-1]
    assert (last.name, last.status) == ("after_agent_callback", "callback_error")
    assert "after_agent_callback_1.py:3: ValueError: broken" in (last.error or "")
    assert "ValueError: broken" in (turn.error or "")
    assert [event["author"] for event in conversation.stored.events] == ["user", "Desk"]
    assert conversation.stored.events[-1]["error_code"] == "CALLBACK_ERROR"


def test_the_apps_own_fallback_reply_is_in_the_language_of_the_session(talk: Talking) -> None:
    app = an_app(agent(after_agent=RAISES), errors=ErrorHandling({"en-US": "Sorry.", "de-DE": "Verzeihung."}))
    german = Session(session_id="s", language_code="de-DE")
    assert talk(app, "x", session=german).say().text == "Verzeihung."
    assert talk(app, "x").say().text == "Sorry."


def test_more_fallbacks_in_a_row_than_the_app_allows_end_the_session(talk: Talking) -> None:
    app = an_app(agent(after_agent=RAISES), errors=ErrorHandling(max_attempts=1, escalate=True))
    conversation = talk(app, "a", "b")
    assert not conversation.say().ended
    turn = conversation.say()
    assert (turn.status, turn.ended) == ("fallback", True)
    assert turn.outputs[-1] == {"type": "end_session", "reason": "error", "escalated": True}


def test_continue_goes_on_as_if_the_hook_had_returned_none_and_merges_nothing_of_it(talk: Talking) -> None:
    bad = "def before_model_callback(c, r):\n    c.variables['half'] = 1\n    r.contents.clear()\n    raise ValueError('x')\n"
    conversation = talk(an_app(agent(before_model=bad)), "fine", rules=Rules(on_error="continue"))
    turn = conversation.say()
    assert (turn.status, turn.text, turn.variables) == ("ok", "fine", {})
    assert conversation.seen() == [{"role": "user", "parts": [{"text": "hello"}]}]
    assert turn.trace[0].status == "callback_error"


def test_raise_raises_with_the_trace_and_merges_nothing(talk: Talking) -> None:
    conversation = talk(
        an_app(agent(before_agent=BEFORE_AGENT, after_agent=RAISES)), "x", rules=Rules(on_error="raise")
    )
    with pytest.raises(TurnError, match="ValueError: broken") as raised:
        conversation.say()
    assert [span.name for span in raised.value.trace][-1] == "after_agent_callback"
    assert conversation.stored.variables == {}
    assert conversation.stored.events == []


@pytest.mark.parametrize("sequential", [False, True])
def test_one_failing_call_of_a_batch_rolls_back_the_others(talk: Talking, sequential: bool) -> None:
    code = "def before_tool_callback(t, i, c):\n    c.variables[i['who']] = 1\n    if i['who'] == 'b':\n        raise ValueError('b')\n"
    conversation = talk(
        an_app(agent(before_tool=code)), calls(*(call("t", who=who) for who in "abc")), "x",
        tools={"t": {}}, rules=Rules(sequential=sequential),
    )  # fmt: skip
    turn = conversation.say()
    assert (turn.status, turn.variables) == ("fallback", {})
    assert "ValueError: b" in (turn.error or "")


def test_a_limit_is_a_failure_like_a_raise(talk: Talking) -> None:
    slow = "import time\ndef before_agent_callback(c):\n    time.sleep(30)\n"
    turn = talk(an_app(agent(before_agent=slow)), profile=Profile(limits=Limits.of(wall_s=0.3))).say()
    assert (turn.status, turn.trace[0].status) == ("fallback", "time_limit")


def test_a_callback_that_is_no_python_fails_the_turn(talk: Talking) -> None:
    turn = talk(an_app(agent(before_model="def before_model_callback(:\n")), "let through").say()
    assert turn.status == "fallback"
    assert "SyntaxError" in (turn.error or "")


def test_a_model_that_fails_is_the_fallback_and_the_next_turn_works(talk: Talking) -> None:
    conversation = talk(an_app(agent(before_agent=BEFORE_AGENT)), {"error": "overloaded"}, "fine")
    turn = conversation.say()
    assert (turn.status, turn.error, turn.variables) == ("fallback", "the model of Desk: overloaded", {})
    assert next(span for span in turn.trace if span.kind == "model").error == "overloaded"
    assert conversation.say().text == "fine"
    assert [content["role"] for content in conversation.seen()] == ["user", "user"]


def test_what_a_model_raises_or_gives_that_is_no_response_is_its_failure(talk: Talking) -> None:
    conversation = talk(an_app())
    conversation.model.add([ValueError("bug"), {"content": 5}, {"content": {"parts": []}, "partial": True}])
    errors = [conversation.say().error or "" for _ in range(3)]
    assert "ValueError: bug" in errors[0]
    assert "is no LlmResponse" in errors[1]
    assert "no complete response" in errors[2]


# -- the other dialects ----------------------------------------------------------------------------

BEFORE_MODEL_RAISES = "def before_model_callback(c, r):\n    raise ValueError('bad')\n"


@pytest.mark.parametrize("dialect", ["adk", "veadk"])
def test_a_raise_ends_the_turn_with_that_error_and_keeps_what_was_done(talk: Talking, dialect: str) -> None:
    conversation = talk(
        an_app(agent(before_agent=BEFORE_AGENT, before_model=BEFORE_MODEL_RAISES)), profile=Profile(dialect=dialect)
    )
    turn = conversation.say()
    assert (turn.status, turn.outputs) == ("error", [])
    assert "ValueError: bad" in (turn.error or "")
    assert conversation.stored.variables == {"log": ["before_agent"]}


def test_adk_a_failed_tool_asks_its_error_hook_else_the_turn_ends(talk: Talking) -> None:
    bad = python_tool("bad", "def bad():\n    raise ValueError('no')\n")
    hook = "def on_tool_error_callback(tool, args, tool_context, error):\n    return {'recovered': str(error), 'from': tool.name}\n"
    profile = Profile(dialect="adk")
    turn = talk(an_app(agent(on_tool_error=hook), tools=(bad,)), calls(call("bad")), "ok", profile=profile).say()
    assert turn.tool_calls[0]["response"]["from"] == "bad"
    assert "ValueError: no" in turn.tool_calls[0]["response"]["recovered"]
    turn = talk(an_app(tools=(bad,)), calls(call("bad")), "ok", profile=profile).say()
    assert (turn.status, turn.text) == ("error", "")
    assert "tool bad failed" in (turn.error or "")


def test_adk_a_failed_model_asks_its_error_hook(talk: Talking) -> None:
    hook = "def on_model_error_callback(c, r, error):\n    return LlmResponse.from_parts([Part.from_text(f'sorry: {error}')])\n"
    profile = Profile(dialect="adk")
    assert talk(an_app(agent(on_model_error=hook)), {"error": "down"}, profile=profile).say().text == "sorry: down"
    turn = talk(an_app(), {"error": "down"}, profile=profile).say()
    assert (turn.status, turn.error) == ("error", "the model of Desk: down")


def test_veadk_after_model_gets_the_models_error_and_may_answer_it(talk: Talking) -> None:
    hook = "def after_model_callback(c, r, error):\n    if error:\n        return LlmResponse.from_parts([Part.from_text(f'{r} {error}')])\n"
    assert (
        talk(an_app(agent(after_model=hook)), {"error": "down"}, profile=Profile(dialect="veadk")).say().text
        == "None down"
    )


def test_veadk_a_raise_of_before_tool_is_the_tools_error_and_after_tool_sees_it(talk: Talking) -> None:
    before = "def before_tool_callback(t, i, c):\n    raise ValueError('refused')\n"
    after = "def after_tool_callback(t, i, c, r, error):\n    c.variables['saw'] = [r, error]\n"
    app = an_app(agent(before_tool=before, after_tool=after), tools=(ADD,))
    turn = talk(app, calls(call("add", a=1, b=1)), "ok", profile=Profile(dialect="veadk")).say()
    assert turn.tool_calls[0]["response"] == {"error": "refused"}
    assert turn.variables["saw"] == [None, "refused"]


def test_veadk_a_failed_tool_reaches_the_model_after_after_tool(talk: Talking) -> None:
    bad = python_tool("bad", "def bad():\n    raise ValueError('no')\n")
    profile = Profile(dialect="veadk")
    turn = talk(an_app(agent(), tools=(bad,)), calls(call("bad")), "ok", profile=profile).say()
    assert turn.tool_calls[0]["response"] == {"error": "Python function execution failed: ValueError: no"}
    mends = "def after_tool_callback(t, i, c, r, error):\n    return {'mended': True}\n"
    turn = talk(an_app(agent(after_tool=mends), tools=(bad,)), calls(call("bad")), "ok", profile=profile).say()
    assert turn.tool_calls[0]["response"] == {"mended": True}


# -- partial outputs -------------------------------------------------------------------------------


def test_a_partial_response_of_before_model_is_said_and_the_model_is_still_called(talk: Talking) -> None:
    code = "def before_model_callback(c, r):\n    return LlmResponse(content=Content(parts=[Part.from_text('one moment')]), partial=True)\n"
    conversation = talk(an_app(agent(before_model=code, after_model=AFTER_MODEL)), "here")
    turn = conversation.say()
    assert turn.text == "one moment\nhere"
    assert turn.variables["log"] == ["after_model"]


def test_after_model_sees_partial_outputs_only_where_it_asked_for_them(talk: Talking) -> None:
    count = "def after_model_callback(c, r):\n    c.variables['{0}'] = c.variables.get('{0}', 0) + 1\n"
    eager = Callback("after_model_callback", source("eager.py", count.format("eager")), proactive=True)
    plain = Callback("after_model_callback", source("plain.py", count.format("plain")))
    app = with_agent(an_app(), callbacks=(eager, plain))
    shown: list[str] = []
    turn = talk(app, {"text": "hello", "chunks": ["hel", "lo"]}).say(on_partial=shown.append)
    assert turn.variables == {"eager": 3, "plain": 1}
    assert (turn.text, shown) == ("hello", ["hel", "lo"])


def test_a_proactive_callback_may_change_what_is_shown_of_a_partial_output(talk: Talking) -> None:
    code = (
        "def after_model_callback(c, r):\n    for part in r.content.parts:\n        part.text = '*' * len(part.text)\n"
    )
    app = with_agent(an_app(), callbacks=(Callback("after_model_callback", source("mask.py", code), proactive=True),))
    shown: list[str] = []
    talk(app, {"text": "secret", "chunks": ["sec"]}).say(on_partial=shown.append)
    assert shown == ["***"]


# -- the session -----------------------------------------------------------------------------------


def test_nothing_is_merged_before_the_turn_is_over_and_then_once(talk: Talking) -> None:
    committed = []

    class Watched(MemoryStore):
        def commit(self, snapshot, key, delta, events=()):
            committed.append((key, dict(delta.set), len(events)))
            return super().commit(snapshot, key, delta, events)

    conversation = talk(an_app(agent(**SIX)), "x")
    conversation.conversation.dispatcher.store = Watched()
    turn = conversation.say()
    assert committed == [(turn.turn_id, {"log": turn.variables["log"]}, 2)]


def test_a_turn_that_comes_twice_is_merged_once(talk: Talking) -> None:
    count = "def before_agent_callback(c):\n    c.variables['n'] = c.variables.get('n', 0) + 1\n"
    conversation = talk(an_app(agent(before_agent=count)), "a", "b")
    conversation.say(turn_id="t1")
    conversation.say(turn_id="t1")
    assert conversation.stored.variables == {"n": 1}
    assert len(conversation.stored.events) == 2


def test_another_writer_of_the_same_variable_meets_the_stores_policy(talk: Talking) -> None:
    code = "def before_agent_callback(c):\n    c.variables['n'] = 'turn'\n"

    def meanwhile(conversation: Talk) -> None:
        from sandbox.delta import Delta

        store, model = conversation.conversation.dispatcher.store, conversation.model
        respond = model.respond

        async def responding(ask):
            store.commit(store.read("s"), "other", Delta(set={"n": "other"}))
            async for one in respond(ask):
                yield one

        model.respond = responding

    friendly = talk(an_app(agent(before_agent=code)), "x", session=Session(session_id="s", variables={"n": 0}))
    meanwhile(friendly)
    turn = friendly.say()
    assert turn.variables == {"n": "turn"}
    assert "variable 'n' was changed meanwhile; last write wins" in turn.warnings
    strict = talk(an_app(agent(before_agent=code)), "x", session=Session(session_id="s", variables={"n": 0}))
    strict.conversation.dispatcher.store = MemoryStore("reject")
    meanwhile(strict)
    with pytest.raises(MergeRejected) as raised:
        strict.say()
    assert raised.value.keys == ("n",)


def test_declared_variables_are_there_and_another_is_warned_of(talk: Talking) -> None:
    code = "def before_agent_callback(c):\n    c.variables['seen'] = c.variables['tier'], c.variables['vip']\n"
    app = an_app(agent(before_agent=code), variables={"tier": "basic"})
    turn = talk(app, "x").say(variables={"vip": True})
    assert turn.variables == {"tier": "basic", "vip": True, "seen": ["basic", True]}
    assert turn.warnings == ["variable 'vip' is not declared by the app", "variable 'seen' is not declared by the app"]


def test_several_sessions_at_once_do_not_see_each_other(talk: Talking) -> None:
    code = "def before_agent_callback(c):\n    c.variables['who'] = c.session_id\n"
    conversation = talk(an_app(agent(before_agent=code)), *["x"] * 6).conversation

    async def all_of_them():
        return await asyncio.gather(*(conversation.turn(Session(session_id=f"s{n}"), "hi") for n in range(6)))

    assert [turn.variables["who"] for turn in asyncio.run(all_of_them())] == [f"s{n}" for n in range(6)]


def test_a_turn_that_is_broken_off_stops_its_tool_and_merges_nothing(talk: Talking) -> None:
    slow = python_tool("slow", "import time\ndef slow():\n    set_variable('n', 1)\n    time.sleep(25)\n")
    conversation = talk(
        an_app(agent(before_agent=BEFORE_AGENT), tools=(slow,)), {**calls(call("slow")), "chunks": ["..."]}
    )

    async def broken_off() -> None:
        answering = asyncio.Event()
        talking = conversation.conversation.turn(conversation.session, "hi", on_partial=lambda _: answering.set())
        turn = asyncio.create_task(talking)
        await answering.wait()
        await asyncio.sleep(0.5)  # the tool sleeps by now, or is about to
        began = time.monotonic()
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        assert time.monotonic() - began < 15

    asyncio.run(broken_off())
    assert (conversation.stored.variables, conversation.stored.events) == ({}, [])


def test_instructions_model_and_temperature_reach_the_model(talk: Talking) -> None:
    app = with_agent(
        an_app(global_instruction="Be brief.", model=ModelSettings("large", 0.1)),
        instruction="Sell.",
        model=ModelSettings("small"),
    )
    conversation = talk(app, "x")
    conversation.say()
    (ask,) = conversation.model.asked
    assert ask.request["model"] == "small"
    assert ask.request["config"]["system_instruction"]["parts"] == [{"text": "Be brief."}, {"text": "Sell."}]
    assert ask.settings == ModelSettings("small", 0.1)


def test_a_turn_for_an_agent_that_is_not_there_names_those_there_are(talk: Talking) -> None:
    with pytest.raises(InputError, match="there are: Desk"):
        talk(an_app(), "x").say(agent="Nobody")


def test_what_code_prints_is_in_the_turn(talk: Talking) -> None:
    loud = python_tool("loud", "def loud():\n    print('tool')\n")
    turn = talk(
        an_app(agent(before_agent="def before_agent_callback(c):\n    print('hook')\n"), tools=(loud,)),
        calls(call("loud")),
        "x",
    ).say()
    assert turn.stdout == "hook\ntool\n"
