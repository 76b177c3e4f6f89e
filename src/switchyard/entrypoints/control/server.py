"""The control socket: commands reach the one process that may write to a SQLite file.

Accepts `ResolveDoubt`, `RunRecheck`, `ListVenues` and the commands of the kill switch and carries them out through the
engine.
PostgreSQL needs no such socket.
"""

import asyncio
import contextlib
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import structlog

from switchyard.bootstrap import Engine
from switchyard.domain.errors import InvalidJson, OutcomeUnknown, SwitchyardError, Unavailable
from switchyard.domain.ids import VenueName
from switchyard.domain.journal.events import encode
from switchyard.domain.journal.facts import DecisionFact
from switchyard.domain.orders.order import Order, snapshot
from switchyard.entrypoints.control.client import carry_out
from switchyard.entrypoints.control.messages import (
    REQUEST_BYTES_MAX,
    ControlReply,
    ControlRequest,
    Decided,
    Declined,
    ListVenues,
    RecheckBegun,
    ResolveDoubt,
    RunRecheck,
    VenuesTold,
    address_of,
    socket_path,
)
from switchyard.flow.kill.switch import KillSwitch
from switchyard.settings import Settings

log = structlog.get_logger()

SOCKET_MODE = 0o600
# Operators decide one row at a time; more parallelism would not help a script either.
CONNECTIONS_MAX = 8
# A command sends its one line immediately.
REQUEST_SECONDS_MAX = 5.0
# The journal commits within milliseconds; after this time the outcome is reported as unknown.
ANSWER_SECONDS_MAX = 30.0
# Enough for a commit under way; connections without a request are closed after it.
STOP_SECONDS_MAX = 1.0

EndDoubt = Callable[[str, DecisionFact], Awaitable[Order]]


class ControlServer:
    """Listens on a socket that only this user can open; the caller must hold the database's lock."""

    def __init__(
        self,
        path: Path,
        end_doubt: EndDoubt,
        kill_switch: KillSwitch,
        run_recheck: Callable[[str], None],
        sends_to: Callable[[], Iterable[VenueName]],
    ) -> None:
        self._path = path
        self._end_doubt = end_doubt
        self._kill_switch = kill_switch
        self._run_recheck = run_recheck
        self._sends_to = sends_to
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Listen, replacing a socket that a crash left behind; on failure log a warning and run without it."""
        try:
            listener = self._bound()
            self._server = await asyncio.start_unix_server(self._serve, sock=listener, limit=REQUEST_BYTES_MAX)
        except OSError as error:
            log.warning("control_socket_unavailable", path=str(self._path), error=str(error))

    async def stop(self) -> None:
        """Remove the socket and finish the requests under way."""
        if self._server is None:
            return
        self._server.close()
        self._path.unlink(missing_ok=True)
        if self._serving:
            _, idle = await asyncio.wait(self._serving, timeout=STOP_SECONDS_MAX)
            for task in idle:
                task.cancel()
            await asyncio.gather(*idle, return_exceptions=True)

    def _bound(self) -> socket.socket:
        # We hold the lock, so the process that created the socket is gone. Another kind of file is kept: bind fails.
        if self._path.exists() and stat.S_ISSOCK(self._path.stat().st_mode):
            self._path.unlink()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with address_of(self._path) as address:
                listener.bind(address)
            # Before it listens, so that other users can never connect.
            self._path.chmod(SOCKET_MODE)
        except BaseException:
            listener.close()
            raise
        return listener

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        too_many = len(self._serving) >= CONNECTIONS_MAX
        self._serving.add(task)
        try:
            reply = _too_many() if too_many else await self._reply(reader)
            writer.write(encode(reply) + b"\n")
            async with asyncio.timeout(REQUEST_SECONDS_MAX):
                await writer.drain()
        except (OSError, EOFError, TimeoutError):
            pass  # the client is gone
        finally:
            self._serving.discard(task)
            writer.close()

    async def _reply(self, reader: asyncio.StreamReader) -> ControlReply:
        async with asyncio.timeout(REQUEST_SECONDS_MAX):
            try:
                line = await reader.readuntil(b"\n")
            except asyncio.LimitOverrunError:
                return Declined.of(InvalidJson(f"the request is longer than {REQUEST_BYTES_MAX} bytes"))
        try:
            request: ControlRequest = msgspec.json.decode(line, type=ControlRequest)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return Declined.of(InvalidJson(f"not a valid request: {error}"))
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                if isinstance(request, RunRecheck):
                    self._run_recheck(request.request_id)
                    return RecheckBegun()
                if isinstance(request, ListVenues):
                    return VenuesTold(list(self._sends_to()))
                if not isinstance(request, ResolveDoubt):
                    return await carry_out(self._kill_switch, request)
                order = await self._end_doubt(request.id, request.decision)
        except SwitchyardError as error:
            return Declined.of(error)
        except TimeoutError:
            return Declined.of(
                OutcomeUnknown("the journal did not commit in time: the decision may or may not be recorded")
            )
        except Exception:
            log.exception("control_command_failed", command=type(request).__name__)
            return Declined.of(OutcomeUnknown("the server failed: see control_command_failed in its log"))
        return Decided(snapshot(order))


def _too_many() -> ControlReply:
    return Declined.of(Unavailable(f"{CONNECTIONS_MAX} commands are open, the maximum: try again"))


@asynccontextmanager
async def serving_commands(settings: Settings, engine: Engine) -> AsyncIterator[None]:
    """Serve the control socket if the database is SQLite; with PostgreSQL commands connect to the database."""
    if settings.database_url is not None:
        yield
        return
    server = ControlServer(
        socket_path(settings), engine.end_doubt, engine.kill_switch, engine.run_recheck, lambda: engine.sends_to
    )
    await server.start()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            await server.stop()
