"""Threads for short work: as few as will do, the last one first, and none that a fault takes along."""

from __future__ import annotations

import logging
import threading
import time

import pytest

from sandbox.crew import Crew


class Work:
    """Says on which thread it was done, and waits to be let go."""

    def __init__(self) -> None:
        self.go_on = threading.Event()
        self.begun = threading.Event()
        self.by = ""

    def __call__(self) -> None:
        self.by = threading.current_thread().name
        self.begun.set()
        self.go_on.wait(10)


@pytest.fixture
def crew():
    crew = Crew(2, "crew")
    yield crew
    crew.close()


def until(condition) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_work_one_after_the_other_is_done_by_one_thread(crew):
    names = set()
    for _ in range(20):
        work = Work()
        work.go_on.set()
        crew.submit(work)
        assert work.begun.wait(10)
        names.add(work.by)
        until(lambda: crew._idle)
    assert names == {"crew_1"}


def test_what_is_more_than_there_are_threads_waits_its_turn(crew):
    works = [Work() for _ in range(4)]
    for work in works:
        crew.submit(work)
    assert works[0].begun.wait(10)
    assert works[1].begun.wait(10)
    assert not works[2].begun.wait(0.05)
    works[1].go_on.set()
    assert works[2].begun.wait(10)
    assert works[2].by == works[1].by != works[0].by
    assert not works[3].begun.is_set()
    for work in works:
        work.go_on.set()
    assert works[3].begun.wait(10)


def test_a_thread_goes_on_after_a_fault_which_is_logged(crew, caplog):
    with caplog.at_level(logging.ERROR):
        crew.submit(lambda: 1 / 0)
        until(lambda: crew._idle)
    assert "ZeroDivisionError" in caplog.text
    work = Work()
    work.go_on.set()
    crew.submit(work)
    assert work.begun.wait(10)
    assert work.by == "crew_1"


def test_when_it_is_closed_nobody_begins_and_nobody_stays(crew):
    busy, due = Work(), Work()
    idle = Work()
    idle.go_on.set()
    crew.submit(busy)
    crew.submit(idle)
    until(lambda: crew._idle)
    third = Work()
    crew.submit(third)
    crew.submit(due)
    assert third.begun.wait(10)
    crew.close()
    crew.submit(due)
    for work in (busy, third):
        work.go_on.set()
    until(lambda: not [one for one in threading.enumerate() if one.name.startswith("crew_")])
    assert not due.begun.is_set()
