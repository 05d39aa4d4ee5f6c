"""`hookpool chat`, and `--tools` wherever it is: what is typed, what is shown, how it ends."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import AIRLINE, ENVIRON, ROOT, inside

from dispatcher.cli.hosts import open_hosts
from dispatcher.tools.base import names_of
from sandbox import codec
from sandbox.contract import Call

SCRIPT = AIRLINE / "chat.yaml"
CALLBACK = """
def before_agent_callback(c):
    c.variables["n"] = c.variables.get("n", 0) + 1
    if "crash" in str(c.user_content.parts):
        raise ValueError("as asked")
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    folder = tmp_path / "app" / "agents" / "Desk" / "before_agent_callbacks"
    folder.mkdir(parents=True)
    (folder / "count.py").write_text(CALLBACK)
    (tmp_path / "says.yaml").write_text("- hello\n- calls: [{name: weather, args: {city: Oslo}}]\n- Snow.\n")
    return tmp_path / "app"


def piped(*arguments: str, lines: str) -> tuple[int, str, str]:
    """A chat whose stdin is no terminal."""
    stdin, sys.stdin = sys.stdin, io.StringIO(lines)
    try:
        ended = inside("chat", *arguments)
    finally:
        sys.stdin = stdin
    return ended.code, ended.out, ended.err


def test_each_line_of_stdin_is_a_turn_and_commands_are_none(app: Path) -> None:
    lines = "hi\n/vars\n/trace\n\n/nonsense\n/reset\nagain\n/vars\n/quit\nnever\n"
    (app.parent / "says.yaml").write_text("- one\n- two\n- three\n")
    code, out, err = piped(str(app), "--script", str(app.parent / "says.yaml"), lines=lines)
    assert code == 0, err
    said = [line for line in out.splitlines() if not line.startswith(" ")]
    assert said == ["Desk: one", '{"n": 1}', "Desk: two", '{"n": 1}']
    assert "hook before_agent_callback  ok" in out
    assert err.splitlines() == ["/nonsense is no command; /help lists them", "a new session"]


def test_a_turn_that_fails_is_shown_with_its_reason_and_is_exit_1_and_the_talk_goes_on(app: Path) -> None:
    code, out, err = piped(str(app), "--script", str(app.parent / "says.yaml"), lines="please crash\nhi\n")
    assert code == 1
    assert err == ""
    assert "Desk: Sorry, something went wrong." in out
    assert "fallback: before_agent_callback of Desk: " in out
    assert "count.py:5: ValueError: as asked" in out
    assert out.splitlines()[-1] == "Desk: hello"


def test_under_raise_a_failed_turn_is_one_line(app: Path) -> None:
    code, out, err = piped(
        str(app), "--script", str(app.parent / "says.yaml"), "--on-error", "raise", lines="crash\nhi\n"
    )
    assert code == 1
    assert out == "Desk: hello\n"
    (line,) = err.splitlines()
    assert line.startswith("hookpool: before_agent_callback of Desk: ")
    assert line.endswith("ValueError: as asked")


def test_json_is_one_turn_a_line_with_its_trace(app: Path) -> None:
    code, out, _ = piped(str(app), "--script", str(app.parent / "says.yaml"), "--json", lines="hi\n")
    (turn,) = map(json.loads, out.splitlines())
    assert code == 0
    assert turn["outputs"] == [{"type": "text", "text": "hello"}]
    assert [span["name"] for span in turn["trace"]] == ["before_agent_callback", "model"]


def test_the_airlines_script_of_the_readme_talks() -> None:
    command = [sys.executable, "-m", "dispatcher.cli", "chat", str(AIRLINE), "--script", str(SCRIPT), "--trace"]
    lines = "hello\nqk7 p2m\nI want to talk to a person\n"
    ended = subprocess.run(
        command, check=False, input=lines, cwd=ROOT, env=ENVIRON, capture_output=True, text=True, timeout=240
    )
    assert (ended.returncode, ended.stderr) == (0, "")
    assert "Front Desk: Hello! What is your booking reference?" in ended.stdout
    assert 'payload {"type": "quick_replies"' in ended.stdout
    assert "I am connecting you with a colleague." in ended.stdout
    assert "guardrail No legal advice (after_model)" in ended.stdout


