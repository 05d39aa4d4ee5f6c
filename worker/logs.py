"""A worker's log: a line for people, or an object for machines (HOOKPOOL_LOG_FORMAT).

What a line is about travels beside its text: `log.info("ended", extra=about(job, status="ok"))`.
Both formats write those facts in a way that no value can forge another line or another fact.
Nothing of a conversation is ever among them.
"""

from __future__ import annotations

import json
import logging
import re
import time
from typing import TYPE_CHECKING, Any, Literal, override

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sandbox.contract import Job

_PLAIN = re.compile(r"[\w.:/@+-]+", re.ASCII)


def about(job: Job, **facts: Any) -> dict[str, Any]:
    """The `extra` of a line about that job."""
    trace = {"trace": job.traceparent.split("-")[1]} if job.traceparent.count("-") >= 3 else {}
    return {"about": {"job": job.id, "session": job.session_id, **trace, **facts}}


class Line(logging.Formatter):
    """`2026-01-31 12:00:00,000 INFO hookpool.worker: ended job=... session=... status=ok`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")

    @override
    def formatMessage(self, record: logging.LogRecord) -> str:
        words = [f"{name}={_word(value)}" for name, value in _facts(record).items()]
        return " ".join([super().formatMessage(record).replace("\n", "\\n"), *words])


class Json(logging.Formatter):
    """One object a line: time, level, logger, message, the facts, and an exception's traceback."""

    @override
    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{record.msecs:03.0f}Z"
        line = {"time": at, "level": record.levelname, "logger": record.name, "message": record.getMessage()}
        line |= _facts(record)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def begin(level: str, form: Literal["text", "json"]) -> None:
    """From now on everything logged in this process goes to stderr like that. What neither format says, about threads,
    processes and lines of source, is not looked up.
    """
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging.logAsyncioTasks = False  # type: ignore[attr-defined]  # typeshed lacks it
    stream = logging.StreamHandler()
    stream.setFormatter(Json() if form == "json" else Line())
    logging.basicConfig(level=level, handlers=[stream])


def _facts(record: logging.LogRecord) -> Mapping[str, Any]:
    facts: Mapping[str, Any] = getattr(record, "about", {})
    return facts


def _word(value: Any) -> str:
    text = f"{value:.1f}" if isinstance(value, float) else str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
