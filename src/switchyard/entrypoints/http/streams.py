"""`GET /stream` and `GET /orders/{orderId}/stream`: server-sent events.

What a reader sees, in this order:

- an account's stream: `ready`, whose id is the place at which the stream begins; then everything after that place;
- an order's stream: `ready`, `order_snapshot`, everything after the event that the snapshot is taken from;
- either with `Last-Event-ID`: `ready`, everything after that id. No snapshot, since each update carries one;
- where that id cannot be continued: `ready`, `resync_required`, everything after the latter's own id.
"""

import asyncio
from contextlib import aclosing
from typing import Any
from urllib.parse import parse_qs

import structlog
from starlette.types import Receive, Scope, Send

from switchyard.domain.errors import InvalidField, NotFound, Unavailable
from switchyard.domain.events import encode
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.orders import Order, snapshot
from switchyard.entrypoints.http.transport.protocol import ABORT
from switchyard.flow.readers.messages import Message, message_of
from switchyard.flow.readers.stream import StreamHub
from switchyard.flow.readers.subscription import Subscription
from switchyard.ports.queries import Queries

log = structlog.get_logger()

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
KEEPALIVE = b": keepalive\n\n"
# Numbers of 18 digits fit every engine's integers.
EVENT_ID_DIGITS_MAX = 18
# An order's newest event carries its snapshot; the margin is for kinds of events that will not.
SNAPSHOT_EVENTS_MAX = 10
# What a reader that takes nothing is given to let go of its connection when its stream ends.
FINISH_SECONDS = 1.0


class InvalidHeader(InvalidField):
    """A header cannot be read: the request is malformed (400), whatever it asks for."""


class StreamEndpoint:
    """The two streams as ASGI handlers; what they raise, they raise before the response starts."""

    def __init__(
        self, hub: StreamHub, queries: Queries, *, keepalive_seconds: float = 15.0, stall_seconds_max: float = 60.0
    ) -> None:
        self._hub = hub
        self._queries = queries
        self._keepalive_seconds = keepalive_seconds
        self._stall_seconds_max = stall_seconds_max

    async def account(self, account: AccountId, scope: Scope, receive: Receive, send: Send) -> None:
        """Everything that happens to the account's orders."""
        async with self._hub.subscribe("account", account, last_event_id(scope)) as subscription:
            # With an id, so that whoever is cut off before the first event still continues from here.
            ready = frame("ready", encode({"accountId": account}), subscription.place)
            await self._serve(subscription, ready, scope, receive, send)

    async def order(self, account: AccountId, order_id: OrderId, scope: Scope, receive: Receive, send: Send) -> None:
        """Everything that happens to one order of the account."""
        order = await self._queries.order(order_id)
        if order is None or order.account_id != account:
            raise NotFound
        opening = frame("ready", encode({"orderId": order_id}))
        place = last_event_id(scope)
        if place is None:
            shown = await self._snapshot(order)
            opening += frame("order_snapshot", shown.data, shown.id)
            place = shown.id
        async with self._hub.subscribe("order", order_id, place) as subscription:
            await self._serve(subscription, opening, scope, receive, send)

    async def _snapshot(self, order: Order) -> Message:
        """The order as its newest event shows it: the event's number is exactly where the stream continues."""
        events = await self._queries.last_events(order_id=order.order_id, limit=SNAPSHOT_EVENTS_MAX)
        for message in map(message_of, reversed(events)):
            if message is not None and message.event == "order_update":
                return message
        # Its events are archived. With the head read before the row, a change in between shows twice, never not at all.
        head = await self._hub.head()
        current = await self._queries.order(order.order_id) or order
        return Message(head, "order_update", encode(snapshot(current)))

    async def _serve(
        self, subscription: Subscription, opening: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        if scope["method"] == "HEAD":
            await _finish(scope, receive, send)
            return
        writing = asyncio.create_task(self._write(subscription, opening, send))
        leaving = asyncio.create_task(_disconnect(receive))
        try:
            # All three, because a write to a reader that takes nothing would notice neither of the others.
            ends: set[asyncio.Future[Any]] = {writing, leaving, subscription.ended}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                return
        finally:
            writing.cancel()
            leaving.cancel()
            await asyncio.gather(writing, leaving, return_exceptions=True)
        if not writing.cancelled():
            writing.result()
        await _finish(scope, receive, send)

    async def _write(self, subscription: Subscription, opening: bytes, send: Send) -> None:
        """Write until there is no more to write, or nobody who takes it."""
        try:
            await send({"type": "http.response.body", "body": opening, "more_body": True})
            async with aclosing(subscription.batches(self._keepalive_seconds)) as batches:
                async for batch in batches:
                    body = b"".join([frame(message.event, message.data, message.id) for message in batch])
                    try:
                        async with asyncio.timeout(self._stall_seconds_max):
                            await send({"type": "http.response.body", "body": body or KEEPALIVE, "more_body": True})
                    except TimeoutError:
                        return
        except Unavailable as error:
            log.warning("a stream lost the journal", error=str(error))


def last_event_id(scope: Scope) -> int | None:
    """The number after which to continue: the header, or `lastEventId` in the query for a browser's first request.

    The header wins, because a browser repeats the query of its first request for ever.
    """
    name = "Last-Event-ID"
    given = [value for header, value in scope["headers"] if header == b"last-event-id"]
    if not given:
        name = "lastEventId"
        given = parse_qs(scope["query_string"], keep_blank_values=True).get(b"lastEventId", [])
    if not given:
        return None
    if len(given) > 1 or not given[0].isdigit() or len(given[0]) > EVENT_ID_DIGITS_MAX:
        raise InvalidHeader(name, "must be one non-negative integer")
    return int(given[0])


def frame(event: str, data: bytes, id: int | None = None) -> bytes:
    """A message on the wire; `data` is JSON as msgspec writes it, which has no line breaks."""
    place = b"" if id is None else b"id: %d\n" % id
    return b"%bevent: %b\ndata: %b\n\n" % (place, event.encode(), data)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _finish(scope: Scope, receive: Receive, send: Send) -> None:
    """End the response, or the connection of a reader that does not even take the end."""
    try:
        async with asyncio.timeout(FINISH_SECONDS):
            await send({"type": "http.response.body", "body": b"", "more_body": False})
    except TimeoutError:
        abort = scope.get("extensions", {}).get(ABORT)
        if abort is not None:
            abort()
            await _disconnect(receive)
