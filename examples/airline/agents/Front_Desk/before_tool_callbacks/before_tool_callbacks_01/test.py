"""Tests beside a callback: `hookpool eval` runs each of them with pytest, in a sandbox of its own."""

import pytest
from python_code import CallbackContext, Tool, before_tool_callback

LOOKUP = Tool(name="lookup_booking")


@pytest.fixture
def context():
    return CallbackContext(session_id="s", agent_name="Front Desk", invocation_id="i", variables={}, events=[])


@pytest.mark.parametrize("spelt", ["k7m2qp", "K7M 2QP", "k7m-2qp"])
def test_a_reference_is_cleaned_and_the_tool_runs(context, spelt):
    arguments = {"booking_reference": spelt}
    assert before_tool_callback(LOOKUP, arguments, context) is None
    assert arguments == {"booking_reference": "K7M2QP", "source": "care"}


def test_what_is_no_reference_is_answered_here(context):
    answer = before_tool_callback(LOOKUP, {"booking_reference": "K7M"}, context)
    assert "is no booking reference" in answer["error"]
    assert context.variables["last_tool_error"]["code"] == "bad_reference"


def test_another_tool_is_left_alone(context):
    arguments = {"seat": "12A"}
    assert before_tool_callback(Tool(name="seat_options"), arguments, context) is None
    assert arguments == {"seat": "12A"}
