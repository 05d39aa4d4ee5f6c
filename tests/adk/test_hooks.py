"""Every hook of an agent of google-adk runs in a sandbox, and what it did is done to the agent's own objects."""

from __future__ import annotations

from typing import Any

import pytest
from google.adk.agents import LlmAgent, SequentialAgent
from google.adk.models.llm_response import LlmResponse
from google.adk.tools import ToolContext
from google.genai import types

from tests.adk.agents import call, callback, content, model, plugin, run


def agent(llm: Any, **given: Any) -> LlmAgent:
    return LlmAgent(name="front_desk", model=llm, **given)


def add(a: int, b: int = 0) -> dict[str, int]:
    """Adds."""
    return {"sum": a + b}


def test_all_six_hooks_see_the_session_and_their_writes_are_its_state(transport):
    hooks = [
        callback(
            hook,
            f"""
            def {hook}({args}):
                ctx.state['log'] = ctx.state.get('log', []) + ['{hook}']
                assert (ctx.agent_name, ctx.user_content.parts[0].text) == ('front_desk', 'hello')
                assert ctx.events[0].author == 'user' and ctx.session_id and ctx.invocation_id
            """,
        )
        for hook, args in [
            ("before_agent_callback", "ctx"),
            ("before_model_callback", "ctx, request"),
            ("after_model_callback", "ctx, response"),
            ("before_tool_callback", "tool, args, ctx"),
            ("after_tool_callback", "tool, args, ctx, response"),
            ("after_agent_callback", "ctx"),
        ]
    ]
    llm = model(("add", {"a": 1}), "done")
    done = run(agent(llm, tools=[add]), [plugin(transport, hooks)])
    assert done.error is None
    assert done.state["log"] == [
        "before_agent_callback",
        "before_model_callback",
        "after_model_callback",
        "before_tool_callback",
        "after_tool_callback",
        "before_model_callback",
        "after_model_callback",
        "after_agent_callback",
    ]
    assert done.texts == ["done"]


def test_a_before_agent_callback_that_answers_is_the_reply(transport):
    llm = model("never")
    text = "def before_agent_callback(c):\n    return Content(parts=[Part.from_text('closed')])"
    done = run(agent(llm), [plugin(transport, [callback("before_agent_callback", text)])])
    assert (done.texts, llm.requests) == (["closed"], [])
    assert done.events[-1].content.role == "model"


def test_an_after_agent_callback_that_answers_is_appended(transport):
    text = "def after_agent_callback(c):\n    return Content(parts=[Part.from_text('bye')])"
    assert run(agent(model("hi")), [plugin(transport, [callback("after_agent_callback", text)])]).texts == ["hi", "bye"]


def test_a_before_model_callback_edits_the_request_and_untouched_parts_are_the_same_objects(transport):
    signed = types.Part(text="earlier", thought_signature=b"sig")
    thought = types.Part(text="I ponder", thought=True, thought_signature=b"deep")
    file = types.Part(file_data=types.FileData(file_uri="gs://b/f.pdf", mime_type="application/pdf"))
    llm = model(LlmResponse(content=content(thought, signed)), "done")
    text = """
    def before_model_callback(c, request):
        for content in request.contents:
            for part in content.parts:
                if part.text == 'secret':
                    part.text = '[redacted]'
        request.contents.append(Content(role='user', parts=[Part.from_text('be brief')]))
        request.append_instructions(['Be kind.'])
        request.model = 'other'
    """
    question = types.Content(role="user", parts=[types.Part(text="secret"), file])
    done = run(
        agent(llm, instruction="Be."),
        [plugin(transport, [callback("before_model_callback", text)])],
        question,
        "again",
    )
    assert done.error is None
    first, second = llm.requests
    assert first.model == "other"
    assert first.config.system_instruction.startswith("Be.")
    assert first.config.system_instruction.endswith("\n\nBe kind.")
    assert [part.text for part in first.contents[0].parts] == ["[redacted]", None]
    assert first.contents[0].parts[1].file_data is file.file_data
    assert [c.parts[0].text for c in first.contents[1:]] == ["be brief"]
    kept = second.contents[1].parts
    assert [(p.text, p.thought, p.thought_signature) for p in kept] == [
        ("I ponder", True, b"deep"),
        ("earlier", None, b"sig"),
    ]


