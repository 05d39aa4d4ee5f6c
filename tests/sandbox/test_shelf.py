"""Code that comes again finds a child that has compiled it, and nothing of the run before."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

from sandbox.contract import Job, Limits, Status
from sandbox.jail import Jail
from sandbox.shelf import Shelf

from .conftest import Bench, settings
from .test_pool import until


def compiled(jail: Jail) -> int:
    return jail.stock().handed["compiled"]


def wait_for_a_child(jail: Jail) -> None:
    until(lambda: jail._pool._shelf.wanted() is None)


def test_the_third_run_of_a_code_finds_it_compiled():
    with Jail(settings("A")) as jail:
        bench = Bench(jail)
        for turn in range(5):
            seen = bench.run("v['n'] = v.get('n', 0) + 1", variables={"n": turn})
            assert seen.variables == {"n": turn + 1}
            wait_for_a_child(jail)
            assert compiled(jail) == max(0, turn - 1)


def test_what_was_compiled_has_run_nothing_and_keeps_the_jobs_limits():
    limits = Limits(wall_s=30, cpu_s=0.3, memory_mb=64, threads=3)
    with Jail(settings("A")) as jail:
        bench = Bench(jail)
        for _ in range(4):
            seen = bench.run("import builtins\nv['n'] = builtins.n = getattr(builtins, 'n', 0) + 1", limits)
            assert seen.variables == {"n": 1}
            wait_for_a_child(jail)
        many = "import threading, time\nfor _ in range(4): threading.Thread(target=time.sleep, args=(1,), daemon=True).start()"
        for body, error in (("bytearray(200 << 20)", "MemoryError"), (many, "RuntimeError")):
            for _ in range(4):
                assert bench.run(body, limits).error == error
                wait_for_a_child(jail)
        for _ in range(3):
            assert bench.run("while True: pass", limits).outcome.status is Status.CPU_LIMIT
            wait_for_a_child(jail)
        assert compiled(jail) == 2 + 2 + 2 + 1


def test_other_limits_are_another_child():
    with Jail(settings("A")) as jail:
        bench = Bench(jail)
        for seconds in (5, 5, 6, 6):
            bench.run("pass", Limits(wall_s=seconds, cpu_s=1))
            wait_for_a_child(jail)
        assert compiled(jail) == 0


def test_the_shelf_is_bounded_in_number_and_age():
    with Jail(settings("A", warm_codes=2, warm_age_s=60)) as jail:
        bench = Bench(jail)
        for number in range(4):
            for _ in range(2):
                bench.run(f"v['n'] = {number}")
            wait_for_a_child(jail)
        shelf = jail._pool._shelf
        shelf.sweep()
        assert len(shelf._places) == 2
        shelf._age_s = 0.0  # as if that had passed
        shelf.sweep()
        assert not shelf._places
        until(lambda: jail._pool.zygote.busy == 2)


def test_a_burst_of_codes_leaves_no_more_children_than_fit():
    """Also while the pool's thread has other things to do than to sweep."""
    with Jail(settings("A", warm_codes=2, waiting=2)) as jail:
        bench = Bench(jail)
        with ThreadPoolExecutor(4) as threads:
            for _ in range(2):
                list(threads.map(bench.run, [f"v['n'] = {number}" for number in range(40)]))
        forks = jail._pool.zygote.forks
        assert len(jail._pool._shelf._places) == 2
        until(lambda: jail.settled and jail._pool.zygote.busy <= 4)
        assert jail._pool.zygote.forks - forks <= 6  # two that wait, two that compile, and who was on the way


def test_who_has_to_leave_the_shelf_is_closed_by_the_next_sweep():
    class Child:
        closed = False

        def close(self) -> None:
            self.closed = True

    shelf, first = Shelf(1, 60.0), Child()
    for job in (Job("", b"a", b""), Job("", b"a", b"")):
        shelf.take(job)
    shelf.put(job, first)
    shelf.take(Job("", b"b", b""))
    assert len(shelf) == 0
    assert not first.closed
    shelf.sweep()
    assert first.closed


def test_a_code_that_cannot_be_compiled_says_so_every_time():
    with Jail(settings("A")) as jail:
        bench = Bench(jail)
        for _ in range(4):
            assert bench.run("x = = 1").error == "SyntaxError"
            wait_for_a_child(jail)
        assert compiled(jail) == 2


def test_a_large_code_is_compiled_while_its_first_run_is_and_the_second_is_not_charged_for_it():
    lines = "\n".join(f"    v['n{n}'] = [{n}, {{'a': {n}}}, 'text {n}']" for n in range(6000))
    body = f"if v.get('never'):\n{lines}\nv['n'] = 1"
    with Jail(settings("A")) as jail:
        bench = Bench(jail)
        first = bench.run(body, Limits(wall_s=30, cpu_s=20, memory_mb=512))
        wait_for_a_child(jail)
        time.sleep(2 * first.outcome.usage.cpu_ms / 1e3)  # what it took the first time
        second = bench.run(body, Limits(wall_s=30, cpu_s=20, memory_mb=512))
        assert (first.variables, second.variables) == ({"n": 1}, {"n": 1})
        assert compiled(jail) == 1
        assert second.outcome.usage.cpu_ms < first.outcome.usage.cpu_ms / 3
