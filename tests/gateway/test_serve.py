"""`hookpool serve` as a process: what README shows works, a signal is an orderly end, and wrong usage is a line."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from dispatcher.gateway import keys
from dispatcher.gateway.edge import Gateway
from tests.gateway.conftest import Served
from tests.gateway.kit import COUNT, ROOT, Answer, Client, serving, until

README = (ROOT / "README.md").read_text()
SECTION = README.partition("## From another language\n")[2].partition("\n## ")[0]


@contextmanager
def process(*words: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command, and its address once it has said it."""
    command = [sys.executable, "-m", "dispatcher.cli", "serve", "--port", "0", *words]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as running:
        try:
            assert running.stderr is not None
            said = next(found for line in running.stderr if (found := re.search(r"http://\S+:\d+", line)))
            yield running, said[0]
        finally:
            running.kill()


def test_what_the_readme_shows_works_and_a_signal_is_an_orderly_end() -> None:
    """Every curl of the section, as it is but for the port. Then SIGTERM: what runs is finished, and it ends."""
    ((served, *calls),) = [re.findall(r"^```sh\n(.*?)^```", SECTION, re.MULTILINE | re.DOTALL)]
    words = served.split()
    assert words[:2] == ["hookpool", "serve"]
    with process("--pool", "inline", *words[2:]) as (running, url):
        said = []
        for call in "".join(calls).replace("http://127.0.0.1:8080", url).split("curl -s ")[1:]:
            out = subprocess.run(
                ["bash", "-c", f"curl -s -w ' %{{http_code}}' {call}"],
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            ).stdout
            said.append(out)
        assert [out[-3:] for out in said] == ["200", "200", "200", "204"]
        assert '"state_delta":{"set":{"counter":2}' in said[0]
        assert "How can I help?" in said[1]

        answers: list[Answer] = []
        slow = f"import time\n{COUNT}    time.sleep(1.5)\n"
        thread = threading.Thread(target=lambda: answers.append(Client(url).invoke("slow", slow)))
        assert running.stderr is not None
        thread.start()
        until(lambda: Client(url)("GET", "/v1/sessions/slow").status == 200)  # it is on its way
        running.send_signal(signal.SIGTERM)
        thread.join(30)
        assert (answers[0].status, answers[0].json["variables"]) == (200, {"counter": 1})
        log = running.stderr.read()
        assert running.wait(30) == 143
        assert "Traceback" not in log


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--host", "0.0.0.0"], "--keys FILE"),
        (["--keys", "nowhere"], "nowhere: no such file"),
        (["--app", "airline"], "NAME=PATH is needed"),
        (["--app", "a=nowhere"], "nowhere"),
        (["--new-key", "no spaces"], "no name"),
        (["--model-url", "ftp://x"], "no http or https URL"),
        (["--pool", "nonsense"], "none of inline, embedded"),
    ],
)
def test_wrong_usage_is_one_line(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    from dispatcher import cli

    assert cli._run(["serve", *words]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_without_the_extra_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from dispatcher import cli

    for name in [name for name in sys.modules if name.startswith("dispatcher.gateway")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette.exceptions", None)
    assert cli._run(["serve"]) == 2
    assert "pip install 'hookpool[serve]'" in capsys.readouterr().err


def test_a_new_key_opens_the_gateway_that_has_its_line(
    served: Served, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from dispatcher import cli

    assert cli._run(["serve", "--new-key", "backend:red"]) == 0
    secret, line = capsys.readouterr().out.split()
    (tmp_path / "keys").write_text(line + "\n")
    with serving(Gateway(served.backend, keys.read(tmp_path / "keys"))) as url:
        assert Client(url, secret).invoke("new-key").json["variables"] == {"counter": 1}
        assert Client(url, served.red.secret).invoke("new-key").status == 401
    assert served.red("GET", "/v1/sessions/new-key").status == 200  # the tenant is that of the line
