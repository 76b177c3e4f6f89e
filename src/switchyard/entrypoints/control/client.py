"""Records an operator's decision: through the control socket of a running server, or directly in the database.

Used by `switchyard outbox resolve`.
"""

import asyncio
from pathlib import Path
from typing import assert_never

import msgspec

from switchyard.bootstrap import decide_doubt
from switchyard.domain.errors import AlreadyRunning, OutcomeUnknown
from switchyard.domain.events import encode
from switchyard.domain.orders import OrderSnapshot, snapshot
from switchyard.entrypoints.control.messages import (
    ANSWER_BYTES_MAX,
    ControlReply,
    Decided,
    Declined,
    ResolveDoubt,
    address_of,
    socket_path,
)
from switchyard.flow.sending.operator import check_decision
from switchyard.settings import Settings

# A starting server holds the lock before it listens, and another command holds it for a moment.
RETRY_SECONDS_MAX = 5.0
POLL_SECONDS = 0.05
# Longer than the server's own limit (30 s), so that the server decides what a time-out means.
ANSWER_SECONDS_MAX = 60.0


async def resolve_doubt(settings: Settings, request: ResolveDoubt) -> OrderSnapshot:
    """Record the decision and return the order after it."""
    check_decision(request.id, request.decision)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + RETRY_SECONDS_MAX
    while True:
        try:
            return snapshot(await decide_doubt(settings, request.id, request.decision))
        except AlreadyRunning as running:
            order = await _request(socket_path(settings), request, running)
            if order is not None:
                return order
            if loop.time() >= deadline:
                raise AlreadyRunning(
                    f"{running}; it does not listen on its control socket: stop it, then repeat this command"
                ) from None
        await asyncio.sleep(POLL_SECONDS)


async def _request(path: Path, request: ResolveDoubt, running: AlreadyRunning) -> OrderSnapshot | None:
    """The order from the server's reply; none if no server listens."""
    try:
        with address_of(path) as address:
            reader, writer = await asyncio.open_unix_connection(address, limit=ANSWER_BYTES_MAX)
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except OSError as error:
        raise AlreadyRunning(f"{running}; its control socket {path} cannot be opened: {error}") from None
    try:
        reply = await _exchange(reader, writer, request)
    finally:
        writer.close()
    match reply:
        case Decided(order):
            return order
        case Declined():
            raise reply.error()
        case _:
            assert_never(reply)


async def _exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: ResolveDoubt) -> ControlReply:
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            writer.write(encode(request) + b"\n")
            await writer.drain()
            line = await reader.readuntil(b"\n")
        reply: ControlReply = msgspec.json.decode(line, type=ControlReply)
    except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError, msgspec.DecodeError):
        raise OutcomeUnknown(
            "the server did not reply: the decision may or may not be recorded; check `switchyard outbox list`"
        ) from None
    return reply