def test_a_part_that_is_edited_keeps_what_the_runtime_does_not_show(transport):
    said = content(
        types.Part(function_call=types.FunctionCall(name="add", args={"a": 1}), thought_signature=b"s"),
    )
    text = "def after_model_callback(c, r):\n    for p in r.content.parts:\n        if p.function_call: p.function_call.args['b'] = 41"
    llm = model(LlmResponse(content=said), "done")
    done = run(agent(llm, tools=[add]), [plugin(transport, [callback("after_model_callback", text)])])
    assert done.answers == [{"sum": 42}]
    assert done.events[0].content.parts[0].thought_signature == b"s"


def test_a_returned_response_keeps_the_parts_it_repeats_and_what_the_model_call_cost(transport):
    usage = types.GenerateContentResponseUsageMetadata(total_token_count=7)
    signed = types.Part(text="hi", thought_signature=b"s")
    llm = model(LlmResponse(content=content(signed), usage_metadata=usage, finish_reason="STOP"))
    text = """
    def after_model_callback(c, r):
        return LlmResponse.from_parts([Part.from_text('well: '), *r.content.parts])
    """
    done = run(agent(llm), [plugin(transport, [callback("after_model_callback", text)])])
    (event,) = done.events
    assert [part.text for part in event.content.parts] == ["well: ", "hi"]
    assert event.content.parts[1].thought_signature == b"s"
    assert event.usage_metadata.total_token_count == 7


def test_a_hidden_tool_is_gone_from_the_request_and_cannot_be_called_either(transport):
    def drop() -> dict[str, bool]:
        """Drops everything."""
        raise AssertionError("it ran")

    text = "def before_model_callback(c, r):\n    r.config.hide_tool('drop')"
    llm = model(("drop", {}), "done")
    done = run(agent(llm, tools=[add, drop]), [plugin(transport, [callback("before_model_callback", text)])])
    assert done.error is None
    assert [d.name for tool in llm.requests[0].config.tools for d in tool.function_declarations] == ["add"]
    assert "no tool with that name" in done.answers[0]["error"]
    only = model("done")
    run(agent(only, tools=[drop]), [plugin(transport, [callback("before_model_callback", text)])])
    assert only.requests[0].config.tools is None


@pytest.mark.parametrize("hook", ["before_model_callback", "after_model_callback"])
def test_a_custom_payload_is_in_custom_metadata_and_never_in_the_models_input(transport, hook):
    text = f"""
    import json
    def {hook}(c, r):
        if len(c.events) > 1: return None
        chips = Part.from_json(json.dumps({{'chips': ['a']}}))
        return LlmResponse.from_parts([Part.from_text('pick'), chips, Part.from_json('[1]'), Part.from_customized_response(content='x')])
    """
    llm = model("hi", "more")
    done = run(agent(llm), [plugin(transport, [callback(hook, text)])], "one", "two")
    assert done.error is None
    said = done.events[0]
    assert said.custom_metadata["payloads"] == [{"chips": ["a"]}, {"value": [1]}]
    assert said.custom_metadata["agent_responses"][0]["content"] == "x"
    assert [part.text for part in said.content.parts] == ["pick"]
    seen = [part for request in llm.requests for c in request.contents for part in c.parts]
    assert seen
    assert all(part.inline_data is None for part in seen)


def test_a_payload_alone_is_an_answer_without_text(transport):
    text = "def after_model_callback(c, r):\n    r.content.parts = [Part.from_json('{\"a\": 1}')]"
    llm = model(LlmResponse(content=content("hi"), finish_reason="STOP"))
    done = run(agent(llm), [plugin(transport, [callback("after_model_callback", text)])])
    (event,) = done.events
    assert (event.error_code, event.content.parts, event.custom_metadata) == (None, [], {"payloads": [{"a": 1}]})


def test_the_users_own_json_file_is_no_payload(transport):
    file = types.Part(inline_data=types.Blob(data=b'{"a": 1}', mime_type="application/json"))
    llm = model("hi")
    text = "def before_model_callback(c, r):\n    r.contents[0].parts[0].text += '!'"
    run(
        agent(llm),
        [plugin(transport, [callback("before_model_callback", text)])],
        types.Content(role="user", parts=[types.Part(text="look"), file]),
    )
    assert llm.requests[0].contents[0].parts[0].text == "look!"
    assert llm.requests[0].contents[0].parts[1].inline_data is file.inline_data


