"""The simulator's HTTP responses, and the faults that replace, truncate, delay or suppress them."""

import asyncio
import contextlib
from collections.abc import Callable

import msgspec
from starlette.types import Receive, Scope, Send

from switchyard.adapters.venues.simulator.faults import FaultPlan
from switchyard.adapters.venues.wire import TIME_HEADER, ErrorResponse, encode
from switchyard.ports.clock import Clock

JSON = (b"content-type", b"application/json")
# A truncated JSON object.
NOT_JSON = b'{"broker_order_id": "brk-'

# Aborts the connection of an ASGI request.
HangUp = Callable[[Scope], None]


class SimulatorResponse(msgspec.Struct, frozen=True):
    """A response to send; a body of None closes the connection without a response."""

    status: int
    body: bytes | None
    headers: tuple[tuple[bytes, bytes], ...] = ()


NO_RESPONSE = SimulatorResponse(0, None)


def json_response(status: int, value: object) -> SimulatorResponse:
    """A response with the value as JSON."""
    return SimulatorResponse(status, encode(value))


def error_response(status: int, error: str, message: str = "", *headers: tuple[bytes, bytes]) -> SimulatorResponse:
    """An error response with a code and a message."""
    return SimulatorResponse(status, encode(ErrorResponse(error=error, message=message)), headers)


def with_faults(response: SimulatorResponse, plan: FaultPlan) -> SimulatorResponse:
    """The response to a request that was carried out, or the faulty response that replaces it."""
    if plan.hits("drop_answer"):
        return NO_RESPONSE
    if plan.hits("accepted_5xx"):
        return error_response(500, "INTERNAL_ERROR", "internal error")
    if plan.hits("garbage"):
        return SimulatorResponse(200, NOT_JSON)
    return response


class ResponseWriter:
    """Writes one response to its connection."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, hang_up: HangUp, clock: Clock) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._hang_up = hang_up
        self._clock = clock

    async def send(self, response: SimulatorResponse) -> None:
        """Send the complete response, or close the connection if it has no body."""
        if response.body is None:
            await self._close()
            return
        body = await self._start(response)
        await self._send({"type": "http.response.body", "body": body})

    async def send_half(self, response: SimulatorResponse) -> None:
        """Send the head and half of the body, then close the connection."""
        body = await self._start(response)
        await self._send({"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True})
        await self._close()

    async def send_slowly(self, response: SimulatorResponse, pause_seconds: float) -> None:
        """Send the body byte by byte with a pause after each, until the client disconnects."""
        body = await self._start(response)
        for position in range(len(body)):
            await self._send({"type": "http.response.body", "body": body[position : position + 1], "more_body": True})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_seconds):
                    await self._receive()  # the request is complete, so this is a disconnect
                    return
        await self._send({"type": "http.response.body", "body": b""})

    async def _start(self, response: SimulatorResponse) -> bytes:
        assert response.body is not None
        headers = [
            JSON,
            (b"content-length", str(len(response.body)).encode()),
            (TIME_HEADER.lower().encode(), self._clock.now().isoformat().encode()),
            *response.headers,
        ]
        await self._send({"type": "http.response.start", "status": response.status, "headers": headers})
        return response.body

    async def _close(self) -> None:
        self._hang_up(self._scope)
        # Return only after the server has noticed the disconnect; before that it would send a 500 itself.
        while (await self._receive())["type"] != "http.disconnect":
            pass
