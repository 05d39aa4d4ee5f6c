"""How often a tenant may call, over all workers, against a real server."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import redis

from sandbox import wire
from sandbox.egress.policy import Plan
from tests.queue.conftest import running_server
from worker.rates import Rates


@pytest.fixture(scope="module")
def client() -> Iterator[redis.Redis]:
    with running_server() as (url, _), wire.connect(url) as client:
        yield client


@pytest.fixture(autouse=True)
def fresh(client: redis.Redis) -> None:
    client.flushall()


def later(client: redis.Redis, seconds: float) -> None:
    """As if that had passed since somebody asked for this tenant."""
    client.hincrbyfloat(wire.rate_key("acme"), "at", -seconds)


def test_without_a_rate_nobody_is_asked() -> None:
    with wire.connect("unix:///nowhere/pool.sock") as nobody:
        assert Rates(nobody, Plan()).admit("acme") == ""


def test_a_burst_passes_and_then_one_at_a_time_whoever_asks(client) -> None:
    first, second = (Rates(client, Plan(rate=0.01, burst=3)) for _ in range(2))
    told = [rates.admit("acme") for rates in (first, second, first, second)]
    assert told == ["", "", "", "budget_exceeded: more than 0.01 HTTP calls a second (HOOKPOOL_EGRESS_RATE)"]
    assert first.admit("other") == ""
    later(client, 120)
    assert [first.admit("acme"), first.admit("acme") != ""] == ["", True]


def test_a_bucket_never_holds_more_than_its_burst_and_is_forgotten_when_full(client) -> None:
    rates = Rates(client, Plan(rate=0.01, burst=2))
    assert rates.admit("acme") == ""
    assert 60_000 < client.pttl(wire.rate_key("acme")) <= 101_000
    later(client, 2000)
    assert [rates.admit("acme") == "" for _ in range(3)] == [True, True, False]


def test_many_at_once_get_no_more_than_there_are(client) -> None:
    rates, told = Rates(client, Plan(rate=0.001, burst=20)), []
    threads = [threading.Thread(target=lambda: told.extend(rates.admit("acme") for _ in range(5))) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told.count("") == 20


def test_a_server_that_cannot_be_asked_admits_nobody() -> None:
    with wire.connect("unix:///nowhere/pool.sock") as nobody:
        assert Rates(nobody, Plan(rate=1.0, burst=1)).admit("acme").startswith("internal_error: ")
