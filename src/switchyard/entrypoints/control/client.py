"""A person's decision, brought to whoever may write it: this process, or the server that holds the database."""

import asyncio
from pathlib import Path

import msgspec

from switchyard.bootstrap import decide_doubt
from switchyard.domain.errors import AlreadyRunning, OutcomeUnknown
from switchyard.domain.events import encode
from switchyard.domain.orders import OrderSnapshot, snapshot
from switchyard.entrypoints.control.messages import (
    ANSWER_BYTES_MAX,
    ControlReply,
    Declined,
    ResolveDoubt,
    address_of,
    socket_path,
)
from switchyard.flow.sending.operator import check_decision
from switchyard.settings import Settings

# A server listens only once it has started, and another command holds the lock for a moment.
PATIENCE_SECONDS = 5.0
POLL_SECONDS = 0.05
# Longer than the server itself takes to give up.
ANSWER_SECONDS_MAX = 60.0


async def resolve_doubt(settings: Settings, request: ResolveDoubt) -> OrderSnapshot:
    """Have the decision recorded by a running server, or open the database where there is none."""
    check_decision(request.id, request.by, request.reason)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + PATIENCE_SECONDS
    while True:
        try:
            return snapshot(await decide_doubt(settings, request.id, request.verdict, request.by, request.reason))
        except AlreadyRunning as running:
            answered = await _ask(socket_path(settings), request, running)
            if answered is not None:
                return answered
            if loop.time() >= deadline:
                raise AlreadyRunning(f"{running}; it takes no decisions: repeat this once it has ended") from None
        await asyncio.sleep(POLL_SECONDS)


async def _ask(path: Path, request: ResolveDoubt, running: AlreadyRunning) -> OrderSnapshot | None:
    """The server's answer; none while nobody listens."""
    try:
        with address_of(path) as address:
            reader, writer = await asyncio.open_unix_connection(address, limit=ANSWER_BYTES_MAX)
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except OSError as error:
        raise AlreadyRunning(f"{running}; its control socket {path} cannot be used: {error}") from None
    try:
        answer = await _exchange(reader, writer, request)
    finally:
        writer.close()
    if isinstance(answer, Declined):
        raise answer.error()
    return answer.order


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: ResolveDoubt) -> ControlReply:
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            writer.write(encode(request) + b"\n")
            await writer.drain()
            line = await reader.readuntil(b"\n")
        answer: ControlReply = msgspec.json.decode(line, type=ControlReply)
    except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError, msgspec.DecodeError):
        raise OutcomeUnknown(
            "the server has not answered: the decision may or may not be recorded; see `switchyard outbox list`"
        ) from None
    return answer
