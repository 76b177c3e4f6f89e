"""The HTTP server as a part of a larger asyncio program, which owns the loop and the signals."""

import asyncio
import errno
import socket

import uvicorn
from starlette.types import ASGIApp

from switchyard.domain.errors import SettingError
from switchyard.entrypoints.http.transport.protocol import BoundedHttpProtocol

# Longer than clients keep an unused connection: were we the first to close, an order sent in that moment would be lost
# in a way that its sender cannot tell from an order taken.
KEEP_ALIVE_SECONDS = 75
# Connections that the kernel completes while the loop is busy with a commit; more wait in the client's own retry.
BACKLOG = 2048
# A handler that was cancelled has nothing left to wait for; one that hangs all the same must not hold up the exit.
CANCEL_SECONDS_MAX = 1.0


class HttpServer:
    """Serves one ASGI application on one address."""

    def __init__(self, app: ASGIApp, *, host: str, port: int, port_setting: str = "SWITCHYARD_PORT") -> None:
        config = uvicorn.Config(
            app,
            http=BoundedHttpProtocol,
            ws="none",
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            # Built for every answer, read by no client of ours.
            date_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            backlog=BACKLOG,
        )
        self._server = uvicorn.Server(config)
        self._host = host
        self._port_setting = port_setting
        self.port = port
        """The port asked for; once started, the port in use."""

    async def start(self) -> None:
        """Accept connections from now on, or say which setting prevents it."""
        listener = await self._listen()
        self.port = listener.getsockname()[1]
        # What `uvicorn.Server.serve` does, less its signal handlers and its tick ten times a second.
        config = self._server.config
        config.load()
        self._server.lifespan = config.lifespan_class(config)
        await self._server.startup(sockets=[listener])

    async def stop(self, grace_seconds: float) -> None:
        """Accept nothing more, end streams, finish the requests at hand, and after the grace cut off what is left."""
        if not self._server.started:
            return
        self._server.started = False
        try:
            async with asyncio.timeout(grace_seconds):
                await self._server.shutdown()
        except TimeoutError:
            await self._cut_off()

    async def _listen(self) -> socket.socket:
        try:
            addresses = await asyncio.get_running_loop().getaddrinfo(self._host, self.port, type=socket.SOCK_STREAM)
        except socket.gaierror as error:
            raise SettingError("SWITCHYARD_HOST", f"{self._host!r} is no address of this machine") from error
        # A name such as localhost has several addresses; IPv4 is the one that every client tries.
        family, *_, address = min(addresses)
        try:
            return socket.create_server(address, family=family, backlog=BACKLOG)
        except OSError as error:
            place = f"{self._host}:{self.port}"
            match error.errno:
                case errno.EADDRINUSE:
                    raise SettingError(self._port_setting, f"{place} is in use by another process") from error
                case errno.EACCES:
                    raise SettingError(self._port_setting, f"{place} needs privileges; take 1024 or more") from error
                case _:
                    raise SettingError("SWITCHYARD_HOST", f"cannot listen on {place}: {error.strerror}") from error

    async def _cut_off(self) -> None:
        state = self._server.server_state
        for connection in list(state.connections):
            connection.transport.abort()
        # First the loop delivers the disconnects, so that a cancelled handler has nobody left to mislead with a 500.
        await asyncio.sleep(0)
        tasks = list(state.tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=CANCEL_SECONDS_MAX)
