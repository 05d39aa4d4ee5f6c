"""Results as JUnit XML, the dialect that CI servers read (the schema of Jenkins' xunit plugin, `junit-10`).

The counts stand before the cases, and are known after the last: the cases wait in a temporary file,
not in memory. A case that does not hold is a failure; one that ended otherwise than by its own code
(a limit, a crash) is an error.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING
from xml.sax.saxutils import escape, quoteattr

from dispatcher.report import visible

if TYPE_CHECKING:
    from dispatcher.results import Record

_OWN_DOING = frozenset({"ok", "callback_error"})
_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


class JUnit:
    """Takes records one by one; `write` makes the file of them."""

    def __init__(self) -> None:
        self._started = datetime.now(UTC)
        self._body = tempfile.TemporaryFile("w+", encoding="utf-8")  # noqa: SIM115  # `close` closes it
        self._counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}

    def add(self, one: Record) -> None:
        verdict = one["verdict"]
        file, _, line = str(one["where"]).rpartition(":")
        place = {"file": file, "line": line} if line.isdecimal() else {"file": one["where"]}
        name = one["name"] if one["run"] == 1 else f"{one['name']} (run {one['run']})"
        seconds = f"{float((verdict.get('usage') or {}).get('wall_ms') or 0) / 1000:.3f}"
        inside = []
        self._counts["tests"] += 1
        if one.get("skipped") is not None:
            self._counts["skipped"] += 1
            inside.append(f"<skipped message={_attribute(one['skipped'])}/>")
        elif not one["passed"]:
            kind = "failure" if verdict.get("status") in _OWN_DOING else "error"
            self._counts[f"{kind}s"] += 1
            first = one["mismatches"][0]["path"] if one["mismatches"] else ""
            detail = verdict.get("detail") or f"{first} is not as expected"
            attributes = f"message={_attribute(detail)} type={_attribute(_type(one))}"
            inside.append(f"<{kind} {attributes}>{_text(_why(one))}</{kind}>")
        for stream, tag in (("stdout", "system-out"), ("stderr", "system-err")):
            if text := verdict.get(stream):
                inside.append(f"<{tag}>{_text(text)}</{tag}>")
        attributes = " ".join(
            f"{key}={_attribute(value)}"
            for key, value in {
                "name": name,
                "classname": one["id"].rpartition("::")[0],
                "time": seconds,
                **place,
            }.items()
        )
        self._body.write(f"    <testcase {attributes}>{''.join(inside)}</testcase>\n")

    def write(self, out: IO[str], left: int = 0) -> None:
        """The whole file; `left` is how many runs there were to be beside these."""
        took = (datetime.now(UTC) - self._started).total_seconds()
        counts = " ".join(f'{name}="{count}"' for name, count in self._counts.items())
        stamp = self._started.strftime("%Y-%m-%dT%H:%M:%S")
        out.write('<?xml version="1.0" encoding="UTF-8"?>\n<testsuites>\n')
        out.write(f'  <testsuite name="hookpool" {counts} time="{took:.3f}" timestamp="{stamp}">\n')
        self._body.seek(0)
        shutil.copyfileobj(self._body, out)
        if left > 0:
            out.write(f"    <system-err>{left} not run</system-err>\n")
        out.write("  </testsuite>\n</testsuites>\n")
        self.close()

    def close(self) -> None:
        self._body.close()


def _type(one: Record) -> str:
    error = one["verdict"].get("error")
    return str(error["type"]) if error else "mismatch"


def _why(one: Record) -> str:
    texts = [f"{each['path']}\n{each.get('text', '')}" for each in one["mismatches"]]
    error = one["verdict"].get("error")
    return "\n\n".join([*texts, *([error["traceback"]] if error else []), one["where"]])


def _text(text: str) -> str:
    return escape(_plain(text))


def _attribute(text: str) -> str:
    return quoteattr(_plain(text))


def _plain(text: str) -> str:
    """Control characters spelt out, and what XML has no way to write."""
    return _NO_XML.sub(lambda match: f"\\u{ord(match[0]):04x}", visible(str(text)))
