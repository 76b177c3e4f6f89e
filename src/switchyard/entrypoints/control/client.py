"""Carries out a person's command: through the control socket of a running server, or directly in the database.

Used by `switchyard outbox resolve`, `switchyard kill` and `switchyard kills`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import assert_never

import msgspec

from switchyard.bootstrap import (
    carry_out_recheck,
    decide_doubt,
    deciders,
    direct_kill_switch,
    open_pdca_store,
)
from switchyard.domain.errors import AlreadyRunning, NotFound, OutcomeUnknown
from switchyard.domain.ids import VenueName
from switchyard.domain.journal.events import encode
from switchyard.domain.orders.order import OrderSnapshot, snapshot
from switchyard.entrypoints.control.messages import (
    ANSWER_BYTES_MAX,
    ClearKill,
    ControlReply,
    ControlRequest,
    Decided,
    Declined,
    KillCommand,
    KillsTold,
    KillTold,
    ListKills,
    ListVenues,
    RecheckBegun,
    ResolveDoubt,
    RunRecheck,
    SetKill,
    ShowKill,
    VenuesTold,
    address_of,
    socket_path,
)
from switchyard.flow.kill.switch import KillSwitch, check_kill
from switchyard.flow.sending.operator import Decider, check_decision
from switchyard.ports.outbox import OutboxListing
from switchyard.ports.strategies import PdcaStore, StoredRequest
from switchyard.settings import Settings


async def carry_out(switch: KillSwitch, command: KillCommand) -> KillTold | KillsTold:
    """The answer to a command."""
    match command:
        case SetKill(request=request, wait_seconds=seconds):
            kill = await switch.set(request)
            return KillTold(await switch.settled_state(kill.kill_id, seconds))
        case ClearKill(kill_id=kill_id, by=by, reason=reason):
            await switch.clear(kill_id, by, reason)
            return KillTold(await switch.settled_state(kill_id, 0))
        case ShowKill(kill_id=kill_id):
            return KillTold(await switch.state(kill_id))
        case ListKills(limit=limit):
            return KillsTold(await switch.newest(before=None, limit=limit))
        case unreachable:
            assert_never(unreachable)


# A starting server holds the lock before it listens, and another command holds it for a moment.
RETRY_SECONDS_MAX = 5.0
POLL_SECONDS = 0.05
# Longer than the server's own limit (30 s), so that the server decides what a time-out means.
ANSWER_SECONDS_MAX = 60.0
TELL_AGAIN_SECONDS = 5.0
RECHECK_POLL_SECONDS = 0.2
# The command that shows whether a request without a reply was carried out; for those of the kill switch `kills list`.
_CHECKS: dict[type, str] = {ResolveDoubt: "switchyard outbox list", RunRecheck: "switchyard pdca run"}


async def resolve_doubt(settings: Settings, request: ResolveDoubt) -> OrderSnapshot:
    """Record the decision and return the order after it."""
    check_decision(request.id, request.decision)

    async def directly() -> ControlReply:
        return Decided(snapshot(await decide_doubt(settings, request.id, request.decision)))

    reply = await _carried_out(settings, request, directly)
    assert isinstance(reply, Decided), "the reply to another request"
    return reply.order


async def deciders_of(
    settings: Settings, listing: OutboxListing, venues: Iterable[VenueName]
) -> Mapping[VenueName, Decider]:
    """The workers that settle the doubts at the venues: by what they declared, and whether they are known to run.

    On SQLite the one process that can send is asked; on PostgreSQL workers report in the database.
    """
    if settings.database_url is not None:
        return await deciders(listing, venues)
    try:
        reply = await _request(socket_path(settings), ListVenues(), AlreadyRunning("a process runs"))
    except (AlreadyRunning, OutcomeUnknown):
        reply = None  # no process can be asked
    return await deciders(listing, venues, reply.venues if isinstance(reply, VenuesTold) else ())


async def command_kill_switch(settings: Settings, command: KillCommand) -> KillTold | KillsTold:
    """Carry out a command of the kill switch."""
    if isinstance(command, SetKill):
        check_kill(command.request, settings.venue_names)

    async def directly() -> ControlReply:
        async with direct_kill_switch(settings) as switch:
            if isinstance(command, SetKill) and settings.database_url is None:
                # No worker runs, so nothing would change; and a server that starts now needs the file.
                return await carry_out(switch, SetKill(request=command.request))
            return await carry_out(switch, command)

    reply = await _carried_out(settings, command, directly)
    assert isinstance(reply, KillTold | KillsTold), "the reply to another request"
    return reply


async def run_recheck(settings: Settings, request_id: str) -> StoredRequest:
    """Carry out a stored recheck, here or in the server that holds the database, and return it when it has ended."""
    store = await open_pdca_store(settings, create=False)
    try:
        stored = await store.request(request_id)
        if stored is None:
            raise NotFound(f"the recheck {request_id} was not found")

        async def directly() -> ControlReply:
            await carry_out_recheck(settings, request_id)
            return RecheckBegun()

        while stored.finished_at is None:
            # Told again from time to time: a server that was restarted since does not know of it.
            await _carried_out(settings, RunRecheck(request_id=request_id), directly)
            stored = await _progressed(store, request_id, TELL_AGAIN_SECONDS)
        return stored
    finally:
        await store.close()


async def _progressed(store: PdcaStore, request_id: str, seconds: float) -> StoredRequest:
    """The request when it has ended, or after so many seconds."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        stored = await store.request(request_id)
        if stored is None:
            raise NotFound(f"the recheck {request_id} was removed")
        if stored.finished_at is not None or asyncio.get_running_loop().time() >= deadline:
            return stored
        await asyncio.sleep(RECHECK_POLL_SECONDS)


async def _carried_out(
    settings: Settings, request: ControlRequest, directly: Callable[[], Awaitable[ControlReply]]
) -> ControlReply:
    """The reply of the server that holds the database, or of `directly` where there is none."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + RETRY_SECONDS_MAX
    while True:
        try:
            return await directly()
        except AlreadyRunning as running:
            reply = await _request(socket_path(settings), request, running)
            if isinstance(reply, Declined):
                raise reply.error() from None
            if reply is not None:
                return reply
            if loop.time() >= deadline:
                raise AlreadyRunning(
                    f"{running}; it does not listen on its control socket: stop it, then repeat this command"
                ) from None
        await asyncio.sleep(POLL_SECONDS)


async def _request(path: Path, request: ControlRequest, running: AlreadyRunning) -> ControlReply | None:
    """The server's reply; none if no server listens."""
    try:
        with address_of(path) as address:
            reader, writer = await asyncio.open_unix_connection(address, limit=ANSWER_BYTES_MAX)
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    except OSError as error:
        raise AlreadyRunning(f"{running}; its control socket {path} cannot be opened: {error}") from None
    try:
        return await _exchange(reader, writer, request)
    finally:
        writer.close()


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: ControlRequest
) -> ControlReply:
    try:
        async with asyncio.timeout(ANSWER_SECONDS_MAX):
            writer.write(encode(request) + b"\n")
            await writer.drain()
            line = await reader.readuntil(b"\n")
        reply: ControlReply = msgspec.json.decode(line, type=ControlReply)
    except (OSError, EOFError, TimeoutError, asyncio.LimitOverrunError, msgspec.DecodeError):
        check = _CHECKS.get(type(request), "switchyard kills list")
        raise OutcomeUnknown(f"the server did not reply: it may or may not be recorded; check `{check}`") from None
    return reply
