"""Ordinary Python is ordinary in every tier: each module of the promised list is imported and does its work."""

from __future__ import annotations

import pytest

from sandbox.contract import Limits

WORK = {
    "re": ("re.sub(r'(a+)', r'<\\1>', 'baab')", "b<aa>b"),
    "json": ("json.loads(json.dumps({'a': [1, None]}))", {"a": [1, None]}),
    "datetime": ("datetime.datetime.strptime('2024-02-29', '%Y-%m-%d').date().isoformat()", "2024-02-29"),
    "random": ("random.Random(1).randint(1, 1)", 1),
    "uuid": ("uuid.uuid5(uuid.NAMESPACE_DNS, 'a').version", 5),
    "hashlib": (
        "[hashlib.new(n, b'').hexdigest()[:4] for n in ('md5', 'sha256', 'sha3_256', 'blake2b')]",
        ["d41d", "e3b0", "a7ff", "786a"],
    ),
    "hmac": ("hmac.compare_digest(hmac.new(b'k', b'm', 'sha256').digest(), hmac.digest(b'k', b'm', 'sha256'))", True),
    "base64": ("base64.b85encode(b'abc').decode()", "VPaz"),
    "decimal": ("str(decimal.Decimal(1) / 3)[:6]", "0.3333"),
    "fractions": ("str(fractions.Fraction('0.125'))", "1/8"),
    "statistics": ("statistics.median([3, 1, 2])", 2),
    "collections": ("collections.Counter('aab').most_common(1)", [["a", 2]]),
    "itertools": ("list(itertools.batched('abc', 2))", [["a", "b"], ["c"]]),
    "functools": ("functools.reduce(lambda a, b: a * b, [2, 3])", 6),
    "dataclasses": ("dataclasses.asdict(dataclasses.make_dataclass('A', ['x'])(1))", {"x": 1}),
    "enum": ("enum.Enum('A', 'x y')['y'].value", 2),
    "typing": ("typing.get_args(typing.Literal['a', 'b'])", ["a", "b"]),
    "string": ("string.Template('$a').substitute(a=1)", "1"),
    "textwrap": ("textwrap.wrap('aa bb', 2)", ["aa", "bb"]),
    "csv": ("list(csv.reader(['a,\"b,c\"']))", [["a", "b,c"]]),
    "io": ("io.TextIOWrapper(io.BytesIO(b'a')).read()", "a"),
    "logging": ("logging.getLogger('mine').getEffectiveLevel()", 30),
    "traceback": ("traceback.format_exception_only(ValueError('x'))", ["ValueError: x\n"]),
    "time": ("time.strftime('%Y', time.gmtime(0))", "1970"),
    "calendar": ("calendar.monthrange(2024, 2)", [3, 29]),
    "math": ("math.gcd(12, 18)", 6),
    "copy": ("copy.deepcopy({'a': [1]})", {"a": [1]}),
    "pprint": ("pprint.pformat([1])", "[1]"),
    "html": ("html.unescape('&lt;&eacute;')", "<é"),
    "urllib.parse": ("urllib.parse.parse_qs('a=1&a=2')", {"a": ["1", "2"]}),
    "asyncio": ("asyncio.run(asyncio.sleep(0, 7))", 7),
    "concurrent.futures": ("list(concurrent.futures.ThreadPoolExecutor(16).map(abs, range(-20, 0)))[:2]", [20, 19]),
    "threading": ("(t := threading.Thread(target=int), t.start(), t.join(), t.is_alive())[-1]", False),
    "contextlib": ("contextlib.suppress(OSError).__exit__(OSError, OSError(), None)", True),
    "inspect": ("str(inspect.signature(lambda a, *, b=1: 0))", "(a, *, b=1)"),
    "ast": ("ast.literal_eval('[1, {2: 3}]')[0]", 1),
    "marshal": ("marshal.loads(marshal.dumps([1]))", [1]),
    "zlib": ("zlib.decompress(zlib.compress(b'a')).decode()", "a"),
    "importlib": ("importlib.import_module('json').dumps(1)", "1"),
    "numpy": ("float(numpy.linalg.norm(numpy.array([3.0, 4.0])))", 5.0),
    "google.protobuf.json_format": (
        "google.protobuf.json_format.Parse('{\"a\": 1}', __import__('google.protobuf.struct_pb2').protobuf.struct_pb2.Struct())['a']",
        1.0,
    ),
}


@pytest.mark.parametrize("name", WORK)
def test_a_module_is_there_and_works(bench, name):
    act, wanted = WORK[name]
    seen = bench.run(f"import {name}\nv['got'] = {act}", Limits(wall_s=30, cpu_s=10))
    assert seen.variables == {"got": wanted}, seen.reply.error


def test_time_zones_are_read_where_files_are(bench):
    seen = bench.run(
        "import zoneinfo, datetime\nv['got'] = datetime.datetime(2024, 7, 1, tzinfo=zoneinfo.ZoneInfo('Europe/Paris')).utcoffset().seconds"
    )
    if bench.jail.tier == "C":
        assert seen.error == "ZoneInfoNotFoundError"
    else:
        assert seen.variables == {"got": 7200}, seen.reply.error


CODE = {
    "exec, eval and globals()": (
        "space = {}\nexec('x = 2', space)\nv['got'] = [space['x'], eval('x + 1', space), 'context' in globals()]",
        [2, 3, True],
    ),
    "a TypedDict": ("import typing\nclass A(typing.TypedDict):\n    x: int\nv['got'] = A(x=1)", {"x": 1}),
    "a NamedTuple": ("import typing\nclass A(typing.NamedTuple):\n    x: int = 3\nv['got'] = A().x", 3),
    "a dataclass with slots": (
        "import dataclasses\n@dataclasses.dataclass(slots=True, order=True)\nclass A:\n    x: int\nv['got'] = A(1) < A(2)",
        True,
    ),
    "a Pydantic model with a validator": (
        """
        import pydantic
        class A(pydantic.BaseModel):
            x: int
            @pydantic.field_validator('x')
            @classmethod
            def check(cls, x):
                return x * 2
        v['got'] = A.model_validate_json('{"x": "4"}').x
        """,
        8,
    ),
    "a generator, a closure and a class with a metaclass": (
        """
        class M(type):
            def __len__(cls): return 5
        class A(metaclass=M): pass
        def count():
            n = 0
            def up():
                nonlocal n
                n += 1
                return n
            while True: yield up()
        numbers = count()
        v['got'] = [len(A), next(numbers), next(numbers)]
        """,
        [5, 1, 2],
    ),
}


@pytest.mark.parametrize("what", CODE)
def test_code_of_every_kind_runs(bench, what):
    body, wanted = CODE[what]
    seen = bench.run(body, Limits(wall_s=30, cpu_s=10))
    assert seen.variables == {"got": wanted}, seen.reply.error


def test_the_streams_are_those_of_a_program(strongest):
    seen = strongest.run(
        """
        import sys
        v['names'] = [sys.stdout.name, sys.stderr.name, sys.stdout.encoding, sys.stdout.isatty()]
        v['written'] = sys.stdout.buffer.write(b'x' * 40_000)
        print('half a line', end='')
        print('\\udc80 is no text', file=sys.stderr)
        """
    )
    assert seen.variables == {"names": ["<stdout>", "<stderr>", "utf-8", False], "written": 40_000}
    assert seen.outcome.stdout == b"x" * 40_000 + b"half a line"
    assert seen.outcome.stderr == b"\\udc80 is no text\n"
