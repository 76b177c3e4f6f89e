"""Answers of the simulator, and the ways in which one can fail to arrive."""

import asyncio
import contextlib
from collections.abc import Callable

import msgspec
from starlette.types import Receive, Scope, Send

from switchyard.adapters.venues.simulator.faults import FaultPlan
from switchyard.adapters.venues.wire import ErrorResponse, encode

JSON = (b"content-type", b"application/json")
NOT_JSON = b'{"broker_order_id": "brk-'

HangUp = Callable[[Scope], None]


class SimulatorResponse(msgspec.Struct, frozen=True):
    """What is to be said; none of a body means that the connection is closed instead."""

    status: int
    body: bytes | None
    headers: tuple[tuple[bytes, bytes], ...] = ()


SILENCE = SimulatorResponse(0, None)


def answer(status: int, value: object) -> SimulatorResponse:
    """A value as JSON."""
    return SimulatorResponse(status, encode(value))


def problem(status: int, error: str, message: str = "", *headers: tuple[bytes, bytes]) -> SimulatorResponse:
    """Why it was not done."""
    return SimulatorResponse(status, encode(ErrorResponse(error=error, message=message)), headers)


def spoiled(done: SimulatorResponse, plan: FaultPlan) -> SimulatorResponse:
    """The answer to something that was done, or what the faults make of it."""
    if plan.hits("drop_answer"):
        return SILENCE
    if plan.hits("accepted_5xx"):
        return problem(500, "INTERNAL_ERROR", "something went wrong")
    if plan.hits("garbage"):
        return SimulatorResponse(200, NOT_JSON)
    return done


class Sender:
    """Writes one answer to its connection."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, hang_up: HangUp) -> None:
        self._scope = scope
        self._receive = receive
        self._send = send
        self._hang_up = hang_up

    async def send(self, answer: SimulatorResponse) -> None:
        """The answer as it should be."""
        if answer.body is None:
            await self._close()
            return
        body = await self._begin(answer)
        await self._send({"type": "http.response.body", "body": body})

    async def send_half(self, answer: SimulatorResponse) -> None:
        """The head, half of the body, and the end of the connection."""
        body = await self._begin(answer)
        await self._send({"type": "http.response.body", "body": body[: len(body) // 2], "more_body": True})
        await self._close()

    async def send_slowly(self, answer: SimulatorResponse, pause_seconds: float) -> None:
        """The body byte by byte, as long as somebody reads it."""
        body = await self._begin(answer)
        for place in range(len(body)):
            await self._send({"type": "http.response.body", "body": body[place : place + 1], "more_body": True})
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_seconds):
                    await self._receive()  # nothing but the end of the connection is left to come
                    return
        await self._send({"type": "http.response.body", "body": b""})

    async def _begin(self, answer: SimulatorResponse) -> bytes:
        assert answer.body is not None
        headers = [JSON, (b"content-length", str(len(answer.body)).encode()), *answer.headers]
        await self._send({"type": "http.response.start", "status": answer.status, "headers": headers})
        return answer.body

    async def _close(self) -> None:
        self._hang_up(self._scope)
        # The server takes note of the end a moment later; until then it would answer 500 for us.
        while (await self._receive())["type"] != "http.disconnect":
            pass
