"""Evaluation from Python: the README's own example, and what goes wrong."""

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import ROOT

from dispatcher import InProcess, evaluate, evaluate_async
from sandbox.errors import InputError
from sandbox.jail import Jail
from sandbox.settings import Settings

GREET = """\
def before_agent_callback(callback_context):
    callback_context.variables["greeted"] = True
    return Content(parts=[Part(text=f"Hello, {callback_context.variables['guest']}!")], role="model")
"""
README = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def pool() -> Iterator[InProcess]:
    with InProcess(Jail(Settings()), workers=2) as transport:
        yield transport


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (case,) = [
        block for block in re.findall(r"^```yaml\n(.*?)^```", README, re.MULTILINE | re.DOTALL) if "greet.py" in block
    ]
    (tmp_path / "my_folder").mkdir()
    (tmp_path / "my_folder" / "greet.py").write_text(GREET)
    (tmp_path / "my_folder" / "cases.yaml").write_text(case)
    return tmp_path / "my_folder"


def test_the_readmes_example_runs_as_it_stands(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = [
        block
        for block in re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
        if "in evaluate(" in block
    ]
    monkeypatch.chdir(folder.parent)
    exec(compile(code, "README.md", "exec"), {})
    said = sorted(capsys.readouterr().out.splitlines())
    assert said == ["a guest called Ada is greeted holds", "a guest called Grace is greeted holds"]


def test_the_cases_of_the_app_or_of_a_file_hold(folder: Path, pool: InProcess) -> None:
    for given in (None, folder / "cases.yaml"):
        (result,) = evaluate(folder, given, pool)
        assert (result.case.name, result.passed) == ("the greeting names the guest", True)


def test_the_same_from_asyncio(folder: Path, pool: InProcess) -> None:
    async def names() -> list[str]:
        return [result.case.name async for result in evaluate_async(folder, None, pool)]

    assert asyncio.run(names()) == ["the greeting names the guest"]


def test_a_loop_that_is_left_cancels_what_is_out(folder: Path, pool: InProcess) -> None:
    many = [
        {
            "name": f"{number}",
            "hook": "before_agent_callback",
            "code": f"import time\ntime.sleep({number * 30})",
            "expect": {},
        }
        for number in range(4)
    ]
    results = evaluate(folder, many, pool)
    assert next(results).case.name == "0"
    results.close()
    (last,) = evaluate(folder, None, pool)
    assert last.passed


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (
            {"hook": "before_agent_callback", "callbacks": ["greet.py"], "expct": {}},
            "cases: unknown key 'expct' in case",
        ),
        ({"hook": "before_agent_callback", "callbacks": ["x.py"], "expect": {}}, "callback 'x.py': no such file"),
        (
            {"hook": "before_agent_callback", "code": "", "limits": {"wall_s": 901}, "expect": {}},
            "limit wall_s, 901, is above the deadline, 900",
        ),
        ({"hook": "before_agent_callback", "code": "", "expect": {"stdout": float("nan")}}, "nan is too large"),
        ({"hook": "before_agent_callback", "code": "", "expect": {"stdout": object()}}, "object is no JSON value"),
    ],
)
def test_a_case_that_cannot_be_used_is_an_input_error(
    folder: Path, pool: InProcess, given: dict[str, Any], why: str
) -> None:
    with pytest.raises(InputError, match=re.escape(why)):
        list(evaluate(folder, [given], pool))
