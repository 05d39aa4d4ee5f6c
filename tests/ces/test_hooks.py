"""What a hook promises: which function, which arguments, what answers, what an error costs."""

from __future__ import annotations

import pytest

from sandbox.hooks import HOOKS

SIX = [name for name in HOOKS if name.endswith("_callback") and not name.startswith("on_")]

ANSWERS = {  # hook -> (an expression it may return, what the verdict has of it)
    "before_agent_callback": (
        "Content(parts=[Part.from_text('bye')])",
        {"parts": [{"text": "bye"}], "role": "model"},
    ),
    "after_agent_callback": (
        "Content(parts=[Part(text='bye')], role='agent')",
        {"parts": [{"text": "bye"}], "role": "model"},
    ),
    "before_model_callback": (
        "LlmResponse.from_parts(parts=[Part.from_text(text='hi')])",
        {"content": {"parts": [{"text": "hi"}], "role": "model"}},
    ),
    "after_model_callback": (
        "LlmResponse(content=Content(parts=[]), partial=True)",
        {"content": {"parts": [], "role": "model"}, "partial": True},
    ),
    "before_tool_callback": ("{'result': (1, 2)}", {"result": [1, 2]}),
    "after_tool_callback": ("{}", {}),
    "tool_fake": ("{'fake': True}", {"fake": True}),
    "transfer_condition": ("False", False),
    "before_agent_guardrail": (
        "create_guardrail_result(decision='TRIGGER', reason='rude')",
        {"decision": "TRIGGER", "reason": "rude"},
    ),
    "before_model_guardrail": ("{'decision': 'TRIGGER'}", {"decision": "TRIGGER", "reason": ""}),
}

WRONG = {  # hook -> (an expression it must not return, what the text says)
    "before_agent_callback": ("'hello'", "before_agent_callback must return Content or None, it returned str"),
    "after_agent_callback": ("LlmResponse()", "must return Content or None, it returned LlmResponse"),
    "before_model_callback": ("Content(parts=[])", "must return LlmResponse or None, it returned Content"),
    "after_model_callback": ("{'content': 'x'}", "must return LlmResponse or None, it returned dict"),
    "before_tool_callback": ("[1]", "must return dict or None, it returned list"),
    "after_tool_callback": ("'ok'", "must return dict or None, it returned str"),
    "transfer_condition": ("1", "must return bool or None, it returned int"),
    "before_agent_guardrail": ("{'decision': 'MAYBE'}", "a guardrail's decision is OK or TRIGGER, it returned 'MAYBE'"),
}


def defining(hook: str, expression: str) -> str:
    function = (HOOKS[hook].functions or ("tool",))[0]
    return f"def {function}(*arguments):\n    return {expression}\n"


@pytest.mark.parametrize("hook", ANSWERS)
def test_a_hook_answers_with_its_type_and_the_verdict_says_who_did(bench, hook):
    expression, expected = ANSWERS[hook]
    reply = bench.run(hook, defining(hook, "None"), defining(hook, expression), defining(hook, "1/0"))
    assert (reply.error, reply.answered_by, reply.returned) == (None, "second.py", expected)


@pytest.mark.parametrize("hook", WRONG)
def test_a_value_of_another_type_is_an_error_that_says_what_was_expected_and_what_came(bench, hook):
    expression, text = WRONG[hook]
    reply = bench.run(hook, "\n" + defining(hook, expression))
    assert reply.error.type == "WrongReturn"
    assert text in reply.error.message
    assert (reply.error.file, reply.error.line) == ("first.py", 2)
    assert reply.returned is None


@pytest.mark.parametrize("hook", SIX)
def test_none_and_a_decision_of_ok_answer_nothing(bench, hook):
    reply = bench.run(hook, defining(hook, "None"), defining(hook, "{'decision': 'OK'}"))
    assert (reply.error, reply.answered_by, reply.returned) == (None, None, None)


@pytest.mark.parametrize("hook", SIX)
def test_arguments_are_bound_by_position_whatever_they_are_called(bench, hook):
    names = ", ".join("abcd"[: len(HOOKS[hook].positional("ces"))])
    reply = bench.run(hook, f"def {hook}({names}):\n    pass\n")
    assert reply.error is None


