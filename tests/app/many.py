"""Writes a folder with very many cases: `python tests/app/many.py DIR 10000`. By hand, and for the tests.

Nine of ten hold; every tenth expects what its callback does not do.
"""

import json
import sys
from pathlib import Path

CALLBACK = """\
def before_agent_callback(callback_context):
    number = callback_context.variables["number"]
    callback_context.variables["total"] = sum(range(number % 100))
    print("number", number)
    return Content(parts=[Part(text=f"case {number}")], role="model")
"""


def write(folder: Path, count: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "many.py").write_text(CALLBACK)
    with (folder / "cases.jsonl").open("w") as out:
        for number in range(count):
            total = sum(range(number % 100)) if number % 10 else -1
            case = {
                "name": f"case {number}",
                "hook": "before_agent_callback",
                "callbacks": ["many.py"],
                "context": {"variables": {"number": number}},
                "expect": {"returned": {"parts": [{"text": f"case {number}"}]}, "variables": {"total": total}},
            }
            out.write(f"{json.dumps(case)}\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]))
