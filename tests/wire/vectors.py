"""The messages of deploy/protocol.md as bytes and as JSON, and from one to the other.

`vectors.json` is for clients in any language. In its JSON, `{"$bin": "..."}` is bytes in base64 and
`{"$msgpack": ...}` is the bytes of that value, packed. `python -m tests.wire.vectors` writes the hex
anew, after a change of the protocol.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sandbox import codec, wire
from sandbox.contract import Call, CallRecord, Job, Limits, Outcome, Return, Status, Usage
from sandbox.invocation import Code, ErrorInfo, Invocation, Reply, Source

FILE = Path(__file__).with_name("vectors.json")
LIMIT = 1 << 20


def load() -> dict[str, list[dict[str, Any]]]:
    return json.loads(FILE.read_text())


def plain(value: Any) -> Any:
    """The JSON of a vector as what msgpack carries."""
    if isinstance(value, list):
        return [plain(one) for one in value]
    if not isinstance(value, dict):
        return value
    if "$bin" in value:
        return base64.b64decode(value["$bin"])
    if "$msgpack" in value:
        return codec.pack(plain(value["$msgpack"]))
    return {key: plain(one) for key, one in value.items()}


def _outcome(given: dict[str, Any]) -> bytes:
    calls = tuple(CallRecord(**one) for one in given["calls"])
    rest = {"status": Status(given["status"]), "calls": calls, "usage": Usage(**given["usage"])}
    return Outcome(
        **{**_versionless(given), **rest, "layers": tuple(given["layers"]), "warnings": tuple(given["warnings"])}
    ).encode()


def _job(given: dict[str, Any]) -> bytes:
    return Job(
        **{**_versionless(given), "limits": Limits(**given["limits"]), "history": tuple(given["history"])}
    ).encode()


def _versionless(given: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in given.items() if name != "v"}


def _reply(given: dict[str, Any]) -> bytes:
    error = given["error"]
    return Reply(**{**given, "error": error and ErrorInfo(**error)}).encode()


ENCODE: dict[str, Callable[[Any], bytes]] = {
    "Job": _job,
    "Outcome": _outcome,
    "Call": lambda given: Call(**_versionless(given)).encode(),
    "Return": lambda given: Return(**_versionless(given)).encode(),
    "Frame": lambda given: wire.Frame(*given).encode(),
    "Code": lambda given: Code(tuple(Source(**source) for source in given["sources"])).encode(),
    "Invocation": lambda given: Invocation(**given).encode(),
    "Reply": _reply,
}

DECODE: dict[str, Callable[[bytes], Any]] = {
    "Job": Job.decode,
    "Outcome": Outcome.decode,
    "Call": Call.decode,
    "Return": Return.decode,
    "Frame": wire.Frame.decode,
    "Code": Code.decode,
    "Invocation": Invocation.decode,
    "Reply": Reply.decode,
}


def main() -> None:
    vectors = load()
    for vector in vectors["messages"]:
        vector["hex"] = ENCODE[vector["message"]](plain(vector["json"])).hex()
    for vector in vectors["refused"]:
        if "json" in vector:
            vector["hex"] = codec.pack(plain(vector["json"])).hex()
    FILE.write_text(json.dumps(vectors, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