@pytest.mark.parametrize("hook", SIX)
def test_another_number_of_arguments_is_an_error_that_shows_both_signatures(bench, hook):
    reply = bench.run(hook, f"x = 1\ndef {hook}(a, b, c, d, e, f):\n    pass\n")
    assert reply.error.type == "WrongSignature"
    assert HOOKS[hook].signature("ces") in reply.error.message
    assert f"{hook}(a, b, c, d, e, f)" in reply.error.message
    assert reply.error.line == 2


def test_a_function_that_takes_keywords_only_is_an_error_too(bench):
    reply = bench.run("before_agent_callback", "def before_agent_callback(*, callback_context): pass")
    assert reply.error.type == "WrongSignature"


def test_a_type_error_inside_the_function_is_the_codes_own(bench):
    reply = bench.before_agent("int([])")
    assert (reply.error.type, reply.error.line) == ("TypeError", 3)


@pytest.mark.parametrize(
    ("defined", "hint"),
    [
        ("beforeModelCallback", "beforeModelCallback must be spelt before_model_callback"),
        ("before_model_calback", "before_model_calback must be spelt before_model_callback"),
    ],
)
def test_a_file_without_the_function_names_those_it_has_and_the_near_miss(bench, defined, hint):
    reply = bench.run("before_model_callback", f"def other(): pass\ndef {defined}(a, b): pass\n")
    assert reply.error.type == "HookNotFound"
    assert "first.py defines no before_model_callback" in reply.error.message
    assert f"other, {defined}" in reply.error.message
    assert hint in reply.error.message


def test_an_empty_file_is_told_so_without_a_hint(bench):
    reply = bench.run("before_model_callback", "")
    assert reply.error.message == "first.py defines no before_model_callback; it defines no function"


def test_an_async_function_is_awaited(bench):
    code = """
        import asyncio
        async def before_tool_callback(tool, input, callback_context):
            await asyncio.sleep(0)
            return {"answer": await other()}
        async def other():
            return 42
    """
    assert bench.run("before_tool_callback", code).returned == {"answer": 42}


def test_the_function_may_be_rebound_while_the_file_runs(bench):
    code = """
        def before_tool_callback(t, i, c): return {"old": 1}
        exec("def before_tool_callback(t, i, c): return {'new': 1}", globals())
    """
    assert bench.run("before_tool_callback", code).returned == {"new": 1}


def test_callbacks_of_a_chain_share_arguments_and_state(bench):
    reply = bench.run(
        "before_model_callback",
        "def before_model_callback(c, r):\n    c.state['seen'] = 1; r.model = 'other'; r.config.hide_tool('x')",
        "def before_model_callback(c, r):\n    c.state['seen'] += 1; r.contents.append(Content(parts=[Part(text=r.model)]))",
    )
    assert reply.set == {"seen": 2}
    request = reply.arguments["llm_request"]
    assert request["model"] == "other"
    assert request["config"] == {"excluded_tools": ["x"]}
    assert request["contents"][-1] == {"parts": [{"text": "other"}]}


def test_each_callback_of_a_chain_has_globals_of_its_own(bench):
    code = "count = globals().get('count', 0) + 1\ndef before_agent_callback(c):\n    c.state[__name__] = count\n"
    reply = bench.run("before_agent_callback", code, code)
    assert reply.set == {"user_code": 1, "user_code_2": 1}


IN_PLACE = {
    "before_model_callback": (
        "a[1].config.system_instruction = 'be brief'; a[1].append_instructions(['please'])",
        lambda args: args["llm_request"]["config"]["system_instruction"],
        {"parts": [{"text": "be brief"}, {"text": "please"}]},
    ),
    "after_model_callback": (
        "a[1].content.parts[0].text = 'redacted'",
        lambda args: args["llm_response"]["content"]["parts"],
        [{"text": "redacted"}],
    ),
    "before_tool_callback": ("a[1].update(id=2, extra=[3])", lambda args: args["input"], {"id": 2, "extra": [3]}),
    "after_tool_callback": (
        "a[3]['pet'] = {'kind': 'dog'}",
        lambda args: args["tool_response"],
        {"found": True, "pet": {"kind": "dog"}},
    ),
}


@pytest.mark.parametrize("hook", IN_PLACE)
def test_a_change_in_place_counts_without_a_return(bench, hook):
    statement, read, expected = IN_PLACE[hook]
    reply = bench.run(hook, f"def {hook}(*a):\n    {statement}\n")
    assert reply.answered_by is None
    assert read(reply.arguments) == expected