def test_a_deleted_variable_is_a_tombstone(transport):
    text = "def before_agent_callback(c):\n    del c.state['gone']\n    c.state['cart']['items'].append(2)"
    done = run(
        agent(model("hi")),
        [plugin(transport, [callback("before_agent_callback", text)])],
        state={"gone": 1, "kept": 2, "cart": {"items": [1]}},
    )
    assert done.events[0].actions.state_delta == {"gone": None, "cart": {"items": [1, 2]}}
    assert done.state == {"gone": None, "kept": 2, "cart": {"items": [1, 2]}}


def test_a_variable_that_json_cannot_carry_is_not_shown_and_stays(transport, caplog):
    odd = object()

    async def put(callback_context):
        callback_context._invocation_context.session.state["odd"] = odd

    text = "def before_model_callback(c, r):\n    assert 'odd' not in c.state\n    c.state['seen'] = True"
    done = run(
        agent(model("hi"), before_agent_callback=put), [plugin(transport, [callback("before_model_callback", text)])]
    )
    assert (done.error, done.state["seen"]) == (None, True)
    assert "'odd'" in caplog.text


def test_tool_arguments_and_results_are_edited_in_place(transport):
    before = "def before_tool_callback(tool, args, c):\n    assert tool.name == 'add' and c.function_call_id\n    args['a'] = 40; args['b'] = 2"
    after = "def after_tool_callback(tool, args, c, response):\n    response['of'] = dict(args); del response['sum']"
    llm = model(("add", {"a": 1}), "done")
    chain = [callback("before_tool_callback", before), callback("after_tool_callback", after)]
    assert run(agent(llm, tools=[add]), [plugin(transport, chain)]).answers == [{"of": {"a": 40, "b": 2}}]


def test_a_result_that_is_no_object_is_shown_in_one(transport):
    def word() -> str:
        """A word."""
        return "moo"

    text = "def after_tool_callback(tool, args, c, response):\n    response['result'] += '!'"
    llm = model(("word", {}), "done")
    assert run(agent(llm, tools=[word]), [plugin(transport, [callback("after_tool_callback", text)])]).answers == [
        {"result": "moo!"}
    ]


def test_an_empty_dict_from_before_tool_is_the_result(transport):
    text = "def before_tool_callback(tool, args, c):\n    return {}"
    llm = model(("add", {"a": 1}), "done")
    assert run(agent(llm, tools=[add]), [plugin(transport, [callback("before_tool_callback", text)])]).answers == [{}]


def test_errors_of_the_model_and_of_a_tool_are_answered(transport):
    def broken() -> dict[str, int]:
        """Breaks."""
        raise ValueError("no such thing")

    on_tool = "def on_tool_error_callback(tool, args, c, error):\n    return {'told': f'{tool.name}: {error}'}"
    on_model = "def on_model_error_callback(c, request, error):\n    return LlmResponse.from_parts([Part.from_text(f'{error}, {len(request.contents)}')])"
    llm = model(("broken", {}), RuntimeError("429"))
    chain = [callback("on_tool_error_callback", on_tool), callback("on_model_error_callback", on_model)]
    done = run(agent(llm, tools=[broken]), [plugin(transport, chain)])
    assert done.error is None
    assert done.answers == [{"told": "broken: no such thing"}]
    assert done.texts == ["429, 3"]


def test_an_error_that_nobody_answers_ends_the_run(transport):
    text = "def on_model_error_callback(c, request, error):\n    c.state['seen'] = str(error)"
    done = run(agent(model(RuntimeError("429"))), [plugin(transport, [callback("on_model_error_callback", text)])])
    assert str(done.error) == "429"


def test_partial_responses_are_for_proactive_callbacks_only(transport):
    def counted(name: str, *, proactive: bool) -> Any:
        text = f"def after_model_callback(c, r):\n    c.state['{name}'] = c.state.get('{name}', 0) + 1\n    r.content.parts[0].text += '!'"
        return callback("after_model_callback", text, proactive=proactive)

    llm = model(
        [
            LlmResponse(content=content("h"), partial=True),
            LlmResponse(content=content("i"), partial=True),
            LlmResponse(content=content("hi"), partial=False),
        ]
    )
    chain = [counted("all", proactive=True), counted("last", proactive=False)]
    done = run(agent(llm), [plugin(transport, chain)], stream=True)
    assert done.error is None
    assert (done.texts, [e.partial for e in done.events]) == (["h!", "i!", "hi!!"], [True, True, False])
    assert (done.state["last"], done.state["all"]) == (1, 3)


