"""The state: one plain dict, a delta of whole variables, and nothing JSON cannot carry."""

from __future__ import annotations

import pytest

DELTAS = {  # lines -> (set, remove), from {"a": 1, "cart": {"items": [1]}, "gone": None}
    "pass": ({}, ()),
    "v['b'] = 2": ({"b": 2}, ()),
    "v['a'] = 1": ({}, ()),
    "v['a'] = 1.0": ({"a": 1.0}, ()),
    "v['a'] = True": ({"a": True}, ()),
    "del v['gone']": ({}, ("gone",)),
    "v.pop('a'); c.remove_variable('gone')": ({}, ("a", "gone")),
    "v['cart']['items'].append(2)": ({"cart": {"items": [1, 2]}}, ()),
    "c.state['x'] = c.variables['a']": ({"x": 1}, ()),
    "c.set_variable('x', c.get_variable('nope', 5))": ({"x": 5}, ()),
    "set_variable('x', get_variable('nope')); remove_variable('gone')": ({"x": None}, ("gone",)),
    "context.state['x'] = 1": ({"x": 1}, ()),
    "c.state = {'only': 1, 'a': 1}": ({"only": 1}, ("cart", "gone", "_session")),
    "v['a'] = 2; v['a'] = 1": ({}, ()),
    "v['t'] = (1, (2,))": ({"t": [1, [2]]}, ()),
    "v['b'] = b'hi'": ({"b": "aGk="}, ()),
    "v['p'] = [Part.from_text('x'), Content(parts=[Part(text='y')], role='user')]": (
        {"p": [{"text": "x"}, {"parts": [{"text": "y"}], "role": "user"}]},
        (),
    ),
    "import enum\nclass E(enum.StrEnum): A = 'x'\nv[E.A] = E.A": ({"x": "x"}, ()),
    "import collections\nv['d'] = collections.OrderedDict(k=1)": ({"d": {"k": 1}}, ()),
    "v['big'] = 2**64 - 1; v['small'] = -2**63": ({"big": 2**64 - 1, "small": -(2**63)}, ()),
}


@pytest.mark.parametrize("lines", DELTAS)
def test_the_delta_is_what_changed(bench, lines):
    reply = bench.before_agent(lines, variables={"a": 1, "cart": {"items": [1]}, "gone": None})
    assert reply.error is None
    assert (reply.set, tuple(reply.remove)) == DELTAS[lines]
    assert [type(value) for value in reply.set.values()] == [type(value) for value in DELTAS[lines][0].values()]


NOT_JSON = {
    "import datetime; v['cart'] = {'when': datetime.datetime.now()}": "variables.cart.when: datetime",
    "v['a'] = [1, {2}]": "variables.a[1]: set",
    "v['a'] = float('nan')": "variables.a: NaN",
    "v['a'] = {'b': -float('inf')}": "variables.a.b: Infinity",
    "v['a'] = {'b': {7: 1}}": "variables.a.b: a key of type int",
    "v[None] = 1": "variables: a key of type NoneType",
    "v['a b'] = 2 ** 64": "variables['a b']: an int beyond 64 bits",
    "v['a'] = '\\ud800'": "variables.a: text with a lone surrogate",
    "v['a'] = []; v['a'].append(v['a'])": "variables.a[0]: a cycle",
    "x = []\nfor _ in range(100_000): x = [x]\nv['a'] = x": "nested deeper than 60",
    "v['a'] = lambda: 1": "variables.a: function",
    "class Evil:\n    __class__ = property(lambda s: 1/0)\n    def __eq__(s, o): raise SystemExit\nv['a'] = Evil()": "variables.a: Evil",
    "v['a'] = {'x': object()}": "variables.a.x: object",
}


@pytest.mark.parametrize("lines", NOT_JSON)
def test_what_json_cannot_carry_is_an_error_that_names_the_path(bench, lines):
    reply = bench.before_agent("v['ok'] = 1\n" + lines)
    assert reply.error.type == "NotJson"
    assert reply.error.message.endswith(NOT_JSON[lines])
    assert (reply.set, reply.error.file) == ({}, "first.py")


def test_a_result_json_cannot_carry_is_an_error_too(bench):
    reply = bench.run("before_tool_callback", "def before_tool_callback(t, i, c): return {'when': {1}}")
    assert reply.error.message == "returned.when: set"
    reply = bench.run("before_tool_callback", "def before_tool_callback(t, i, c): i['x'] = {1}")
    assert reply.error.message == "input.x: set"


def test_a_variable_may_have_as_much_json_as_the_platform_takes(bench):
    assert bench.before_agent("v['k'] = 'x' * (262_144 - 2)").error is None
    error = bench.before_agent("v['k'] = 'x' * (262_144 - 1)").error
    assert error.message == "Variable update for key 'k' is too large: 262145 bytes (max: 262144)"


def test_a_large_variable_nobody_touched_is_nobodys_fault(bench):
    assert bench.before_agent("v['x'] = 1", variables={"big": "x" * 300_000}).set == {"x": 1}


def test_hostile_containers_are_read_as_their_base(bench):
    reply = bench.before_agent("""
        class D(dict):
            def items(self): raise RuntimeError
            def __iter__(self): raise RuntimeError
            def __eq__(self, other): raise RuntimeError
        class S(str):
            def __str__(self): raise RuntimeError
            __eq__ = lambda s, o: 1 / 0
            __hash__ = str.__hash__
        v['a'] = D(k=S('text'))
    """)
    assert reply.set == {"a": {"k": "text"}}


def test_variables_that_are_no_dict_any_more_are_an_error(bench):
    assert bench.before_agent("c.state = [1]").error.message == "variables must be a dict, it is list"


def test_every_session_has_a_modality_and_a_channel(bench):
    code = "assert c.get_variable('_session') == {'modality': 'TEXT', 'channel': 'API'}"
    assert bench.before_agent(code).error is None
    given = {"_session": {"modality": "VOICE", "channel": "PHONE"}}
    assert bench.before_agent("v['m'] = v['_session']['modality']", variables=given).set == {"m": "VOICE"}


def test_state_is_a_plain_dict_all_the_way_down(bench):
    code = "assert type(v) is dict and type(v['a']) is dict and type(v['a']['b']) is list and c.state is v is context.state"
    assert bench.before_agent(code, variables={"a": {"b": [1]}}).error is None


def test_live_numbers_in_variables_are_floats(bench):
    reply = bench.before_agent("v['type'] = type(v['n']).__name__; v['m'] = 2", variables={"n": 1}, fidelity="live")
    assert reply.set == {"type": "float", "m": 2.0}
    assert type(reply.set["m"]) is float


def test_a_thread_left_behind_may_go_on_writing(bench):
    reply = bench.before_agent("""
        import threading
        stop = threading.Event()
        def write():
            for i in range(20_000):
                v[str(i)] = i
        threading.Thread(target=write, daemon=True).start()
    """)
    assert reply.error is None