def test_arguments_nobody_touched_come_back_as_they_were(bench):
    arguments = {
        "llm_response": {"content": {"role": "model", "parts": [{"function_call": {"name": "f", "args": {"a": None}}}]}}
    }
    reply = bench.run("after_model_callback", defining("after_model_callback", "None"), arguments=arguments)
    assert reply.arguments == arguments


def test_what_is_left_in_an_argument_must_have_its_type(bench):
    reply = bench.run("after_model_callback", "def after_model_callback(c, r):\n    r.content = 'text'\n")
    assert reply.error.type == "WrongReturn"
    assert reply.error.message.startswith("llm_response.content: ")


def test_a_part_edited_to_hold_two_things_is_an_error(bench):
    code = "def after_model_callback(c, r):\n    r.content.parts[0].inline_data = Blob.from_json('{}')\n"
    reply = bench.run("after_model_callback", code)
    assert "exactly one field set; this one has text and inline_data" in reply.error.message


def test_an_error_takes_everything_with_it(bench):
    reply = bench.run(
        "before_tool_callback",
        "def before_tool_callback(t, i, c):\n    c.state['kept'] = 1; i['id'] = 7",
        "def before_tool_callback(t, i, c):\n    c.state['half'] = 1\n    raise ValueError('no')",
    )
    assert (reply.set, reply.remove, reply.arguments, reply.returned) == ({}, (), {}, None)
    assert (reply.error.type, reply.error.message, reply.error.file) == ("ValueError", "no", "second.py")


def test_returning_the_very_input_is_warned_about(bench):
    code = "def before_tool_callback(tool, input, c):\n    input['id'] = 2\n    return input\n"
    reply = bench.run("before_tool_callback", code)
    assert reply.returned == {"id": 2}
    assert "the tool does not run" in reply.warnings[0]
    copied = bench.run("before_tool_callback", code.replace("return input", "return dict(input)"))
    assert copied.warnings == ()


@pytest.mark.parametrize(
    ("hook", "code"),
    [
        (
            "before_model_callback",
            "def before_model_callback(c, r): return LlmResponse.from_parts([Part.from_json('{oops')])",
        ),
        ("after_model_callback", "def after_model_callback(c, r): r.content.parts.append(Part.from_json('NaN'))"),
    ],
)
def test_a_payload_that_is_no_json_is_an_error_of_the_callback(bench, hook, code):
    reply = bench.run(hook, code)
    assert reply.error.type == "WrongPayload"
    assert "the custom payload is not valid JSON" in reply.error.message


@pytest.mark.parametrize("payload", ['{"a": 1}', "[1]", '"text"'])
def test_any_json_is_a_payload(bench, payload):
    code = f"def before_model_callback(c, r): return LlmResponse.from_parts([Part.from_json({payload!r})])"
    assert bench.run("before_model_callback", code).error is None


def test_other_blobs_hold_what_they_like(bench):
    code = "def before_model_callback(c, r): return LlmResponse.from_parts([Part.from_inline_data(b'!', 'image/png')])"
    assert bench.run("before_model_callback", code).returned["content"]["parts"] == [
        {"inline_data": {"data": "!", "mime_type": "image/png"}}
    ]


def test_a_guardrail_runs_the_first_function_when_none_has_the_name(bench):
    code = "import json\ndef check(c, r):\n    return {'decision': 'TRIGGER', 'reason': r.content.parts[0].text}\ndef b(): 1/0\n"
    arguments = {"llm_response": {"content": {"parts": [{"text": "bad"}]}}}
    assert bench.run("after_model_guardrail", code, arguments=arguments).returned == {
        "decision": "TRIGGER",
        "reason": "bad",
    }


@pytest.mark.parametrize("function", ["fake_tool_call", "fake_lookup"])
def test_a_fake_tool_may_be_named_after_its_tool(bench, function):
    code = f"def {function}(tool, input, callback_context): return {{'faked': tool.name}}"
    assert bench.run("tool_fake", code).returned == {"faked": "lookup"}


def test_a_missing_or_unknown_argument_is_an_error_that_names_it(bench):
    code = defining("before_model_callback", "None")
    assert "argument llm_request: missing" in bench.run("before_model_callback", code, arguments={}).error.message
    extra = {"llm_request": {}, "tool": {}}
    assert "argument tool: unknown" in bench.run("before_model_callback", code, arguments=extra).error.message
