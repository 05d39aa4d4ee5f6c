"""Whatever code raises, and however it fights back, one readable error comes out."""

from __future__ import annotations

import subprocess
import sys

import pytest

from sandbox.guest.chain import run_chain
from sandbox.invocation import Reply

KINDS = {  # statements -> type, a piece of the message
    "raise ValueError('plain')": ("ValueError", "plain"),
    "raise SystemExit(3)": ("SystemExit", "3"),
    "import sys; sys.exit('stop')": ("SystemExit", "stop"),
    "raise KeyboardInterrupt": ("KeyboardInterrupt", ""),
    "raise GeneratorExit": ("GeneratorExit", ""),
    "def f(): f()\n    f()": ("RecursionError", "maximum recursion depth"),
    "import sys; sys.setrecursionlimit(60)\n    def f(): f()\n    f()": ("RecursionError", "maximum recursion depth"),
    "raise MemoryError": ("MemoryError", ""),
    "class Mine(MemoryError): pass\n    raise Mine('7 TiB')": ("MemoryError", "7 TiB"),
    "raise ExceptionGroup('two', [ValueError('a'), KeyError('b')])": ("ExceptionGroup", "two"),
    "raise StatusError(404, 'Not Found')": ("StatusError", "404 Not Found"),
    "assert False": ("AssertionError", ""),
    "import celery_is_not_here": ("ModuleNotFoundError", "No module named 'celery_is_not_here'"),
    "class E(Exception):\n        def __str__(self): raise SystemExit\n    raise E": (
        "E",
        "<its text cannot be made: SystemExit>",
    ),
    "class E(Exception):\n        def __str__(self): return 7\n    raise E": (
        "E",
        "<its text cannot be made: TypeError>",
    ),
    "class T(str): pass\n    class E(Exception):\n        def __str__(self): return T('sub')\n    raise E": (
        "E",
        "sub",
    ),
    "raise ValueError('\\ud800\\0')": ("ValueError", "\\ud800\0"),
    "class M(type):\n        __name__ = property(lambda s: 1/0)\n    class E(Exception, metaclass=M): pass\n    raise E('x')": (
        "E",
        "x",
    ),
    "e = ValueError('loop'); e.__cause__ = e\n    raise e": ("ValueError", "loop"),
    "a, b = ValueError('a'), ValueError('b'); a.__context__ = b; b.__cause__ = a\n    raise a": ("ValueError", "a"),
}


@pytest.mark.parametrize("statements", KINDS)
def test_everything_that_can_be_raised_becomes_an_error_reply(bench, statements):
    reply = bench.run("before_agent_callback", f"def before_agent_callback(c):\n    {statements}\n")
    kind, text = KINDS[statements]
    assert reply.error.type == kind
    assert text in reply.error.message
    assert reply.error.file == "first.py"
    assert reply.error.line > 1


def test_the_traceback_has_the_users_frames_and_lines_only(bench):
    code = """
        import json

        def before_agent_callback(c):
            parse("{nope")

        def parse(text):
            return json.loads(text)
    """
    error = bench.run("before_agent_callback", code).error
    assert (error.type, error.line) == ("JSONDecodeError", 8)
    assert error.traceback.startswith("Traceback (most recent call last):\n")
    assert 'File "first.py", line 5, in before_agent_callback\n    parse("{nope")' in error.traceback
    assert 'File "first.py", line 8, in parse\n    return json.loads(text)' in error.traceback
    assert error.traceback.count("File ") == 2
    assert error.traceback.endswith("JSONDecodeError: " + error.message + "\n")


def test_causes_and_groups_are_in_the_traceback(bench):
    error = bench.before_agent("""
        try:
            {}["missing"]
        except KeyError as problem:
            raise ExceptionGroup("both", [ValueError("one"), TypeError("two")]) from problem
    """).error
    for piece in (
        "KeyError: 'missing'",
        "The above exception was the direct cause",
        "ValueError: one",
        "TypeError: two",
    ):
        assert piece in error.traceback
    assert "chain.py" not in error.traceback


def test_megabytes_of_message_are_cut_and_said(bench):
    error = bench.before_agent("raise ValueError('x' * 1_000_000) from ValueError('y' * 1_000_000)").error
    assert len(error.message) < 10_000
    assert error.message.endswith("more characters)")
    assert len(error.traceback) < 70_000


@pytest.mark.parametrize(
    ("code", "kind", "line"),
    [
        ("x = 1\ndef f(:\n", "SyntaxError", 2),
        ("if True:\nx = 1", "IndentationError", 2),
        ("x = '\0'", "SyntaxError", None),
    ],
)
def test_a_syntax_error_has_its_file_and_line(bench, code, kind, line):
    error = bench.run("before_agent_callback", code).error
    assert (error.type, error.file, error.line) == (kind, "first.py", line)


def test_an_error_while_the_file_is_executed_is_one_of_the_callback(bench):
    error = bench.run("before_agent_callback", "\n1 / 0\ndef before_agent_callback(c): pass\n").error
    assert (error.type, error.file, error.line) == ("ZeroDivisionError", "first.py", 2)


def test_a_future_import_of_ours_is_not_inherited(bench):
    reply = bench.run("before_agent_callback", "def before_agent_callback(c: undefined_name): pass")
    assert reply.error.type == "NameError"


def test_code_run_by_exec_points_at_the_line_that_ran_it(bench):
    error = bench.before_agent("exec('1/0')").error
    assert (error.type, error.line) == ("ZeroDivisionError", 3)


def test_a_recursion_limit_left_low_does_not_matter(bench):
    reply = bench.before_agent(
        "import inspect, sys\nv['deep'] = [[[[1]]]]\nsys.setrecursionlimit(len(inspect.stack(0)) + 12)"
    )
    assert reply.set == {"deep": [[[[1]]]]}


def test_a_finally_runs_when_interrupted_and_the_reply_says_so(bench):
    error = bench.before_agent("""
        try:
            raise KeyboardInterrupt
        finally:
            print("cleaning up")
    """).error
    assert error.type == "KeyboardInterrupt"


INTERRUPTED = """
import gc, random, signal
from sandbox.guest.chain import run_chain
from sandbox.invocation import Code, Invocation, Reply, Source

code = "def before_agent_callback(c):\\n    for i in range(3000): c.state[str(i % 7)] = {'i': [i]}\\n"
sources = Code(sources=(Source(name="f.py", text=code),)).encode()
body = Invocation(hook="before_agent_callback").encode()
dice, seen = random.Random(7), set()
signal.signal(signal.SIGALRM, signal.default_int_handler)
gc.freeze()
for _ in range(300):
    try:
        signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-6, 3e-3))
        data = run_chain(sources, body, None)
        signal.setitimer(signal.ITIMER_REAL, 0)
    except KeyboardInterrupt:
        continue  # before it began, or after it was done
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        gc.collect()  # now, not in the next run, where an interrupt would be lost in it
    reply = Reply.decode(data)
    assert reply.error is None or reply.set == {}
    seen.add(reply.error.type if reply.error else "ok")
print(sorted(seen - {"ok"}))
"""


def test_an_interrupt_at_any_moment_is_a_keyboard_interrupt():
    """A real signal, at three hundred random moments, in a process that has nothing else to interrupt."""
    ran = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("['KeyboardInterrupt']\n", "")


def test_bytes_that_are_no_invocation_are_an_error_reply(bench):
    assert Reply.decode(run_chain(b"", b"\xc1", bench.caller)).error.type == "ProtocolError"
