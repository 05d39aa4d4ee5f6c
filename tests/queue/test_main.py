"""How a worker process says that it cannot start."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pydantic
import pytest

from dispatcher.embedded import server_binary
from sandbox.contract import Outcome, Status
from sandbox.errors import TierTooLow
from sandbox.settings import Settings
from tests.queue.pretend import Pretend
from worker.__main__ import main, unpromised


def too_weak(settings: Settings) -> Pretend:
    raise TierTooLow("C", "B", ("pid_namespace",))


class Broken(Pretend):
    def run(self, job: object, host: object, cancelled: object = None, queue_ms: float = 0.0) -> Outcome:
        return Outcome("probe", Status.CRASHED, "killed by SIGSYS")


@pytest.mark.parametrize(
    ("url", "make_jail", "code", "said"),
    [
        ("unix:///nowhere", too_weak, 3, "tier C on this host, B needed"),
        ("unix:///nowhere", Broken, 3, "the sandbox of the probe ended with crashed: killed by SIGSYS"),
        ("http://nowhere", Pretend, 2, "'http://nowhere' is no address"),
    ],
)
def test_it_is_one_line_and_an_exit_status(
    url: str, make_jail: type[Pretend], code: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--pool", url], make_jail) == code
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_server_that_wants_another_password_ends_the_worker_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    socket = tmp_path / "s"
    options = ("--port", "0", "--unixsocket", str(socket), "--requirepass", "right", "--save", "")
    with subprocess.Popen([server_binary(), *options], stdout=subprocess.DEVNULL, cwd=tmp_path) as server:
        try:
            while not socket.exists():
                time.sleep(0.01)
            assert main(["--pool", f"unix://{socket}?password=wrong"], Pretend) == 3
        finally:
            server.terminate()
    (line,) = capsys.readouterr().err.splitlines()
    assert str(socket) in line
    assert "wrong" not in line.replace("wrong number", "")


def test_an_unknown_setting_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("HOOKPOOL_CONCURENCY", "3")
    assert main(["--pool", "unix:///nowhere"], Pretend) == 2
    assert "HOOKPOOL_CONCURENCY" in capsys.readouterr().err


def test_the_address_comes_from_the_environment_where_no_argument_gives_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("HOOKPOOL_POOL", raising=False)
    assert main([], Pretend) == 2
    assert capsys.readouterr().err == "HOOKPOOL_POOL: a worker needs the address of its queue, here or as --pool\n"
    monkeypatch.setenv("HOOKPOOL_POOL", "http://elsewhere")
    assert main([], Pretend) == 2
    assert "'http://elsewhere' is no address" in capsys.readouterr().err
    assert main(["--pool", "http://argument"], Pretend) == 2
    assert "'http://argument' is no address" in capsys.readouterr().err


def test_a_checkout_has_the_pydantic_that_callbacks_are_promised_and_a_worker_says_when_it_has_another() -> None:
    assert unpromised(pydantic.VERSION) == ""
    assert "2.14.4" in unpromised("2.14.4")
    assert "hookpool[worker]" in unpromised("2.110.1")
