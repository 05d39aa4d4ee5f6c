"""An alarm wakes its one waiter when it was told to, and not before."""

from __future__ import annotations

import threading
import time

import pytest

from sandbox.kernel.alarm import Alarm


@pytest.fixture
def alarm():
    alarm = Alarm()
    yield alarm
    alarm.close()


def waited(alarm, seconds):
    began = time.monotonic()
    alarm.wait(seconds)
    return time.monotonic() - began


def test_it_rings_when_it_is_due(alarm):
    alarm.within(0.05)
    assert 0.05 <= waited(alarm, 20) < 10


def test_at_once_is_a_time_as_well(alarm):
    alarm.within(0)
    assert waited(alarm, 20) < 10


def test_the_earliest_counts_in_whatever_order_they_were_said(alarm):
    for times in ((0.05, 60), (60, 0.05)):
        for seconds in times:
            alarm.within(seconds)
        assert 0.05 <= waited(alarm, 60) < 30


def test_it_rings_once(alarm):
    alarm.within(0)
    alarm.wait(20)
    assert waited(alarm, 0.05) >= 0.05


def test_who_waits_already_is_woken(alarm):
    thread = threading.Thread(target=alarm.wait, args=(60,))
    thread.start()
    time.sleep(0.05)
    alarm.within(0)
    thread.join(20)
    assert not thread.is_alive()


def test_after_the_end_it_can_still_be_set(alarm):
    other = Alarm()
    other.close()
    other.within(0)
