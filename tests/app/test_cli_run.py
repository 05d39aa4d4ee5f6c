"""`hookpool run`: exit codes, one line for each mistake, JSON and nothing else where JSON was asked for."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from command import family, hookpool, inside, silence, start

from dispatcher.embedded import server_binary

CALLBACK = """\
def before_agent_callback(callback_context):
    state = callback_context.variables
    state["counter"] = state.get("counter", 0) + 1
    state["profile"]["contact"]["channel"] = "web"
    del state["token"]
    print("counted", state["counter"])
"""
CONTEXT = {
    "sessionId": "s1",
    "variables": {"counter": 1, "profile": {"contact": {"channel": "phone"}}, "token": "t", "kept": 5},
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cb.py").write_text(CALLBACK)
    (tmp_path / "ctx.json").write_text(json.dumps(CONTEXT))
    return tmp_path


def test_a_run_counts_edits_deletes_and_prints_and_the_verdict_has_exactly_that(folder: Path) -> None:
    ended = hookpool(
        "run", "--hook", "before_agent_callback", "--code", "cb.py", "--context", "ctx.json", "--json", cwd=folder
    )
    assert (ended.code, ended.err) == (0, "")
    verdict = json.loads(ended.out)
    assert verdict["status"] == "ok"
    assert verdict["state_delta"] == {
        "set": {"counter": 2, "profile": {"contact": {"channel": "web"}}},
        "remove": ["token"],
    }
    assert verdict["variables"] == {"counter": 2, "profile": {"contact": {"channel": "web"}}, "kept": 5}
    assert verdict["stdout"] == "counted 2\n"
    assert (verdict["returned"], verdict["answered_by"], verdict["error"]) == (None, None, None)


def test_json_is_exactly_one_object_with_every_key_of_a_verdict(folder: Path) -> None:
    from dispatcher.verdict import Verdict

    ended = hookpool(
        "run", "--hook", "before_agent_callback", "--code", "cb.py", "--context", "ctx.json", "--json", cwd=folder
    )
    decoder = json.JSONDecoder()
    verdict, end = decoder.raw_decode(ended.out)
    assert ended.out[end:] == "\n"
    assert set(verdict) == set(Verdict.model_fields)


def test_json_is_pure_although_the_callback_prints_what_looks_like_it(folder: Path) -> None:
    (folder / "cb.py").write_text(
        'def before_agent_callback(c):\n    print(\'{"status": "ok"}\')\n    raise ValueError("no")\n'
    )
    ended = hookpool("run", "--hook", "before_agent_callback", "--code", "cb.py", "--json", cwd=folder)
    assert ended.code == 1
    assert json.loads(ended.out)["status"] == "callback_error"


def test_without_json_a_person_can_read_it(folder: Path) -> None:
    ended = hookpool("run", "--hook", "before_agent_callback", "--code", "cb.py", "--context", "ctx.json", cwd=folder)
    assert ended.code == 0
    for said in ("✓ ok", "+ counter = 2", "- token", "│ counted 2"):
        assert said in ended.out
    assert "\x1b" not in ended.out, "no colours in a pipe"


def test_an_exception_is_exit_1_with_the_users_file_and_line(folder: Path) -> None:
    ended = hookpool("run", "--hook", "before_agent_callback", "--code", "cb.py", cwd=folder)
    assert ended.code == 1
    assert "cb.py:4: KeyError: 'profile'" in ended.out
    assert "dispatcher/" not in ended.out + ended.err


def test_arguments_are_read_in_both_spellings_and_shown_after_the_hook(folder: Path) -> None:
    (folder / "cb.py").write_text("def before_tool_callback(tool, args, ctx):\n    args['seen'] = tool.name\n")
    for spelt in ('{"tool": {"name": "t"}, "input": {"a": 1}}', '{"tool": "t", "input": {"a": 1}}'):
        (folder / "args.json").write_text(spelt)
        ended = hookpool(
            "run", "--hook", "before_tool_callback", "--code", "cb.py", "--arguments", "args.json", "--json", cwd=folder
        )
        assert json.loads(ended.out)["arguments"]["input"] == {"a": 1, "seen": "t"}


def test_several_callbacks_are_one_chain(folder: Path) -> None:
    (folder / "one.py").write_text("def before_agent_callback(c):\n    c.variables['order'] = ['one']\n")
    (folder / "two.py").write_text(
        "def before_agent_callback(c):\n    c.variables['order'].append('two')\n    return Content(parts=[Part(text='hi')])\n"
    )
    ended = hookpool(
        "run", "--hook", "before_agent_callback", "--code", "one.py", "--code", "two.py", "--json", cwd=folder
    )
    verdict = json.loads(ended.out)
    assert (verdict["variables"], verdict["answered_by"]) == ({"order": ["one", "two"]}, "two.py")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def before_agent_callback(c):\n    return (\n", "cb.py:2"),
        ("def helper():\n    pass\n", "helper"),
        ("def beforeAgentCallback(c):\n    pass\n", "beforeAgentCallback"),
    ],
    ids=["syntax error", "no such function", "another spelling"],
)
def test_code_that_cannot_be_loaded_is_one_clear_line(folder: Path, text: str, said: str) -> None:
    (folder / "cb.py").write_text(text)
    ended = hookpool("run", "--hook", "before_agent_callback", "--code", "cb.py", cwd=folder)
    assert ended.code == 1
    lines = (ended.out + ended.err).splitlines()
    assert len(lines) == 1
    assert said in lines[0]
    assert lines[0].startswith("cb.py")


def test_a_refused_state_still_shows_what_the_code_printed(folder: Path) -> None:
    (folder / "cb.py").write_text("def before_agent_callback(c):\n    print('important')\n    c.state['s'] = {1}\n")
    ended = hookpool("run", "--hook", "before_agent_callback", "--code", "cb.py", cwd=folder)
    assert ended.code == 1
    assert "variables.s: set" in ended.out
    assert "important" in ended.out
    assert "sandbox." not in ended.out


def test_a_memory_error_with_a_text_is_the_codes_own(folder: Path) -> None:
    (folder / "cb.py").write_text("def before_agent_callback(c):\n    raise MemoryError('mine')\n")
    ended = hookpool("run", "--hook", "before_agent_callback", "--code", "cb.py", "--json", cwd=folder)
    assert json.loads(ended.out)["status"] == "callback_error"


MISTAKES = {
    "missing code": (("--code", "nowhere.py"), "nowhere.py: no such file"),
    "a folder as code": (("--code", "."), ".: is a directory"),
    "code that is not UTF-8": (("--code", "latin.py"), "latin.py:2: not UTF-8: byte 0xe9 at offset 7"),
    "bad JSON": (("--code", "cb.py", "--context", "bad.json"), "bad.json:2: not JSON: Expecting property name"),
    "an unknown key": (("--code", "cb.py", "--context", "odd.json"), "odd.json:2: unknown key 'varables' in context"),
    "an unknown argument": (("--code", "cb.py", "--arguments", "odd.json"), "odd.json:2: arguments.varables: unknown"),
    "an unknown limit": (("--code", "cb.py", "--limit", "wall=3"), "limit wall=3: NAME=VALUE is needed, NAME one of wall_s"),
    "a limit that is no number": (("--code", "cb.py", "--limit", "wall_s=soon"), "limit wall_s: must be a number, got 'soon'"),
    "a limit below zero": (("--code", "cb.py", "--limit", "wall_s=-1"), "limit wall_s: must be a number above 0"),
    "half a mebibyte": (("--code", "cb.py", "--limit", "memory_mb=1.5"), "limit memory_mb: must be a whole number, got 1.5"),
    "an endless limit": (("--code", "cb.py", "--limit", "wall_s=inf"), "limit wall_s: must be a finite number, got inf"),
    "a bad event": (("--code", "cb.py", "--context", "event.json"), "event.json:2: context: events.0.author: Input should"),
    "a port that is none": (("--code", "cb.py", "--pool", "redis://127.0.0.1:99999"), "Port out of range"),
    "an unknown pool": (("--code", "cb.py", "--pool", "amqp://x"), "'amqp://x' is none of inline, embedded, redis://"),
    "an unknown option": (("--code", "cb.py", "--colour"), "No such option '--colour'"),
    "no code at all": ((), "Missing option '--code'"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_exit_2_and_one_line_that_names_it(folder: Path, mistake: str) -> None:
    (folder / "latin.py").write_bytes(b"# ok\n# \xe9\n")
    (folder / "bad.json").write_text('{"variables": {},\n oops}')
    (folder / "odd.json").write_text('{\n"varables": {}}')
    (folder / "event.json").write_text('{"events": [\n{"author": 5}]}')
    arguments, said = MISTAKES[mistake]
    ended = inside("run", "--hook", "before_agent_callback", *arguments, cwd=folder)
    assert (ended.code, ended.out) == (2, "")
    (line,) = ended.err.splitlines()
    assert said in line
    assert line.startswith("hookpool")


def test_a_mistake_is_the_same_in_a_process_of_its_own(folder: Path) -> None:
    ended = hookpool("run", "--hook", "before_agent_callback", "--code", "nowhere.py", "--json", cwd=folder)
    assert (ended.code, ended.out, ended.err) == (2, "", "hookpool: nowhere.py: no such file\n")


def test_a_bad_setting_is_exit_2_and_names_the_variable(folder: Path) -> None:
    ended = hookpool("run", "--hook", "before_agent_callback", "--code", "cb.py", cwd=folder, HOOKPOOL_WAITING="many")
    assert ended.code == 2
    assert ended.err.startswith("hookpool: HOOKPOOL_WAITING: ")
    assert len(ended.err.splitlines()) == 1


def test_a_pool_that_cannot_be_reached_is_exit_3_and_one_line(folder: Path) -> None:
    ended = hookpool(
        "run", "--hook", "before_agent_callback", "--code", "cb.py", "--pool", "redis://127.0.0.1:1/0", cwd=folder
    )
    assert (ended.code, ended.out) == (3, "")
    assert len(ended.err.splitlines()) == 1
    assert "127.0.0.1:1" in ended.err


def test_a_pool_without_a_worker_is_said_and_not_waited_for(folder: Path) -> None:
    socket = folder / "s"
    options = ("--port", "0", "--unixsocket", str(socket), "--save", "")
    with subprocess.Popen([server_binary(), *options], stdout=subprocess.DEVNULL, cwd=folder) as server:
        try:
            ended = hookpool(
                "run", "--hook", "before_agent_callback", "--code", "cb.py", "--pool", f"unix://{socket}", cwd=folder
            )
        finally:
            server.terminate()
    assert (ended.code, ended.out) == (3, "")
    (line,) = ended.err.splitlines()
    assert "no worker is ready there" in line


def test_a_limit_is_a_status_and_exit_1(folder: Path) -> None:
    (folder / "cb.py").write_text("import time\ndef before_agent_callback(c):\n    time.sleep(60)\n")
    began = time.monotonic()
    ended = hookpool(
        "run", "--hook", "before_agent_callback", "--code", "cb.py", "--limit", "wall_s=0.5", "--json", cwd=folder
    )
    assert (ended.code, json.loads(ended.out)["status"]) == (1, "time_limit")
    assert time.monotonic() - began < 50  # of the sixty seconds it would sleep


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_quietly_and_leaves_nothing(folder: Path, number: int, code: int) -> None:
    with silence() as (url, environ, asked):
        (folder / "cb.py").write_text(f"def before_agent_callback(c):\n    ces_requests.get({url!r})\n")
        with (
            start("run", "--hook", "before_agent_callback", "--code", "cb.py", cwd=folder, **environ) as process,
            family(process) as alive,
        ):
            asked()
            process.send_signal(number)
            out, err = process.communicate(timeout=240)
    assert (process.returncode, out, err) == (code, "", "")
    assert alive() == []


def test_a_reader_that_went_away_is_no_traceback(folder: Path) -> None:
    with start(
        "run", "--hook", "before_agent_callback", "--code", "cb.py", "--context", "ctx.json", cwd=folder
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == "hookpool: standard output: Broken pipe\n"
    assert process.returncode == 141


def test_a_key_that_nobody_will_see_is_a_warning_with_its_line(folder: Path) -> None:
    (folder / "ctx.json").write_text(
        '{"variables": {"profile": {"contact": {}}, "token": 1},\n"events": [{"content": {"parts": [{"txt": "a"}]}}]}'
    )
    ended = inside(
        "run", "--hook", "before_agent_callback", "--code", "cb.py", "--context", "ctx.json", "--json", cwd=folder
    )
    assert ended.code == 0
    assert ended.err == "warning: ctx.json:2: unknown key events[0].content.parts[0].txt, ignored\n"


def test_a_limit_above_the_ceiling_is_cut_and_said(folder: Path) -> None:
    options = ("--limit", "wall_s=700", "--limit", "calls=5000", "--context", "ctx.json", "--json")
    for pool in ("inline", "embedded"):
        ended = inside(
            "run", "--hook", "before_agent_callback", "--code", "cb.py", *options, "--pool", pool, cwd=folder
        )
        assert json.loads(ended.out)["warnings"] == [
            "limit wall_s: 700 is above the 600 this worker allows, which it had (HOOKPOOL_MAX_WALL_S)",
            "limit calls: 5000 is above the 1000 this worker allows, which it had (HOOKPOOL_MAX_CALLS)",
        ]


def test_a_long_message_is_cut_in_the_detail_and_whole_in_the_error(folder: Path) -> None:
    (folder / "cb.py").write_text("def before_agent_callback(c):\n    raise ValueError('x' * 6000)\n")
    ended = inside("run", "--hook", "before_agent_callback", "--code", "cb.py", "--json", cwd=folder)
    verdict = json.loads(ended.out)
    assert len(verdict["detail"]) < 600
    assert verdict["error"]["message"] == "x" * 6000


@pytest.mark.parametrize("pool", ["inline", "embedded"])
@pytest.mark.parametrize("slow", ["def slow(): time.sleep(200)", "async def slow(): await asyncio.sleep(200)"])
def test_a_tool_that_hangs_keeps_nobody_once_its_invocation_has_ended(folder: Path, pool: str, slow: str) -> None:
    (folder / "cb.py").write_text("def before_agent_callback(callback_context):\n    tools.slow({})\n")
    (folder / "mine.py").write_text(f"import asyncio, time\n{slow}\n")
    began = time.monotonic()
    ended = hookpool(
        *("run", "--hook", "before_agent_callback", "--code", "cb.py", "--tools", "python:mine.py"),
        *("--limit", "wall_s=1", "--pool", pool),
        cwd=folder,
    )
    assert ended.code == 1
    assert "limit 1 s (limit wall_s)" in ended.out
    assert time.monotonic() - began < 100
