"""Code is compiled twice at most: what it compiles to is told once, by a child that has not run it yet."""

from __future__ import annotations

import uuid

import pytest

from sandbox import codec
from sandbox.codes import LARGE, Codes, Known
from sandbox.contract import COMPILED_BYTES, Cargo, Job, Limits, Status
from sandbox.guest import chain, source
from sandbox.guest.lockdown import CAPS
from sandbox.host import Closed
from sandbox.invocation import Code, Invocation, Reply, Source
from sandbox.jail import Jail
from sandbox.zygote import Child

from .conftest import QUICK, Bench, settings
from .test_pool import until

SAID = codec.frame(b"K" + source.packed([Source(name="attempt.py", text="forged = 1")]))


@pytest.fixture
def fresh():
    """A jail that has seen no code yet, and whose children compile none before its job is there."""
    with Jail(settings("A", warm_codes=0)) as jail:
        yield Bench(jail)


@pytest.fixture
def cargos(monkeypatch):
    """What the children were given."""
    seen: list[Cargo] = []
    order = Child.order

    def spied(self, job):
        frame = order(self, job)
        seen.append(Cargo.of(frame, len(b"J") + CAPS.size))
        return frame

    monkeypatch.setattr(Child, "order", spied)
    return seen


def test_the_second_run_tells_and_the_third_need_not_compile(fresh, cargos):
    for turn in range(4):
        assert fresh.run("v['n'] = v.get('n', 0) + 1", variables={"n": turn}).variables == {"n": turn + 1}
    assert [(cargo.compiled, cargo.tell) for cargo in cargos] == [
        (False, False),
        (False, True),
        (True, False),
        (True, False),
    ]


def test_a_large_code_tells_at_once(fresh, cargos):
    for _ in range(2):
        assert fresh.run(f"v['n'] = len({'x' * LARGE!r})").variables == {"n": LARGE}
    assert [(cargo.compiled, cargo.tell) for cargo in cargos] == [(False, True), (True, False)]


