"""The bytes that other languages test themselves against are those of our codec, both ways; the page about them is true."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import pytest

from sandbox import codec, wire
from sandbox.contract import Call, Job, Outcome, Return, Status
from sandbox.errors import ProtocolError
from sandbox.invocation import Code, Invocation, Reply
from sandbox.ledger import ANNOUNCE, FINISH
from tests.wire.vectors import DECODE, ENCODE, load, plain

VECTORS = load()
MESSAGES = {vector["name"]: vector for vector in VECTORS["messages"]}
REFUSED = {vector["name"]: vector for vector in VECTORS["refused"]}
PAGE = (Path(__file__).parents[2] / "deploy/protocol.md").read_text()
CLASSES: dict[str, Any] = {
    "Job": Job, "Outcome": Outcome, "Call": Call, "Return": Return, "Code": Code, "Invocation": Invocation, "Reply": Reply
}  # fmt: skip


@pytest.mark.parametrize("name", MESSAGES)
def test_the_json_of_a_vector_is_written_as_its_bytes(name):
    vector = MESSAGES[name]
    assert ENCODE[vector["message"]](plain(vector["json"])).hex() == vector["hex"]


@pytest.mark.parametrize("name", MESSAGES)
def test_the_bytes_of_a_vector_are_read_as_its_json(name):
    vector = MESSAGES[name]
    data = bytes.fromhex(vector["hex"])
    assert codec.unpack(data, 1 << 20) == plain(vector["json"])
    assert DECODE[vector["message"]](data).encode() == data


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_no_message_is_refused_with_the_reason(name):
    vector = REFUSED[name]
    with pytest.raises(ProtocolError, match=re.escape(vector["why"])):
        DECODE[vector["message"]](bytes.fromhex(vector["hex"]))


def test_every_kind_of_message_has_a_vector():
    assert {vector["message"] for vector in VECTORS["messages"]} == {*CLASSES, "Frame"}


def rows(heading: str) -> list[str]:
    """The first cells of the first table below a heading of the page."""
    table = PAGE.partition(f"\n### {heading}\n")[2].partition("|--|")[2].partition("\n\n")[0]
    return re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)


@pytest.mark.parametrize("name", CLASSES)
def test_the_page_has_every_field_of_a_message_and_no_other(name):
    cls = CLASSES[name]
    fields = [field.name for field in dataclasses.fields(cls)]
    assert rows(name) == (["v"] if name in {"Job", "Outcome", "Call", "Return"} else []) + fields


def test_the_page_says_of_every_status_what_to_do():
    table = PAGE.partition("| status | what a client does |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert sorted(name for cell in cells for name in re.findall(r"`(\w+)`", cell)) == sorted(Status)


def test_the_names_on_the_page_are_those_of_the_wire():
    names = [
        wire.QUEUES["interactive"], wire.TASK, wire.WORKERS, wire.CANCEL_CHANNEL, wire.inbox_key(""),
        wire.job_key("ID"), wire.lease_key("ID"), wire.body_key("ID"), wire.return_key("ID", "TOKEN"),
    ]  # fmt: skip
    assert [
        name for name in names if f"`{name}" not in PAGE and f" {name}" not in PAGE and f'"{name}"' not in PAGE
    ] == []
    assert "XADD" in FINISH
    assert "ZADD" in ANNOUNCE
