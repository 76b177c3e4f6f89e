"""The way into an application: every request passes the doors, and a trusted proxy's counts as one of its client.

Reads a request's head; calls one ASGI application.
"""

from starlette.types import ASGIApp, Receive, Scope, Send

from switchyard.domain.errors import RequestError
from switchyard.entrypoints.http.errors import TooManyConnections, error_response
from switchyard.entrypoints.http.transport.addresses import ConnectionCaps, client_address, limited_as
from switchyard.entrypoints.http.transport.doors import Doors, guarded


class Entrance:
    """An ASGI application in front of another."""

    def __init__(self, app: ASGIApp, doors: Doors, caps: ConnectionCaps) -> None:
        self._app = app
        self._doors = doors
        self._caps = caps

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        send = guarded(send)
        try:
            self._doors.admit(scope)
            if not self._caps.proxies.see_through(scope):
                await self._app(scope, receive, send)
                return
            name = limited_as(client_address(scope))
            if not self._caps.enter_client(name):
                raise TooManyConnections(self._caps.per_address_max)
        except RequestError as error:
            response = error_response(error)
            await send({"type": "http.response.start", "status": response.status, "headers": response.headers})
            await send({"type": "http.response.body", "body": response.body})
            return
        try:
            await self._app(scope, receive, send)
        finally:
            self._caps.leave(name)
