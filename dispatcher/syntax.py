"""Whether a source is Python at all, asked of a process of its own.

Nothing is run: the child only parses. But a parser that is fed hostile text can be made to crash or
to take its time, so it is not this process's parser, and it has limits. A source that ends it is a
problem like any other, and the ones after it are still looked at.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sandbox.invocation import Source

CPU_S = 20
MEMORY_BYTES = 2 * 1024 * 1024 * 1024

# For each text its number on a line, then, where it is no Python, line and reason on another.
_PARSER = f"""
import ast, json, resource, sys, warnings
resource.setrlimit(resource.RLIMIT_CPU, ({CPU_S}, {CPU_S}))
resource.setrlimit(resource.RLIMIT_AS, ({MEMORY_BYTES}, {MEMORY_BYTES}))
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
warnings.simplefilter('ignore')
for number, text in enumerate(json.load(sys.stdin)):
    print(number, flush=True)
    try:
        compile(text, '<source>', 'exec', ast.PyCF_ONLY_AST, dont_inherit=True)
    except SyntaxError as problem:
        print(json.dumps([problem.lineno, f'{{type(problem).__name__}}: {{problem.msg}}']), flush=True)
    except Exception as problem:
        print(json.dumps([None, f'{{type(problem).__name__}}: {{problem}}']), flush=True)
"""


def problems(sources: Iterable[Source]) -> Iterator[tuple[Source, int | None, str]]:
    """Each source that is no Python, with the line and why."""
    left = list(dict.fromkeys(sources))
    while left:
        texts = json.dumps([source.text for source in left])
        child = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _PARSER], input=texts, capture_output=True, text=True, check=False
        )
        reached = 0
        for line in child.stdout.splitlines():
            said = json.loads(line)
            if isinstance(said, int):
                reached = said
            else:
                yield left[reached], *said
        if child.returncode == 0:
            return
        yield left[reached], None, "cannot be parsed: it ended the parser"
        left = left[reached + 1 :]