def test_an_agents_own_callbacks_run_as_well_as_the_ones_of_all(transport):
    every = [callback("before_agent_callback", "def before_agent_callback(c):\n    c.state[c.agent_name] = 'all'")]
    own = [callback("before_agent_callback", "def before_agent_callback(c):\n    c.state[c.agent_name] += ' and own'")]
    one = LlmAgent(name="one", model=model("1"))
    two = LlmAgent(name="two", model=model("2"))
    with pytest.warns(DeprecationWarning, match="SequentialAgent"):
        both = SequentialAgent(name="both", sub_agents=[one, two])
    done = run(both, [plugin(transport, {"*": every, "two": own})])
    assert done.state == {"both": "all", "one": "all", "two": "all and own"}


def test_a_transfer_is_done_and_the_callbacks_of_the_other_agent_run(transport):
    desk = LlmAgent(name="desk", model=model("desk here"), description="A desk.")
    root = LlmAgent(name="root", model=model("never"), sub_agents=[desk])
    send = (
        "def before_model_callback(c, r):\n    return LlmResponse.from_parts([Part.from_agent_transfer(agent='desk')])"
    )
    sign = "def after_model_callback(c, r):\n    r.content.parts.append(Part.from_text(f'-- {c.agent_name}'))"
    table = {"root": [callback("before_model_callback", send)], "desk": [callback("after_model_callback", sign)]}
    done = run(root, [plugin(transport, table)])
    assert done.error is None
    assert done.texts == ["desk here", "-- desk"]


def test_callbacks_of_one_agent_need_no_plugin(transport):
    from dispatcher.adk import Hookpool

    pool = Hookpool(transport)
    guard = callback("before_tool_callback", "def before_tool_callback(tool, args, c):\n    args['b'] = 1")
    mark = callback("after_tool_callback", "def after_tool_callback(tool, args, c, r):\n    return {**r, 'ok': True}")
    seen = callback(
        "before_model_callback", "def before_model_callback(c, r):\n    c.state['n'] = c.state.get('n', 0) + 1"
    )
    last = callback(
        "after_agent_callback", "def after_agent_callback(c):\n    return Content(parts=[Part(text='bye')])"
    )
    fails = callback(
        "on_model_error_callback",
        "def on_model_error_callback(c, r, e):\n    return LlmResponse.from_parts([Part(text=str(e))])",
    )
    llm = model(("add", {"a": 1}), RuntimeError("busy"))
    done = run(
        agent(
            llm,
            tools=[add],
            before_tool_callback=pool.callback("before_tool_callback", guard),
            after_tool_callback=pool.callback("after_tool_callback", mark),
            before_model_callback=pool.callback("before_model_callback", seen),
            after_agent_callback=pool.callback("after_agent_callback", last),
            on_model_error_callback=pool.callback("on_model_error_callback", fails),
        )
    )
    assert (done.error, done.answers, done.state["n"], done.texts) == (
        None,
        [{"sum": 2, "ok": True}],
        2,
        ["busy", "bye"],
    )


def test_parallel_tools_of_one_session_take_turns(transport):
    """Each of six parallel calls counts up one variable, before and after its tool; none is lost."""
    import asyncio

    out: list[int] = []

    async def slow(n: int, tool_context: ToolContext) -> dict[str, int]:
        """Slow."""
        out.append(n)
        await asyncio.sleep(0.05)
        return {"n": n}

    count = "c.state['count'] = c.state.get('count', 0) + 1"
    chain = [
        callback("before_tool_callback", f"def before_tool_callback(tool, args, c):\n    {count}"),
        callback("after_tool_callback", f"def after_tool_callback(tool, args, c, r):\n    {count}"),
    ]
    llm = model(LlmResponse(content=content(*(call("slow", {"n": n}) for n in range(6)))), "done")
    done = run(agent(llm, tools=[slow]), [plugin(transport, chain)])
    assert (done.error, done.state["count"], sorted(out)) == (None, 12, list(range(6)))
    assert [answer["n"] for answer in done.answers] == list(range(6))
