"""uvicorn's server as a part of a larger asyncio program, which owns the event loop and the signal handlers.

Listens on one address and calls one ASGI application.
"""

import asyncio
import errno
import resource
import socket
from functools import partial

import uvicorn
from starlette.types import ASGIApp

from switchyard.domain.errors import SettingError
from switchyard.entrypoints.http.transport.guard import ConnectionCaps, Proxies
from switchyard.entrypoints.http.transport.protocol import BoundedHttpProtocol
from switchyard.settings import Settings
from switchyard.telemetry.metrics import Metrics

# Longer than clients keep an idle connection. If the server closed first, an order sent at that moment would be lost,
# and its sender could not tell whether it was accepted.
KEEP_ALIVE_SECONDS = 75
# Connections that the kernel completes while the loop is busy with a commit; beyond it the client's kernel retries.
BACKLOG = 2048
# Per connection, in the kernel. Without a bound it stores megabytes for each stream that its client does not read.
SEND_BUFFER_BYTES = 128 * 1024
# Open files that are not connections: databases, logs, venues.
OTHER_FILES = 500
# A cancelled handler ends at once; this is the limit for one that hangs nevertheless.
CANCEL_SECONDS_MAX = 1.0


class HttpServer:
    """Serves one ASGI application on one address."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        port: int,
        port_setting: str = "SWITCHYARD_PORT",
        caps: ConnectionCaps | None = None,
    ) -> None:
        self.caps = caps or ConnectionCaps()
        config = uvicorn.Config(
            app,
            http=partial(BoundedHttpProtocol, caps=self.caps),  # type: ignore[arg-type]
            ws="none",
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            # Formatting a date for every response takes time, and no client needs it.
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            backlog=BACKLOG,
        )
        self._server = uvicorn.Server(config)
        self._host = host
        self._port_setting = port_setting
        self.port = port
        """The configured port; after `start` the port in use."""

    async def start(self) -> None:
        """Start to accept connections; raises SettingError where the address cannot be used."""
        listener = await self._listen()
        self.port = listener.getsockname()[1]
        # The same as `uvicorn.Server.serve` without its signal handlers and its main loop of ten ticks a second.
        config = self._server.config
        config.load()
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(sockets=[listener])

    async def stop(self, grace_seconds: float) -> None:
        """Stop accepting, close streams, let requests finish, and abort those that exceed the grace period."""
        if not self._server.started:
            return
        self._server.started = False
        try:
            async with asyncio.timeout(grace_seconds):
                await self._server.shutdown()
        except TimeoutError:
            await self._abort_connections()

    async def _listen(self) -> socket.socket:
        try:
            addresses = await asyncio.get_running_loop().getaddrinfo(self._host, self.port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            raise SettingError("SWITCHYARD_HOST", f"{self._host!r} is not an address of this machine") from error
        # A name such as localhost has several addresses; take the IPv4 one, which every client tries.
        family, *_, address = min(addresses)
        try:
            listener = socket.create_server(address, family=family, backlog=BACKLOG)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            return listener
        except OSError as error:
            address_text = f"{self._host}:{self.port}"
            match error.errno:
                case errno.EADDRINUSE:
                    raise SettingError(
                        self._port_setting,
                        f"{address_text} is in use by another process: stop it or choose another port",
                    ) from error
                case errno.EACCES:
                    raise SettingError(
                        self._port_setting, f"{address_text} needs privileges: use a port from 1024 on"
                    ) from error
                case _:
                    raise SettingError(
                        "SWITCHYARD_HOST", f"cannot listen on {address_text}: {error.strerror}"
                    ) from error

    async def _abort_connections(self) -> None:
        state = self._server.server_state
        for connection in list(state.connections):
            connection.transport.abort()
        # Let the loop deliver the disconnects first: a cancelled handler then has no connection to send a 500 to.
        await asyncio.sleep(0)
        tasks = list(state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_SECONDS_MAX)


def connections_within_file_limit(wanted: int) -> int:
    """Return how many connections the process can have open: each one is an open file."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return wanted if files == resource.RLIM_INFINITY else max(1, min(wanted, files - OTHER_FILES))


def connection_caps(settings: Settings, metrics: Metrics) -> ConnectionCaps:
    """Build the limits of the settings."""
    return ConnectionCaps(
        total_max=connections_within_file_limit(settings.connections_max),
        per_address_max=settings.connections_per_address_max,
        proxies=Proxies(settings.trusted_proxies),
        on_rejection=metrics.connections_rejected.inc,
    )
