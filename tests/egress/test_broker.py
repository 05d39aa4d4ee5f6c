"""The broker as a process: what it is, what it has, and what becomes of calls when it dies."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from sandbox import codec
from sandbox.egress import policy as rules
from sandbox.egress.policy import Budgets, Plan, Policy
from sandbox.outlet import frames
from sandbox.outlet.process import Outlet
from tests.egress.sites import PUBLIC, PUBLIC6, NameServer, Site, answer, endlessly, silence

ROOT = Path(__file__).parents[2]


def plan(*sites: Site, **more) -> Plan:
    policy = Policy(allow=rules.networks(f"{PUBLIC} {PUBLIC6}"), ports=tuple(site.port for site in sites) or (80, 443))
    return Plan(policy=policy, uid=60999, **more)


def arguments(url: str, method: str = "GET", **more) -> bytes:
    bare = {"params": [], "headers": [], "body": None, "timeout": None, "allow_redirects": True}
    return codec.pack({"method": method, "url": url, **bare, **more})


def ask(outlet: Outlet, url: str, within_s: float = 10, invocation: str = "i", **more) -> frames.Answer:
    return outlet.ask(invocation, arguments(url, **more), within_s)


@contextlib.contextmanager
def running(*sites: Site, **more):
    outlet = Outlet(plan(*sites, **more))
    try:
        yield outlet
    finally:
        outlet.close()


@pytest.fixture(scope="module")
def hello():
    with Site(lambda _: answer("hello")) as site:
        yield site


@pytest.fixture(scope="module")
def outlet(hello):
    with running(hello) as outlet:
        yield outlet


def status(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return dict(line.split(":\t", 1) for line in lines if ":\t" in line)


def test_it_answers(outlet, hello) -> None:
    got = ask(outlet, hello.url)
    assert (got.status_code, got.text) == (200, "hello")


def test_every_layer_of_its_lockdown_holds_here(outlet, hello) -> None:
    ask(outlet, hello.url)
    assert outlet.ready["ready"] == [
        "rlimits", "own_uid", "no_capabilities", "no_new_privs", "not_dumpable", "landlock", "seccomp",
    ]  # fmt: skip
    facts = status(outlet.pid)
    assert (facts["NoNewPrivs"], facts["Seccomp"], int(facts["CapEff"], 16), int(facts["CapPrm"], 16)) == (
        "1",
        "2",
        0,
        0,
    )
    if os.geteuid() == 0:
        assert set(facts["Uid"].split()) == set(facts["Gid"].split()) == {"60999"}
        assert facts["Groups"].strip() == ""


def test_it_leaves_groups_behind_and_capabilities_even_where_it_stays_root() -> None:
    groups = os.getgroups()
    if os.geteuid() == 0:
        os.setgroups([4, 20])
    try:
        for uid in (60999, 0):
            outlet = Outlet(Plan(uid=uid))
            ask(outlet, "http://10.0.0.1/")
            facts = status(outlet.pid)
            outlet.close()
            assert (int(facts["CapEff"], 16), int(facts["CapPrm"], 16)) == (0, 0)
            assert uid == 0 or os.geteuid() != 0 or facts["Groups"].strip() == ""
    finally:
        if os.geteuid() == 0:
            os.setgroups(groups)


def test_it_has_one_socket_and_no_environment(outlet, hello) -> None:
    ask(outlet, hello.url)
    links = [str(fd.readlink()) for fd in Path(f"/proc/{outlet.pid}/fd").iterdir()]
    assert links.count("/dev/null") == 3
    assert links.count("anon_inode:[eventpoll]") == 1
    own = [link for link in links if link.startswith("socket:")]
    assert len(links) == 4 + len(own)
    assert len(own) <= 4  # its channel, the loop's own pair, and the kept connection of the invocation above
    environ = Path(f"/proc/{outlet.pid}/environ").read_bytes().split(b"\0")
    assert [entry for entry in environ if entry and not entry.startswith(b"LD_LIBRARY_PATH=")] == []


def test_its_parent_has_no_descriptor_that_it_could_have_got(outlet) -> None:
    """What the worker holds is not there: a secret file that is open here is closed there."""
    with open(ROOT / "pyproject.toml") as secret:
        os.set_inheritable(secret.fileno(), True)
        with running() as another:
            ask(another, "http://10.0.0.1/")
            links = [str(fd.readlink()) for fd in Path(f"/proc/{another.pid}/fd").iterdir()]
    assert not any("pyproject" in link for link in links)


ATTEMPTS = {
    "fork": "os.fork() or os._exit(0)",
    "a file of the system": "open('/proc/self/status').read()",
    "a file of ours": f"open({str(ROOT / 'pyproject.toml')!r}).read()",
    "writing": "open('/tmp/hookpool-broker', 'w')",
    "another port": "socket.create_connection(('127.0.0.1', other))",
    "listening": "socket.create_server(('127.0.0.1', 0))",
    "a signal to its parent": "os.kill(os.getppid(), 0)",
    "a raw socket": "socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)",
    "root": "os.setuid(0)",
    "a program": "os.execv('/bin/true', ['true'])",
}

TRY = """
import json, os, socket, sys
from sandbox.egress.policy import Plan, Policy
from sandbox.outlet import confine
how, other, allowed, attempts = json.loads(sys.argv[1])
plan = Plan(policy=Policy(ports=(allowed,)), uid=60999, resolvers=(("127.0.0.1", 53),))
if how == "confined":
    confine.confine(plan, os.getppid())
