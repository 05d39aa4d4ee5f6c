"""README.md cannot drift: its tables and its commands are held against the code."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

import dispatcher
from dispatcher.cli import COMMANDS, cli
from dispatcher.verdict import Verdict
from sandbox.contract import LIMIT_NAMES, Limits, Status
from sandbox.settings import PREFIX, Settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def default(name: str) -> str:
    """A setting's default as the table writes it."""
    value = Settings.model_fields[name].default
    return "" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def rows() -> dict[str, list[str]]:
    """The settings table: variable -> the other cells of its row."""
    found = re.findall(rf"^\|\s*`({PREFIX}\w+)`\s*\|(.*)\|\s*$", README, re.MULTILINE)
    return {name: [cell.strip().strip("`") for cell in rest.split("|")] for name, rest in found}


def test_every_setting_is_in_the_table_and_nothing_else() -> None:
    assert set(rows()) == {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}


@pytest.mark.parametrize("name", Settings.model_fields)
def test_a_row_has_the_default_and_the_description_of_its_field(name: str) -> None:
    cells = rows()[f"{PREFIX}{name.upper()}"]
    assert cells[0].replace(",", "").replace("_", "") == default(name).replace("_", "")
    assert cells[-1] == Settings.model_fields[name].description


def commands() -> list[list[str]]:
    """Every `hookpool ...` in the README's code blocks and code spans, as words, continued lines joined."""
    blocks = re.findall(r"^```(?:sh|bash|console|shell)?\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    found = [re.search(r"(?:^|\s)hookpool\s(.*)", line.partition(" #")[0]) for line in lines]
    spans = re.finditer(r"`hookpool ([^`]*)`", README)
    return [shlex.split(match[1]) for match in (*found, *spans) if match]


def options(name: str) -> set[str]:
    """The options a command has, by their long names."""
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    below = command.commands.values() if isinstance(command, click.Group) else ()
    return {o for c in (command, *below) for p in c.params for o in p.opts if isinstance(p, click.Option)}


def test_the_readme_shows_every_command_and_no_other() -> None:
    assert {words[0] for words in commands() if words and not words[0].startswith("-")} == set(COMMANDS)


def test_every_option_in_a_command_line_of_the_readme_exists() -> None:
    for name, *words in commands():
        assert {word for word in words if word.startswith("--")} <= options(name), f"hookpool {name} {words}"


@pytest.mark.parametrize("name", COMMANDS)
def test_the_row_of_a_command_names_all_its_options(name: str) -> None:
    (row,) = re.findall(rf"^\| `hookpool {name}\b.*$", README, re.MULTILINE)
    assert set(re.findall(r"--[a-z-]+", row)) == options(name)


def test_the_limits_table_has_every_limit_with_its_default() -> None:
    table = dict(re.findall(r"^\| `([a-z_]+)` \| (\d+) \|", README, re.MULTILINE))
    assert table == {
        name: f"{getattr(Limits(), name):g}" if name.endswith("_s") else str(getattr(Limits(), name))
        for name in LIMIT_NAMES
    }


def test_the_status_table_has_every_status() -> None:
    rows_ = re.findall(
        r"^\| ((?:`[a-z_]+` ?)+)\|", README.partition("| status |")[2].partition("\n\n")[0], re.MULTILINE
    )
    assert [Status(name) for row in rows_ for name in re.findall(r"`(\w+)`", row)] == list(Status)


def test_the_verdict_line_has_every_key_in_order() -> None:
    (line,) = re.findall(r"^`--json` prints one object: `([^`]*)`", README, re.MULTILINE)
    assert [word.partition("{")[0] for word in line.split()] == list(Verdict.model_fields)


def test_the_readmes_python_is_right_for_a_strict_type_checker(tmp_path: Path) -> None:
    """As in a program of one's own: without our configuration, by what the packages say of themselves."""
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    files = [tmp_path / f"block_{number}.py" for number, text in enumerate(blocks) if "google.adk" not in text]
    assert len(files) == len(blocks) - 1
    for file, text in zip(files, (text for text in blocks if "google.adk" not in text), strict=True):
        file.write_text(text)
    settings = tmp_path / "settings.py"
    settings.write_text(
        "from dispatcher import InProcess, Jail, Settings\n\npool = InProcess(Jail(Settings(waiting=1)))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file=", "--strict", "--follow-imports=silent", *files, settings],
        cwd=tmp_path, env={**os.environ, "MYPYPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.parametrize("package", ["dispatcher", "sandbox", "worker"])
def test_a_package_says_that_it_is_typed(package: str) -> None:
    assert (ROOT / package / "py.typed").is_file()


def test_what_dispatcher_offers_is_there() -> None:
    for name in dispatcher.__all__:
        assert getattr(dispatcher, name) is not None
