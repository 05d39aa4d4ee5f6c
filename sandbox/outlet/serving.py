"""The broker's loop: frames in, a task for each call, frames out.

Theory of operation. One event loop. The socket is read in turn; a call becomes a task on the account
of its invocation, and its answer is written under a lock. An account ends when the worker says so,
and with it its tasks and connections. Nothing grows without a bound: tasks are counted, bodies in
hand share one `Room`, look-ups have a fixed number of threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import traceback
from typing import TYPE_CHECKING, Any, NoReturn

import httpcore2

from sandbox import codec
from sandbox.egress.codes import Code, Refused
from sandbox.errors import ProtocolError
from sandbox.outlet import confine, frames
from sandbox.outlet.account import Account, Load, Room, World
from sandbox.outlet.names import OwnAddresses, names_of

if TYPE_CHECKING:
    import socket
    import ssl

    from sandbox.egress.policy import Plan

MOST_TASKS = 4096
SWEEP_S = 30.0  # between two looks for accounts that nobody ended
CHUNK = 256 * 1024


def trust(plan: Plan) -> ssl.SSLContext:
    """The system's certificates, and the operator's file. Verification is always on."""
    context = httpcore2.default_ssl_context()
    if plan.ca_file:
        context.load_verify_locations(plan.ca_file)
    return context


def run(channel: socket.socket, parent: int) -> NoReturn:
    """Read the plan, give up what is not needed, serve until the worker is gone."""
    try:
        plan = frames.plan_of(_first_frame(channel))
        world = World(plan, names_of(plan), trust(plan), OwnAddresses())
        layers, missing = confine.confine(plan, parent)
    except Exception as problem:  # whatever it was, the worker must hear of it
        _last_word(channel, problem)
        os._exit(1)
    channel.sendall(codec.frame(codec.pack({"ready": layers, "missing": missing, "uid": os.getuid()})))
    channel.setblocking(False)
    try:
        asyncio.run(Broker(world, channel).serve())
    except Exception as problem:
        _last_word(channel, problem)
    os._exit(0)  # look-ups that hang do not keep it


def _last_word(channel: socket.socket, problem: Exception) -> None:
    """It has no other way to say why it ends."""
    text = f"{type(problem).__name__}: {problem} ({_place(problem)})"
    channel.settimeout(1)
    with contextlib.suppress(OSError):
        channel.sendall(codec.frame(codec.pack({"failed": text[:2000]})))


def _first_frame(channel: socket.socket) -> dict[str, Any]:
    reader = codec.FrameReader(frames.FRAME_BYTES)
    while data := channel.recv(CHUNK):
        for payload in reader.feed(data):
            plan: dict[str, Any] = codec.unpack(payload, frames.FRAME_BYTES)
            return plan
    os._exit(0)  # the worker is gone already


class Broker:
    """Answers what comes on one channel."""

    def __init__(self, world: World, channel: socket.socket) -> None:
        self._world = world
        self._channel = channel
        self._accounts: dict[str, Account] = {}
        self._tasks: dict[str, set[asyncio.Task[None]]] = {}
        self._count = 0
        self._room = Room(world.plan.memory_mb << 20)
        self._writing = asyncio.Lock()

    async def serve(self) -> None:
        """Until the end of the channel. Raises ProtocolError for what no worker sends."""
        loop = asyncio.get_running_loop()
        reader = codec.FrameReader(frames.FRAME_BYTES)
        sweeping = loop.create_task(self._sweep())
        while data := await loop.sock_recv(self._channel, CHUNK):
            for payload in reader.feed(data):
                await self._take(codec.unpack(payload, frames.FRAME_BYTES))
        sweeping.cancel()

    async def _sweep(self) -> None:
        """A call that overtook the end of its invocation opened an account that nobody will end."""
        while True:
            await asyncio.sleep(SWEEP_S)
            now = time.monotonic()
            for invocation in [key for key, account in self._accounts.items() if now > account.until]:
                await self._end(invocation)

    async def _take(self, raw: Any) -> None:
        match raw:
            case {"end": str(invocation)}:
                await self._end(invocation)
            case {"id": int(), "invocation": str(invocation)}:
                self._begin(frames.decode(frames.Asked, raw), invocation)
            case _:
                raise ProtocolError("broker: a frame of no known kind")

    def _begin(self, asked: frames.Asked, invocation: str) -> None:
        self._count += 1
        task = asyncio.create_task(self._answer(asked))
        tasks = self._tasks.setdefault(invocation, set())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _end(self, invocation: str) -> None:
        for task in self._tasks.pop(invocation, ()):
            task.cancel()
        account = self._accounts.pop(invocation, None)
        if account is not None:
            await account.close()

    async def _answer(self, asked: frames.Asked) -> None:
        try:
            with Load(self._room) as load:
                await self._send(await self._made(asked, load))
        finally:
            self._count -= 1

    async def _made(self, asked: frames.Asked, load: Load) -> frames.Answer:
        try:
            if self._count > MOST_TASKS:
                raise Refused(Code.INTERNAL_ERROR, f"more than {MOST_TASKS} requests at once in this worker")
            ask = frames.ask_of(asked.arguments)
            account = self._accounts.get(asked.invocation)
            if account is None:
                account = self._accounts[asked.invocation] = Account(self._world)
            account.until = time.monotonic() + asked.within_s + SWEEP_S
            return await account.answer(asked.id, ask, asked.within_s, load)
        except ProtocolError as problem:
            return _failed(asked.id, Refused(Code.PROTOCOL_ERROR, str(problem)))
        except Refused as refused:
            return _failed(asked.id, refused)
        except Exception as problem:  # a fault of ours is an answer to the code, and ends nothing else
            return _failed(asked.id, Refused(Code.INTERNAL_ERROR, f"{type(problem).__name__} at {_place(problem)}"))

    async def _send(self, answer: frames.Answer) -> None:
        async with self._writing:
            await asyncio.get_running_loop().sock_sendall(self._channel, frames.encode(answer))


def _place(problem: Exception) -> str:
    where = traceback.extract_tb(problem.__traceback__, limit=-1)[0]
    return f"{os.path.basename(where.filename)}:{where.lineno}"


def _failed(number: int, refused: Refused) -> frames.Answer:
    return frames.Answer(number, 0, "", f"{refused.code}: {refused.text}")
