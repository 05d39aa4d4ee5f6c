"""The plugin is installed without code: a class by its name, and a file that says which callbacks run where."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from google.adk.agents import LlmAgent
from google.adk.cli.fast_api import get_fast_api_app

from dispatcher.adk import HookpoolPlugin, app_callbacks
from dispatcher.adk.config import from_file
from sandbox.errors import InputError
from tests.adk.agents import model, run

AIRLINE = Path(__file__).parents[2] / "examples/airline"

FILE = """
pool: inline
on_error: fallback
fallback: Later, please.
limits: {wall_s: 5}
agents:
  "*":
    after_model_callback: [sign.py]
  desk:
    before_agent_callback:
      - {code: greet.py, proactive: false}
"""


@pytest.fixture
def file(tmp_path, monkeypatch) -> Path:
    (tmp_path / "sign.py").write_text("def after_model_callback(c, r):\n    r.content.parts[0].text += ' -- us'\n")
    (tmp_path / "greet.py").write_text("def before_agent_callback(c):\n    c.state['greeted'] = c.agent_name\n")
    (tmp_path / "hookpool.yaml").write_text(FILE)
    monkeypatch.setenv("HOOKPOOL_ADK", str(tmp_path / "hookpool.yaml"))
    return tmp_path / "hookpool.yaml"


def test_a_plugin_made_of_its_name_alone_does_what_the_file_says(file):
    done = run(LlmAgent(name="desk", model=model("hi")), [HookpoolPlugin(name="dispatcher.adk.HookpoolPlugin")])
    assert (done.error, done.texts, done.state) == (None, ["hi -- us"], {"greeted": "desk"})


@pytest.mark.filterwarnings("ignore:.EXPERIMENTAL:UserWarning")  # parts of the server, said once a process
def test_the_server_of_google_adk_loads_it_by_name_and_runs_it(file, tmp_path):
    desk = tmp_path / "agents/desk"
    desk.mkdir(parents=True)
    (desk / "__init__.py").write_text("from . import agent")
    (desk / "agent.py").write_text(
        "from google.adk.agents import LlmAgent\n"
        "from tests.adk.agents import model\n"
        "root_agent = LlmAgent(name='desk', model=model('hi'))\n"
    )
    app = get_fast_api_app(
        agents_dir=str(desk.parent), web=False, extra_plugins=["dispatcher.adk.HookpoolPlugin"],
        session_service_uri="memory://", artifact_service_uri="memory://",
    )  # fmt: skip

    async def main() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            made = (await client.post("/apps/desk/users/u/sessions", json={})).json()
            message = {"role": "user", "parts": [{"text": "hello"}]}
            return await client.post(
                "/run", json={"appName": "desk", "userId": "u", "sessionId": made["id"], "newMessage": message}
            )

    said = asyncio.run(main())
    assert said.status_code == 200, said.text
    assert said.json()[-1]["content"]["parts"][0]["text"] == "hi -- us"


WRONG = {
    "an unknown key": (FILE + "pol: x\n", "hookpool.yaml:12: unknown key 'pol'"),
    "an unknown hook": (FILE.replace("before_agent_callback", "befor_agent"), "hookpool.yaml:10: 'befor_agent' is no hook"),
    "a file that is not there": (FILE.replace("greet.py", "gone.py"), "gone.py: no such file"),
    "an unknown policy": (FILE.replace("fallback\n", "ignore\n", 1), "hookpool.yaml:3"),
    "a misspelt key of a callback": (FILE.replace("{code:", "{cod:"), "hookpool.yaml:11: unknown key 'cod' in the file agents.desk.before_agent_callback[0]"),
    "a callback of the wrong kind": (FILE.replace("[sign.py]", "[sign.py, 3]"), "hookpool.yaml:8: the file: agents.*.after_model_callback.1: Input should be a valid string or"),
    "a limit that is none": (FILE.replace("wall_s", "wal_s"), "limit wal_s"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_one_clear_line(file, name):
    text, said = WRONG[name]
    file.write_text(text)
    with pytest.raises(InputError) as wrong:
        from_file(file)
    assert said in str(wrong.value)


def test_an_exported_app_gives_the_callbacks_of_its_agents(tmp_path):
    table = app_callbacks(AIRLINE)
    assert {"Front_Desk", "Booking_Desk"} <= table.keys()
    assert [one.hook for one in table["Front_Desk"]].count("before_model_callback") == 2
    (tmp_path / "hookpool.yaml").write_text(f"pool: inline\napp: {AIRLINE}\nagents: {{}}\n")
    pool, listed = from_file(tmp_path / "hookpool.yaml")
    assert listed == table
    done = run(LlmAgent(name="Front_Desk", model=model("hi")), [HookpoolPlugin(pool, listed)], "hello", state={})
    pool.close()
    assert done.error is None


def test_what_of_an_app_is_not_run_is_told(tmp_path, caplog):
    hook = tmp_path / "agents/Desk/before_model_callbacks/one"
    hook.mkdir(parents=True)
    (hook / "python_code.py").write_text("def before_model_callback(c, r:\n")
    guard = tmp_path / "guardrails/Polite"
    guard.mkdir(parents=True)
    (guard / "Polite.json").write_text(
        '{"displayName": "Polite", "codeCallback": {"beforeAgentCallback": {"pythonCode": "x.py"}}}'
    )
    (tmp_path / "app.json").write_text('{"displayName": "App", "guardrails": ["Polite"]}')
    app_callbacks(tmp_path)
    assert "python_code.py:1" in caplog.text
    assert "Polite" in caplog.text


def test_agents_that_the_app_does_not_have_are_told(file, caplog):
    file.write_text(FILE.replace("  desk:", "  dekc:"))
    run(LlmAgent(name="desk", model=model("hi")), [HookpoolPlugin(name="p")])
    assert "does not have: dekc" in caplog.text


def test_a_pool_that_was_closed_is_opened_again(file):
    plugin = HookpoolPlugin(name="p")
    for _ in range(2):
        assert run(LlmAgent(name="desk", model=model("hi")), [plugin]).texts == ["hi -- us"]
    asyncio.run(plugin.close())