socket.create_connection(("127.0.0.2", allowed)).close()
for name, attempt in attempts.items():
    print(end=name, flush=True)
    try:
        exec(attempt)
    except PermissionError:
        print(" refused", flush=True)
    else:
        print(" done", flush=True)
"""


@pytest.mark.parametrize("how", ["confined", "open"])
def test_what_it_gave_up_it_cannot_do(how: str, hello) -> None:
    """Each attempt after the very lockdown and, as a control, without it."""
    with Site(lambda _: None, host="127.0.0.1") as other:
        order = json.dumps([how, other.port, hello.port, ATTEMPTS])
        ended = subprocess.run(
            [sys.executable, "-c", TRY, order], cwd=ROOT, capture_output=True, text=True, check=False
        )
    Path("/tmp/hookpool-broker").unlink(missing_ok=True)
    told = "refused" if how == "confined" else "done"
    assert ended.stdout.splitlines() == [f"{name} {told}" for name in ATTEMPTS if name != "a program"] + ["a program"]
    assert ended.returncode == (-signal.SIGSYS if how == "confined" else 0)


def test_it_dies_and_calls_in_flight_fail_and_the_next_one_works(hello) -> None:
    with Site(lambda _: silence) as silent, running(hello, silent) as outlet:
        ask(outlet, hello.url)
        got: list[frames.Answer] = []
        threads = [threading.Thread(target=lambda: got.append(ask(outlet, silent.url, 30))) for _ in range(5)]
        for thread in threads:
            thread.start()
        while len(silent.seen) < 5:
            time.sleep(0.01)
        first = outlet.pid
        os.kill(first, signal.SIGKILL)
        for thread in threads:
            thread.join(20)  # of the thirty seconds they would wait
        assert {answer.reason for answer in got} == {"internal_error: the HTTP broker died"}
        assert len(got) == 5
        assert ask(outlet, hello.url).status_code == 200
        assert outlet.pid != first
        assert outlet.starts == 2


def test_one_that_stopped_is_killed_and_replaced_and_no_call_hangs(hello, monkeypatch) -> None:
    monkeypatch.setattr("sandbox.outlet.process.LATE_S", 0.3)
    with running(hello) as outlet:
        ask(outlet, hello.url)
        os.kill(outlet.pid, signal.SIGSTOP)
        assert ask(outlet, hello.url, 0.3).reason == "internal_error: the HTTP broker died"
        assert ask(outlet, hello.url).status_code == 200


def test_one_that_reads_no_more_is_killed_and_replaced(hello, monkeypatch) -> None:
    monkeypatch.setattr("sandbox.outlet.process.SEND_S", 1)
    with running(hello) as outlet:
        ask(outlet, hello.url)
        os.kill(outlet.pid, signal.SIGSTOP)
        got = ask(outlet, hello.url, 20, method="POST", body=bytes(3 << 20))
        assert got.reason == "internal_error: the HTTP broker took no request in time"
        assert ask(outlet, hello.url).status_code == 200


def test_it_dies_with_its_worker(hello) -> None:
    code = (
        "import sys, time\nfrom tests.egress.test_broker import *\n"
        f"outlet = Outlet(Plan(policy=Policy(allow=rules.networks('{PUBLIC}'), ports=({hello.port},)), uid=60999))\n"
        f"assert ask(outlet, '{hello.url}').status_code == 200\nprint(outlet.pid, flush=True)\ntime.sleep(60)"
    )
    worker = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    broker = psutil.Process(int(worker.stdout.readline()))
    os.kill(broker.pid, signal.SIGSTOP)  # so that it cannot notice the end of its channel by itself
    worker.kill()
    worker.wait()
    worker.stdout.close()
    broker.wait(20)


@pytest.mark.parametrize(
    "said",
    [
        b"\xc1",
        codec.pack({"id": 1}),
        codec.pack([1]),
        codec.pack({"id": 1, "status_code": 200, "text": "x", "reason": "", "hops": [], "more": 1}),
        None,
    ],
    ids=range(5),
)
def test_an_answer_that_is_none_ends_the_broker_and_the_call(monkeypatch, said) -> None:
    """A broker that was taken over speaks to a worker that believes nothing."""
    fake = (
        "import os, socket, sys, json\nchannel = socket.socket(fileno=json.loads(sys.argv[1])['channel'])\n"
        "from_worker = channel.recv(65536)\n"
        "channel.sendall(bytes.fromhex(os.environ['READY']))\nchannel.recv(65536)\nchannel.sendall(bytes.fromhex(os.environ['SAID']))\nchannel.recv(65536)\n"
    )
    frame = b"\xff\xff\xff\xff" if said is None else codec.frame(said)
    environ = {"READY": codec.frame(codec.pack({"ready": [], "missing": {}, "uid": 1})).hex(), "SAID": frame.hex()}

    def spawn(self, theirs):
        self.starts += 1
        order = f'{{"channel": {theirs.fileno()}}}'
        return subprocess.Popen([sys.executable, "-c", fake, order], env=environ, pass_fds=[theirs.fileno()])

    monkeypatch.setattr(Outlet, "_spawn", spawn)
    with running() as outlet:
        assert ask(outlet, "http://x.org/", 30).reason == "internal_error: the HTTP broker died"


def test_one_that_cannot_start_says_why_at_once() -> None:
    with running(ca_file="/nowhere/ca.pem") as outlet:
        started = time.monotonic()
        got = ask(outlet, "http://x.org/", 30)
        assert got.reason.startswith("internal_error: the HTTP broker is not running: FileNotFoundError: ")
        assert time.monotonic() - started < 25  # of thirty


@pytest.mark.parametrize(
    "data",
    [b"", b"\xc1", codec.pack([]), codec.pack({"url": "http://x.org/"}), codec.pack({"method": "GET", "url": "http://x.org/", "params": [["a"]], "headers": [], "body": None, "timeout": None, "allow_redirects": True}), codec.pack({"method": "GET", "url": 7, "params": [], "headers": [], "body": None, "timeout": None, "allow_redirects": True})],
    ids=range(6),
)  # fmt: skip
def test_arguments_that_are_none_are_an_answer(outlet, data: bytes) -> None:
    pid = outlet.pid
    assert outlet.ask("i", data, 5).reason.startswith("protocol_error: ")
    assert outlet.pid == pid


def test_the_end_of_an_invocation_ends_its_requests_and_connections(hello) -> None:
    with Site(lambda r: silence if r.target == "/hang" else answer("x")) as site, running(site) as outlet:
        assert ask(outlet, site.url, invocation="a").status_code == 200
        assert ask(outlet, site.url, invocation="b").status_code == 200
        hanging = threading.Thread(target=ask, args=(outlet, site.url + "/hang", 30, "a"))
        hanging.start()
        while len(site.seen) < 3:
            time.sleep(0.01)
        assert site.open == 2
        outlet.end("a")
        hanging.join(20)
        assert not hanging.is_alive()
        until = time.monotonic() + 20
        while site.open > 1 and time.monotonic() < until:
            time.sleep(0.01)
        assert site.open == 1
        outlet.end("b")
        while site.open and time.monotonic() < until:
            time.sleep(0.01)
        assert site.open == 0


def test_a_200_mib_bomb_and_an_endless_body_leave_its_memory_bounded() -> None:
    import zlib

    packer = zlib.compressobj(9, wbits=31)
    bomb = b"".join(packer.compress(bytes(1 << 20)) for _ in range(200)) + packer.flush()
    kinds = {
        "/bomb": answer(bomb, Content_Encoding="gzip"),
        "/endless": endlessly(b"HTTP/1.1 200 OK\r\n\r\n", bytes(65536)),
    }
    with Site(lambda r: kinds[r.target]) as site, running(site) as outlet:
        ask(outlet, site.url + "/bomb")
        before = psutil.Process(outlet.pid).memory_info().rss
        got: list[frames.Answer] = []
        threads = [
            threading.Thread(target=lambda n=n, kind=kind: got.append(ask(outlet, site.url + kind, 20, f"i{n}")))
            for n in range(4)
            for kind in kinds
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert {answer.reason.partition(":")[0] for answer in got} == {"response_too_large"}
        peak = int(status(outlet.pid)["VmHWM"].split()[0]) * 1024
        assert peak - before < 8 * 3 * (8 << 20)  # eight at once, each at most its limit and copies of it
        assert peak < 300 << 20


def test_many_invocations_at_once_get_their_own_answers(hello) -> None:
    """The small version of ten thousand requests from two hundred invocations."""
    with Site(lambda r: answer(r.target)) as site, running(site) as outlet:
        wrong: list[object] = []

        def invocation(number: int) -> None:
            for n in range(15):
                got = ask(outlet, f"{site.url}/{number}/{n}", 20, f"i{number}")
                if got.text != f"/{number}/{n}":
                    wrong.append(got)
            outlet.end(f"i{number}")

        threads = [threading.Thread(target=invocation, args=(n,)) for n in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert wrong == []
        assert len(site.seen) == 300
        assert site.connections == 20
        until = time.monotonic() + 20
        while site.open and time.monotonic() < until:
            time.sleep(0.01)
        assert site.open == 0
        assert psutil.Process(outlet.pid).num_fds() == 7


def test_the_operators_resolvers_are_asked_and_follow_aliases(hello) -> None:
    table = {
        "x.org": [PUBLIC],
        "alias.org": ["cname:x.org"],
        "bad.org": ["cname:in.org"],
        "in.org": ["127.0.0.3"],
        "mixed.org": [PUBLIC, "fd00::1"],
        "silent.org": None,
        "empty.org": [],
    }
    with (
        NameServer(table) as names,
        running(hello, resolvers=rules.resolvers(names.where), budgets=replace(Budgets(), dns_s=1.0)) as outlet,
    ):

        def told(name: str) -> str:
            got = ask(outlet, hello.at(name))
            return got.text or got.reason.partition(":")[0]

        assert {name: told(name) for name in (*table, "nowhere.org")} == {
            "x.org": "hello", "alias.org": "hello", "bad.org": "host_not_public", "in.org": "host_not_public", "mixed.org": "host_not_public",
            "silent.org": "dns_timeout", "empty.org": "host_not_public", "nowhere.org": "host_not_public",
        }  # fmt: skip


def test_a_uid_that_cannot_be_had_is_named() -> None:
    """A worker that is root of a user namespace without that uid."""
    code = (
        "import os\nfrom pathlib import Path\nuid, gid = os.getuid(), os.getgid()\nos.unshare(os.CLONE_NEWUSER)\n"
        "Path('/proc/self/setgroups').write_text('deny')\n"
        "Path('/proc/self/uid_map').write_text(f'0 {uid} 1')\nPath('/proc/self/gid_map').write_text(f'0 {gid} 1')\n"
        "from sandbox.egress.policy import Plan\nfrom sandbox.outlet.process import Outlet\n"
        "outlet = Outlet(Plan(uid=60999))\nprint(outlet.ask('i', b'', 20).reason)\noutlet.close()"
    )
    ended = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert ended.stdout.startswith("internal_error: the HTTP broker is not running: PermissionError: ")
    assert "own_uid: " in ended.stdout
    assert "(HOOKPOOL_EGRESS_UID)" in ended.stdout


def test_send_time_is_bounded_by_the_kernel() -> None:
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", 0, 100_000))
    with ours, theirs, pytest.raises(BlockingIOError):
        ours.sendall(bytes(64 << 20))