MISTAKES = {
    ("{app}",): "--script or --model-url: one of the two says what the model is",
    ("{app}", "--script", "nowhere.yaml"): "nowhere.yaml: no such file",
    ("{app}", "--script", "{says}", "--model-url", "http://127.0.0.1:1"): "one of the two says",
    ("{app}", "--model-url", "ftp://x"): "model url: 'ftp://x' is no http or https URL",
    ("{app}", "--script", "{bad}"): "bad.yaml:2: unknown key 'txt' in response; there are: text, calls",
    ("{app}", "--script", "{says}", "--agent", "Nobody"): "agent 'Nobody': no such agent; there are: Desk",
    ("{app}", "--script", "{says}", "--tools", "smoke:x"): "'smoke:x' is none of python:FILE",
    ("{app}", "--script", "{says}", "--tools", "http:schema.yaml"): "'http:schema.yaml' has no @URL",
    ("{app}", "--script", "{says}", "--tools", "python:nowhere.py"): "nowhere.py: no such file",
    ("{app}", "--script", "{says}", "--tools", "python:{broken}"): "broken.py:2: cannot be run: ZeroDivisionError",
    ("{app}", "--script", "{says}", "--tools", "python:{empty}"): "empty.py: defines no function",
    ("{app}", "--script", "{says}", "--tools", "python:{syntax}"): "syntax.py:1: cannot be run: SyntaxError",
    ("nowhere", "--script", "{says}"): "nowhere: no such file or folder",
}


@pytest.mark.parametrize("arguments", MISTAKES, ids=" ".join)
def test_a_mistake_is_one_line_and_exit_2(app: Path, arguments: tuple[str, ...]) -> None:
    here = app.parent
    for name, text in {
        "bad.yaml": "- hello\n- {txt: x}\n",
        "broken.py": "x = 1\ny = x / 0\n",
        "empty.py": "x = 1\n",
        "syntax.py": "def (:\n",
    }.items():
        (here / name).write_text(text)
    places = {
        name: str(here / f"{name}.{'yaml' if name in {'says', 'bad'} else 'py'}")
        for name in ("says", "bad", "broken", "empty", "syntax")
    }
    ended = inside("chat", *(one.format(app=app, **places) for one in arguments))
    assert (ended.code, ended.out) == (2, "")
    (line,) = ended.err.splitlines()
    assert MISTAKES[arguments] in line


TOOLS = """
def weather(city: str) -> dict:
    return {"city": city, "sky": "snow"}

def _private():
    raise AssertionError
"""


def test_the_functions_of_a_file_answer_tools_in_chat_run_and_eval(app: Path) -> None:
    here = app.parent
    (here / "my_tools.py").write_text(TOOLS)
    tools = ("--tools", f"python:{here / 'my_tools.py'}")
    _, out, _ = piped(str(app), "--script", str(here / "says.yaml"), *tools, lines="hi\nthe weather?\n")
    assert 'weather({"city": "Oslo"}) -> {"city": "Oslo", "sky": "snow"}' in out
    code = here / "cb.py"
    code.write_text("def before_agent_callback(c):\n    c.variables['sky'] = tools.weather(city='Bergen').json()\n")
    ended = inside("run", "--hook", "before_agent_callback", "--code", str(code), *tools, "--json")
    assert json.loads(ended.out)["variables"]["sky"] == {"result": {"city": "Bergen", "sky": "snow"}}
    cases = "- {name: a, hook: before_agent_callback, callbacks: [cb.py], expect: {variables: {sky: {result: {sky: SKY}}}}MORE}\n"
    folder = here / "cases"
    folder.mkdir()
    (folder / "cb.py").write_text(code.read_text())
    (folder / "cases.yaml").write_text(
        cases.replace("SKY", "snow").replace("MORE", "")
        + cases.replace("SKY", "sun")
        .replace("MORE", ", tools: {weather: {returns: {sky: sun}}}")
        .replace("name: a", "name: b")
        + "- {name: c, turns: [{user: hi, model: [calls: [{name: weather, args: {city: x}}], ok], expect: {tool_calls: [{response: {sky: snow}}]}}]}\n"
    )
    (folder / "before_agent_callback.py").write_text("def before_agent_callback(c):\n    return None\n")
    ended = inside("eval", str(folder), "--pool", "inline", *tools)
    assert ended.code == 0, ended.out


