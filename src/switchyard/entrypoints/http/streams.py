"""`GET /stream` and `GET /orders/{orderId}/stream`: server-sent events.

Reads orders, events and the stream hub; writes nothing. A client receives, in this order:

- an account's stream: `ready`, whose id is the position where the stream starts; then every event after it;
- an order's stream: `ready`, `order_snapshot`, every event after the one that the snapshot is taken from;
- either with `Last-Event-ID`: `ready`, every event after that id. No snapshot, since each update contains one;
- if the stream cannot resume at that id: `ready`, `resync_required`, every event after the id of `resync_required`;
- when its token expires or is revoked: `token_expired`, and the end of the stream;
- when the gateway stops: `server_closing`, and the end of the stream.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import aclosing, contextmanager
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import parse_qs

import structlog
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from switchyard.domain.errors import NotFound, Unavailable
from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.journal.events import encode
from switchyard.domain.journal.lines import version_of
from switchyard.domain.orders.order import Order, snapshot
from switchyard.entrypoints.http.errors import InvalidHeader, TooManyStreams
from switchyard.entrypoints.http.transport.auth import TokenVerifier, authorization_header
from switchyard.entrypoints.http.transport.protocol import ABORT
from switchyard.entrypoints.http.transport.revoked import CHECK_SECONDS
from switchyard.flow.readers.folds import Message
from switchyard.flow.readers.stream import StreamHub, Subscription
from switchyard.ports.clock import Clock
from switchyard.ports.queries import Queries

log = structlog.get_logger()

HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"x-accel-buffering", b"no"),
]
KEEPALIVE = b": keepalive\n\n"
# 18 digits fit into the 64-bit integers of both databases.
EVENT_ID_DIGITS_MAX = 18
# The order's newest event made its row; the margin is for events that were committed since the row was read.
SNAPSHOT_EVENTS_MAX = 10
# How long the end of a stream waits for a client that does not read before its connection is aborted.
FINISH_SECONDS = 1.0
# The wall clock can be set, so the time until a token expires is measured anew at least this often.
EXPIRY_CHECK_SECONDS_MAX = 30.0
# Several times the dashboards and strategies of one account.
STREAMS_PER_ACCOUNT_MAX = 100


class StreamRoutes:
    """The two routes, with authentication."""

    def __init__(self, endpoint: "StreamEndpoint", tokens: TokenVerifier) -> None:
        self._endpoint = endpoint
        self._tokens = tokens
        self.routes = [
            Route("/orders/{order_id}/stream", _AsgiHandler(self._order), methods=["GET"]),
            Route("/stream", _AsgiHandler(self._account), methods=["GET"]),
        ]

    async def _account(self, scope: Scope, receive: Receive, send: Send) -> None:
        grant = self._tokens.grant(authorization_header(scope))
        with self._endpoint.watched(partial(self._tokens.is_revoked, grant)) as revoked:
            await self._endpoint.account(grant.account, scope, receive, send, grant.ends_at, revoked)

    async def _order(self, scope: Scope, receive: Receive, send: Send) -> None:
        grant = self._tokens.grant(authorization_header(scope))
        order_id = OrderId(scope["path_params"]["order_id"])
        with self._endpoint.watched(partial(self._tokens.is_revoked, grant)) as revoked:
            await self._endpoint.order(grant.account, order_id, scope, receive, send, grant.ends_at, revoked)


class _AsgiHandler:
    """A handler that sends its response itself; Starlette calls an instance as an ASGI application."""

    def __init__(self, handler: ASGIApp) -> None:
        self._handler = handler

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._handler(scope, receive, send)


class StreamEndpoint:
    """The two streams as ASGI handlers; they raise errors only before the response starts."""

    def __init__(
        self,
        hub: StreamHub,
        queries: Queries,
        *,
        clock: Clock,
        keepalive_seconds: float = 15.0,
        stall_seconds_max: float = 60.0,
        per_account_max: int = STREAMS_PER_ACCOUNT_MAX,
    ) -> None:
        self._hub = hub
        self._queries = queries
        self._clock = clock
        self._per_account_max = per_account_max
        self._open: Counter[AccountId] = Counter()
        self._watched: dict[asyncio.Future[None], Callable[[], bool]] = {}
        self._look_at: asyncio.TimerHandle | None = None
        self._keepalive_seconds = keepalive_seconds
        self._stall_seconds_max = stall_seconds_max

    @contextmanager
    def watched(self, is_revoked: Callable[[], bool]) -> Iterator[asyncio.Future[None]]:
        """Yield a future that is done once the token of a stream is revoked; one timer looks at all of them."""
        revoked = asyncio.get_running_loop().create_future()
        self._watched[revoked] = is_revoked
        self._look_later()
        try:
            yield revoked
        finally:
            del self._watched[revoked]

    def _look_later(self) -> None:
        if self._look_at is None and self._watched:
            self._look_at = asyncio.get_running_loop().call_later(CHECK_SECONDS, self._look)

    def _look(self) -> None:
        self._look_at = None
        for revoked, is_revoked in self._watched.items():
            if not revoked.done() and is_revoked():
                revoked.set_result(None)
        self._look_later()

    async def account(
        self,
        account: AccountId,
        scope: Scope,
        receive: Receive,
        send: Send,
        expires_at: datetime,
        revoked: asyncio.Future[None] | None = None,
    ) -> None:
        """Stream the events of the account's orders until the token expires or is revoked."""
        position = last_event_id(scope)
        with self._counted(account):
            async with self._hub.subscribe("account", account, position) as subscription:
                # With an id, so that a client that loses its connection before the first event can resume here.
                ready = frame("ready", encode({"accountId": account}), subscription.place)
                await self._serve(subscription, ready, scope, receive, send, expires_at, revoked)

    async def order(
        self,
        account: AccountId,
        order_id: OrderId,
        scope: Scope,
        receive: Receive,
        send: Send,
        expires_at: datetime,
        revoked: asyncio.Future[None] | None = None,
    ) -> None:
        """Stream the events of one order of the account until the token expires or is revoked."""
        order = await self._queries.order(order_id)
        if order is None or order.account_id != account:
            raise NotFound
        opening = frame("ready", encode({"orderId": order_id}))
        position = last_event_id(scope)
        if position is None:
            message = await self._snapshot(order)
            opening += frame("order_snapshot", message.data, message.id)
            position = message.id
        with self._counted(account):
            async with self._hub.subscribe("order", order_id, position) as subscription:
                await self._serve(subscription, opening, scope, receive, send, expires_at, revoked)

    @contextmanager
    def _counted(self, account: AccountId) -> Iterator[None]:
        """Count an open stream of the account; raises TooManyStreams."""
        if self._open[account] >= self._per_account_max:
            raise TooManyStreams(self._per_account_max)
        self._open[account] += 1
        try:
            yield
        finally:
            self._open[account] -= 1
            if not self._open[account]:
                del self._open[account]

    async def _snapshot(self, order: Order) -> Message:
        """Return the order's row, with the number of the event that made it: the stream continues after that event."""
        events = await self._queries.last_events(order_id=order.order_id, limit=SNAPSHOT_EVENTS_MAX)
        for event in reversed(events):
            if version_of(event) == order.version:
                return Message(event.seq, "order_update", encode(snapshot(order)))
        # The event is archived, or many have followed it. The head is read before the row, so that a change in between
        # is sent twice instead of being missed.
        head = await self._hub.head()
        current = await self._queries.order(order.order_id) or order
        return Message(head, "order_update", encode(snapshot(current)))

    async def _serve(
        self,
        subscription: Subscription,
        opening: bytes,
        scope: Scope,
        receive: Receive,
        send: Send,
        expires_at: datetime,
        revoked: asyncio.Future[None] | None,
    ) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": HEADERS})
        if scope["method"] == "HEAD":
            await _finish(scope, receive, send)
            return
        writer = asyncio.create_task(self._write(subscription, opening, send))
        disconnect = asyncio.create_task(_disconnect(receive))
        try:
            # Wait for all three: a write to a client that does not read blocks, and would notice neither a disconnect
            # nor the end of the subscription.
            ends: set[asyncio.Future[Any]] = {writer, disconnect, subscription.ended}
            if revoked is not None:
                ends.add(revoked)
            has_expired = not await self._ends_before(expires_at, ends)
            if disconnect.done():
                return
        finally:
            writer.cancel()
            disconnect.cancel()
            await asyncio.gather(writer, disconnect, return_exceptions=True)
        if not writer.cancelled():
            writer.result()
        if revoked is not None and revoked.done():
            await _finish(scope, receive, send, TOKEN_REVOKED)
        else:
            await _finish(scope, receive, send, TOKEN_EXPIRED if has_expired else _farewell(subscription))

    async def _ends_before(self, expires_at: datetime, ends: set[asyncio.Future[Any]]) -> bool:
        """Wait for one of the ends; false if the token expires first."""
        while True:
            seconds_left = (expires_at - self._clock.now()).total_seconds()
            if seconds_left <= 0:
                return False
            timeout = min(seconds_left, EXPIRY_CHECK_SECONDS_MAX)
            done, _ = await asyncio.wait(ends, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
            if done:
                return True

    async def _write(self, subscription: Subscription, opening: bytes, send: Send) -> None:
        """Write until the subscription ends or the client stops reading."""
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
            log.warning("stream_journal_unavailable", error=str(error))


def last_event_id(scope: Scope) -> int | None:
    """Return the number to resume after: the header's, or `lastEventId` in the query for a browser's first request.

    The header takes precedence, because a browser repeats the query of its first request on every reconnect.
    """
    name = "Last-Event-ID"
    values = [value for header, value in scope["headers"] if header == b"last-event-id"]
    if not values:
        name = "lastEventId"
        values = parse_qs(scope["query_string"], keep_blank_values=True).get(b"lastEventId", [])
    if not values:
        return None
    if len(values) > 1 or not values[0].isdigit() or len(values[0]) > EVENT_ID_DIGITS_MAX:
        raise InvalidHeader(name, f"must be one non-negative integer of at most {EVENT_ID_DIGITS_MAX} digits")
    return int(values[0])


def frame(event: str, data: bytes, id: int | None = None) -> bytes:
    """Encode a message; `data` is JSON as msgspec writes it, without line breaks."""
    id_line = b"" if id is None else b"id: %d\n" % id
    return b"%bevent: %b\ndata: %b\n\n" % (id_line, event.encode(), data)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


# Without an id: the client's last id stays, and a stream with a new token continues there.
TOKEN_EXPIRED = frame(
    "token_expired",
    encode({"reason": "TOKEN_EXPIRED", "message": "the token has expired: connect again with a new one"}),
)

TOKEN_REVOKED = frame(
    "token_expired", encode({"reason": "TOKEN_REVOKED", "message": "the token has been revoked: get a new one"})
)


SERVER_CLOSING = frame(
    "server_closing",
    encode({"reason": "SERVER_CLOSING", "message": "the gateway stops: connect again with the last event id"}),
)


def _farewell(subscription: Subscription) -> bytes:
    """The last message of a stream that ended by itself; a reader that was too slow would not read one."""
    is_closing = subscription.ended.done() and subscription.ended.result() == "closing"
    return SERVER_CLOSING if is_closing else b""


async def _finish(scope: Scope, receive: Receive, send: Send, last: bytes = b"") -> None:
    """End the response with a last message; abort the connection of a client that does not read the end."""
    try:
        async with asyncio.timeout(FINISH_SECONDS):
            await send({"type": "http.response.body", "body": last, "more_body": False})
    except TimeoutError:
        abort = scope.get("extensions", {}).get(ABORT)
        if abort is not None:
            abort()
            await _disconnect(receive)