BODIES = {
    "an answer": "print('said')\nimport ces_public\nreturn ces_public.Content(parts=[ces_public.Part(text='a')])",
    "an error with its lines": "def inner():\n    raise ValueError('no')  # a comment\nv['a'] = 1\ninner()",
    "a syntax error": "x = = 1",
    "a warning about typing names": "def f(x: Optional[int]): pass\nv['a'] = List[int].__name__",
    "a warning of the compiler": "import re\nv['a'] = bool(re.match('\\d', '1'))",
    "two of them, of which one is no line of its own": "v['a'] = 1 is 1\nassert (v, 'x'), 'y'",
    "its own source": "import inspect\nv['a'] = inspect.getsource(before_agent_callback)",
    "half of a pair of surrogates": "v['a'] = ascii('\\ud800')",
    "constants of every kind": "v['a'] = repr((1, 2**80, 1.5, 2j, b'x', 'é', None, ..., frozenset({1}), -0.0))",
    "classes, closures, generators": """
        from dataclasses import dataclass
        @dataclass
        class P:
            x: int = 0
        def outer(n):
            def inner():
                nonlocal n
                n += 1
                return n
            return inner
        v['a'] = [P(3).x, outer(1)(), list(i * i for i in range(3)), (lambda *a, k=1, **kw: (a, k, kw))(1, z=2)[1]]
        """,
    "what ends it": "raise SystemExit(3)",
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_a_run_of_known_code_is_like_one_of_new_code(fresh, cargos, body):
    seen = [fresh.run(body) for _ in range(4)]
    compiles = body != BODIES["a syntax error"]
    assert [cargo.compiled for cargo in cargos] == [False, False, compiles, compiles]
    for other in seen[1:]:
        assert other.reply == seen[0].reply
        assert facts(other) == facts(seen[0])
    assert seen[0].outcome.status is Status.OK
    assert (b"SyntaxWarning" in seen[0].outcome.stderr) == ("is 1" in body or "re.match" in body)


def facts(seen):
    return seen.outcome.status, seen.outcome.detail, seen.outcome.stdout, seen.outcome.stderr


def test_code_that_the_compiler_warns_of_is_on_the_shelf_and_says_so_each_time():
    with Jail(settings("A")) as jail:
        bench = Bench(jail)
        for _ in range(4):
            seen = bench.run("v['a'] = 1 is 1")
            assert b'attempt.py:3: SyntaxWarning: "is" with' in seen.outcome.stderr
            assert seen.variables == {"a": True}
            until(lambda: jail._pool._shelf.wanted() is None)
        assert jail.stock().handed["compiled"] == 2


def test_a_later_callback_that_cannot_be_compiled_is_met_only_where_the_chain_gets_to_it(fresh):
    first = (
        "def before_agent_callback(context):\n    return Content(parts=[]) if context.variables.get('end') else None\n"
    )
    sources = Code(sources=(Source(name="one.py", text=first), Source(name="two.py", text="x = = 1")))
    errors = []
    for turn in range(6):
        body = Invocation(hook="before_agent_callback", context={"variables": {"end": turn % 2}})
        outcome = fresh.jail.run(Job(uuid.uuid4().hex, sources.encode(), body.encode(), QUICK), Closed())
        error = Reply.decode(outcome.reply).error
        errors.append(error and error.type)
    assert errors == ["SyntaxError", None] * 3


def test_no_code_has_a_say_in_what_it_compiles_to(fresh):
    """Whatever it says itself comes behind what its child said of it, or was not asked."""
    lie = f"import os\nif v.get('lie'): os.write(3, {SAID!r})\nv['mine'] = 1"
    for turn in range(4):
        seen = fresh.run(lie, variables={"lie": 1})
        assert seen.outcome.status is Status.PROTOCOL_ERROR, turn
    assert fresh.run(lie).variables == {"mine": 1}


def test_what_was_learned_is_what_runs(fresh):
    """The control of the test above: were a lie believed, the next run would be another's."""
    body = "v['mine'] = 1"
    fresh.run(body)
    (code,) = fresh.jail._codes._kept
    other = "def before_agent_callback(context):\n    context.variables['forged'] = 1\n"
    fresh.jail._codes.learn(code, source.packed([Source(name="attempt.py", text=other)]))
    assert fresh.run(body).variables == {"forged": 1}


def test_what_compiles_to_too_much_is_compiled_each_time(fresh, cargos):
    body = f"v['a'] = len({'x' * COMPILED_BYTES!r})"
    limits = Limits(wall_s=60, cpu_s=20)
    for _ in range(3):
        assert fresh.run(body, limits).variables == {"a": COMPILED_BYTES}
    assert [(cargo.compiled, cargo.tell) for cargo in cargos] == [(False, True), (False, False), (False, False)]


def test_only_what_is_told_may_be_longer_than_a_reply(fresh):
    """And only by who was asked, before anything else."""
    limits = Limits(wall_s=30, cpu_s=5, reply_bytes=1024)
    body = "import os\nv['a'] = 1\nif v.get('n'):\n    os.write(3, (200_000).to_bytes(4, 'big'))\n    import time; time.sleep(9)"
    for turn in range(4):
        seen = fresh.run(body, limits, variables={"n": 1})
        assert seen.outcome.status is Status.OUTPUT_LIMIT, turn
    assert fresh.run(body, limits).variables == {"a": 1}


def test_small_replies_are_no_limit_to_what_is_told(fresh, cargos):
    body = "v['a'] = 1\n" + "\n".join(f"def f{n}(x):\n    return {{'a{n}': x}}" for n in range(1500))
    limits = Limits(wall_s=30, cpu_s=5, reply_bytes=1024)
    for _ in range(3):
        assert fresh.run(body, limits).variables == {"a": 1}
    assert len(cargos[-1].code) > 64 * 1024 + 1024
    assert cargos[-1].compiled


@pytest.mark.parametrize("so", [(a, b, c) for a in (False, True) for b in (False, True) for c in (False, True)])
def test_a_cargo_says_all_it_was_given(so):
    cargo = Cargo(b"code", b"body", *so)
    assert Cargo.of(b"before" + cargo.encode(), 6) == cargo


def test_what_is_packed_is_read_again_as_it_was():
    sources = (Source(name="a.py", text="x = 1\n"), Source(name="b/é.py", text="def f(): return Optional\n"))
    data = source.packed(sources)
    chain.forget()
    assert source.unpacked(data) == sources
    assert source._COMPILED["b/é.py", sources[1].text].typing_names == ("Optional",)
    chain.forget()


def test_the_codes_that_came_last_are_kept():
    codes = Codes(most=100)
    for code in (b"a" * 20, b"b" * 20):
        assert codes.seen(code) == Known(b"", tell=False)
        assert codes.seen(code) == Known(b"", tell=True)
        codes.learn(code, code[:1] * 20)
        codes.learn(code, b"told twice")
        assert codes.seen(code) == Known(code[:1] * 20, tell=False)
        assert codes.compiled(code) == code[:1] * 20
    codes.seen(b"a" * 20)
    codes.seen(b"c" * 60)  # b was the last that came
    assert codes.compiled(b"a" * 20)
    assert not codes.compiled(b"b" * 20)
    codes.learn(b"never seen", b"x")
    assert codes.compiled(b"never seen") == b""
    assert codes._bytes == sum(len(code) + len(kept.compiled or b"") for code, kept in codes._kept.items()) == 100
    codes.seen(b"d" * 101)
    assert not codes._kept
    assert codes._bytes == 0


def test_what_cannot_be_kept_is_asked_for_once():
    codes = Codes()
    codes.seen(b"a")
    assert codes.seen(b"a").tell
    codes.learn(b"a", b"")
    assert codes.seen(b"a") == Known(b"", tell=False)