def test_an_mcp_server_and_an_openapi_schema_answer_tools(tmp_path: Path) -> None:
    server, schema = tmp_path / "server.py", tmp_path / "schema.yaml"
    server.write_text(
        "from mcp.server.fastmcp import FastMCP\nserver = FastMCP('w')\n"
        "@server.tool()\ndef weather(city: str) -> str:\n    return 'snow in ' + city\n"
        "server.run()\n"
    )
    schema.write_text("paths: {/bags: {get: {operationId: find_bag}}}\n")
    given = [("mcp", f"{sys.executable} {server}"), ("http", f"{schema}@http://127.0.0.1:1")]
    with open_hosts(given) as host:
        assert sorted(names_of(host)) == ["find_bag", "weather"]
        answer = host.call(Call(1, "tool", "weather", codec.pack({"city": "Oslo"})))
    assert "snow in Oslo" in answer.text


def talking(app: Path) -> tuple[subprocess.Popen[bytes], int]:
    """A chat that believes a person sits there; what it shows after a prompt ends with the next one."""
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "dispatcher.cli", "chat", str(app), "--script", str(app.parent / "says.yaml")]
    process = subprocess.Popen(
        command,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**ENVIRON, "TERM": "dumb"},
        cwd=ROOT,
        start_new_session=True,
    )
    os.close(theirs)
    return process, ours


def read_until(fd: int, wanted: str) -> str:
    seen, until = "", time.monotonic() + 60
    while wanted not in seen:
        assert time.monotonic() < until, seen
        if not select.select([fd], [], [], 1)[0]:
            continue
        try:
            seen += os.read(fd, 4096).decode()
        except OSError:  # the other side is gone
            break
    return seen


def pressed(process: subprocess.Popen[bytes], terminal: int, key: bytes | int) -> int:
    """The exit code after a key. An interrupt between two reads waits for the next, so it is pressed again, as people do."""
    for _ in range(30):
        if isinstance(key, bytes):
            os.write(terminal, key)
        else:
            process.send_signal(key)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(1)
    raise AssertionError("it did not end")


@pytest.mark.parametrize(("key", "code"), [(b"\x04", 0), (signal.SIGINT, 130)])
def test_in_a_terminal_ctrl_d_and_ctrl_c_end_it_cleanly(app: Path, key: bytes | int, code: int) -> None:
    process, terminal = talking(app)
    try:
        assert "you talk to Desk" in read_until(terminal, "> ")
        os.write(terminal, b"hi\n")
        assert "hello" in read_until(terminal, "\n> ")
        assert pressed(process, terminal, key) == code
        assert "Traceback" not in read_until(terminal, "\0")
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def test_ctrl_c_does_not_wait_for_a_tool_that_hangs(app: Path, tmp_path: Path) -> None:
    (app / "app.json").write_text('{"rootAgent": "Desk"}')
    (app / "agents" / "Desk" / "Desk.json").write_text('{"tools": ["slow"]}')
    says, tool, called = tmp_path / "calls.yaml", tmp_path / "tool.py", tmp_path / "called"
    says.write_text("- calls: [{name: slow, args: {}}]\n")
    tool.write_text(f"import time\ndef slow():\n    open({str(called)!r}, 'w').close()\n    time.sleep(200)\n")
    command = [sys.executable, "-m", "dispatcher.cli", "chat", str(app), "--script", str(says)]
    with subprocess.Popen(
        [*command, "--tools", f"python:{tool}"], stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRON, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write("hi\n")
        process.stdin.flush()
        until = time.monotonic() + 60
        while not called.exists():
            assert time.monotonic() < until
            time.sleep(0.02)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        assert process.wait(100) == 130
        assert time.monotonic() - began < 20
        assert "Traceback" not in process.stderr.read()
