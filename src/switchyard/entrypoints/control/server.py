"""The control socket: how a person's command reaches the one process that may write to a SQLite file."""

import asyncio
import contextlib
import socket
import stat
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import structlog

from switchyard.bootstrap import Engine
from switchyard.domain.errors import InvalidJson, OutcomeUnknown, SwitchyardError, Unavailable
from switchyard.domain.events import Verdict, encode
from switchyard.domain.orders import Order, snapshot
from switchyard.entrypoints.control.messages import (
    REQUEST_BYTES_MAX,
    ControlReply,
    Decided,
    Declined,
    ResolveDoubt,
    address_of,
    socket_path,
)
from switchyard.settings import Settings

log = structlog.get_logger()

SOCKET_MODE = 0o600
# People decide one doubt at a time; a script that does it in parallel gains nothing from more.
CONNECTIONS_MAX = 8
# A command sends its line at once.
REQUEST_SECONDS_MAX = 5.0
# The journal commits within milliseconds; a disk that takes this long leaves the outcome unknown.
ANSWER_SECONDS_MAX = 30.0
# At the end: long enough for a commit under way; whoever has asked for nothing by then is cut off.
STOP_SECONDS_MAX = 1.0

EndDoubt = Callable[[str, Verdict, str, str], Awaitable[Order]]


class ControlServer:
    """Listens on a socket that only this user may open; the caller holds the database's lock."""

    def __init__(self, path: Path, end_doubt: EndDoubt) -> None:
        self._path = path
        self._end_doubt = end_doubt
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Take the place of a socket that a crash left behind; without one everything else still runs."""
        try:
            listener = self._bound()
            self._server = await asyncio.start_unix_server(self._serve, sock=listener, limit=REQUEST_BYTES_MAX)
        except OSError as error:
            log.warning("no decisions can be taken while this process runs", socket=str(self._path), error=str(error))

    async def stop(self) -> None:
        """Leave no socket behind, and finish what was asked for."""
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
        # Whoever made it is dead, for we hold the lock; a file of somebody else's is left alone, and the bind fails.
        if self._path.exists() and stat.S_ISSOCK(self._path.stat().st_mode):
            self._path.unlink()
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with address_of(self._path) as address:
                listener.bind(address)
            # Before it listens, so that there is no moment in which others could connect.
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
            answer = Declined.of(Unavailable("too many commands at once")) if too_many else await self._answer(reader)
            writer.write(encode(answer) + b"\n")
            async with asyncio.timeout(REQUEST_SECONDS_MAX):
                await writer.drain()
        except (OSError, EOFError, TimeoutError):
            pass  # nobody is there to be told
        finally:
            self._serving.discard(task)
            writer.close()

    async def _answer(self, reader: asyncio.StreamReader) -> ControlReply:
        async with asyncio.timeout(REQUEST_SECONDS_MAX):
            try:
                line = await reader.readuntil(b"\n")
            except asyncio.LimitOverrunError:
                return Declined.of(InvalidJson(f"a request has at most {REQUEST_BYTES_MAX} bytes"))
        try:
            request = msgspec.json.decode(line, type=ResolveDoubt)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return Declined.of(InvalidJson(f"not a request: {error}"))
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                order = await self._end_doubt(request.id, request.verdict, request.by, request.reason)
        except SwitchyardError as error:
            return Declined.of(error)
        except TimeoutError:
            return Declined.of(OutcomeUnknown("the journal did not answer in time"))
        except Exception:
            log.exception("a command failed in an unexpected way")
            return Declined.of(OutcomeUnknown("the server failed; its log says how"))
        return Decided(snapshot(order))


@asynccontextmanager
async def serving_commands(settings: Settings, engine: Engine) -> AsyncIterator[None]:
    """Listen for as long as this process holds the SQLite file; PostgreSQL is open to every command by itself."""
    if settings.database_url is not None:
        yield
        return
    server = ControlServer(socket_path(settings), engine.end_doubt)
    await server.start()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            await server.stop()
