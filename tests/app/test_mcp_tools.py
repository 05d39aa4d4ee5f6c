"""Tools of a real MCP server, started over stdio by the official client."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from dispatcher.tools import McpTools
from sandbox import codec
from sandbox.contract import Call
from sandbox.errors import InputError

SERVER = """
import time
from mcp.server.fastmcp import FastMCP

server = FastMCP("bags", log_level="ERROR")

@server.tool()
def find_bag(number: str) -> dict[str, str]:
    return {"number": number, "place": "Oslo"}

@server.tool(structured_output=False)
def say(text: str) -> str:
    return text

@server.tool()
def lose() -> str:
    raise ValueError("it is gone")

@server.tool()
async def wait(seconds: float) -> str:
    import asyncio
    await asyncio.sleep(seconds)
    return "done"

server.run()
"""


@pytest.fixture(scope="module")
def tools():
    with McpTools.stdio(sys.executable, "-c", SERVER, timeout_s=1) as host:
        yield host


def ask(host, name: str, **arguments):
    answer = host.call(Call(1, "tool", name, codec.pack(arguments)))
    return answer.status_code, json.loads(answer.text) if answer.text else answer.reason


def test_the_servers_tools_are_the_names(tools):
    assert tools.names == ("find_bag", "say", "lose", "wait")


def test_a_result_is_its_structured_content_or_its_text(tools):
    assert ask(tools, "find_bag", number="B7") == (200, {"result": {"number": "B7", "place": "Oslo"}})
    assert ask(tools, "say", text="hello") == (200, {"result": "hello"})


def test_an_error_of_the_tool_is_a_failure_with_its_text(tools):
    status, told = ask(tools, "lose")
    assert (status, "it is gone" in told["error"]) == (500, True)


def test_a_tool_that_takes_too_long_is_answered_in_time_and_others_go_on(tools):
    with ThreadPoolExecutor(4) as threads:
        slow = threads.submit(ask, tools, "wait", seconds=20)
        quick = list(threads.map(lambda n: ask(tools, "say", text=n), "abc"))
    assert quick == [(200, {"result": n}) for n in "abc"]
    assert slow.result()[0] in {500, 504}


def test_a_program_that_is_no_server_is_said_when_the_block_is_entered():
    with pytest.raises(InputError, match="mcp server: did not start"), McpTools.stdio("/does/not/exist"):
        raise AssertionError
    with pytest.raises(InputError, match="mcp server"), McpTools.stdio(sys.executable, "-c", "pass"):
        raise AssertionError


def test_after_the_block_the_tools_fail_instead_of_hanging():
    host = McpTools.stdio(sys.executable, "-c", SERVER)
    with host:
        assert ask(host, "say", text="x")[0] == 200
    assert ask(host, "say", text="x") == (502, {"error": "the session with the MCP server is over"})
