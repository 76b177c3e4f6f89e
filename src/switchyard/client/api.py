"""The asynchronous HTTP client for one gateway and one account."""

import asyncio
import math
import os
import secrets
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime
from decimal import Decimal
from types import TracebackType
from typing import NamedTuple, Self
from urllib.parse import quote, urlencode

import aiohttp
import msgspec
from yarl import URL

from switchyard.client.errors import ClientError, NotReachable, UnreadableResponse
from switchyard.client.retry import Retry
from switchyard.client.sse import Message, MessageTooLong, Parser
from switchyard.client.wire import (
    Acknowledgement,
    EventPage,
    OrderPage,
    OrderPlacementResult,
    PlacementResponse,
    RecordedEvent,
    api_error,
    order_by_content,
    read,
)
from switchyard.domain.derived_keys import Amount
from switchyard.domain.events import encode
from switchyard.domain.idempotency import checked_key
from switchyard.domain.lifecycle import Status
from switchyard.domain.orders import OrderRequest, OrderSnapshot, Side, TimeInForce

PAGE_ORDERS_MAX = 100
# Four keepalive intervals of the server's default: after that the connection is considered lost.
SILENCE_SECONDS_MAX = 60.0
# The default of the gateway's `timestampResolution`: within it an equal order is a duplicate.
WINDOW_SECONDS = 60.0


class Client:
    """Places, reads, follows and cancels the orders of one account; use it with `async with`.

    Failed requests are retried under the policy `retry`. `timeout_seconds` limits each attempt.
    """

    def __init__(self, base_url: str, token: str, *, retry: Retry | None = None, timeout_seconds: float = 10.0) -> None:
        self._base_url = base_url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {token}"}
        self._retry = retry or Retry()
        self._timeout_seconds = timeout_seconds
        self._timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        self._stream_timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=timeout_seconds, sock_read=SILENCE_SECONDS_MAX
        )
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        self._session = aiohttp.ClientSession(headers=self._headers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def place(
        self,
        symbol: str,
        side: Side,
        qty: Decimal | int,
        *,
        limit_price: Decimal | int | None = None,
        time_in_force: TimeInForce | None = None,
        client_order_id: str | None = None,
        strategy: str | None = None,
        tags: Sequence[str] = (),
        idempotency_key: str | None = None,
    ) -> Acknowledgement:
        """Place an order; without a limit price it is a market order.

        Every order has an idempotency key: `idempotency_key`, or a new random one. If the connection fails or the
        gateway responds 503, the order may or may not have been accepted. The client then sends it again under the
        *same* key, up to `Retry.attempts_max` times, and the gateway returns the order that the key already has. So a
        retry never places a second order.

        If the outcome is still unknown, the error carries the key in `idempotency_key`: call `place` again with that
        key. To be safe against a crash of the calling process, generate and store the key before the call.
        """
        request = OrderRequest(
            symbol=symbol,
            side=side,
            type="MARKET" if limit_price is None else "LIMIT",
            qty=Decimal(qty),
            price=None if limit_price is None else Decimal(limit_price),
            time_in_force=time_in_force,
            client_order_id=client_order_id,
            strategy=strategy,
            tags=tuple(tags),
        )
        key = secrets.token_hex(16) if idempotency_key is None else checked_key(idempotency_key)
        try:
            response = await self._request("POST", "/orders", body=encode(request), headers={"Idempotency-Key": key})
            acknowledgement = read(response.body, Acknowledgement)
        except ClientError as error:
            if error.in_doubt:
                error.idempotency_key = key
            raise
        return msgspec.structs.replace(acknowledgement, idempotency_key=key, replayed=response.replayed)

    async def place_by_content(
        self,
        symbol: str,
        side: str,
        qty: Amount,
        *,
        order_type: str = "MARKET",
        limit_price: Amount | None = None,
        stop_price: Amount | None = None,
        window_seconds: float = WINDOW_SECONDS,
    ) -> OrderPlacementResult:
        """Place an order under a key that the gateway derives from its content.

        An equal order of the same account within the window is a duplicate, even from another process. Use this if the
        caller cannot keep a key between two attempts; use `place` to place two equal orders on purpose.
        """
        response = await self._request(
            "POST",
            "/orders",
            body=encode(order_by_content(symbol, side, qty, order_type, limit_price, stop_price)),
            headers={"Idempotency-Derive": "true"},
            window_seconds=window_seconds,
        )
        return read(response.body, PlacementResponse).result()

    async def order(self, order_id: str) -> OrderSnapshot:
        """Return the current state of an order."""
        response = await self._request("GET", f"/orders/{quote(order_id, safe='')}")
        return read(response.body, OrderSnapshot)

    async def orders(
        self, *, statuses: Sequence[Status] = (), symbol: str | None = None, limit: int | None = None
    ) -> AsyncGenerator[OrderSnapshot, None]:
        """Yield the orders of the account, newest first; pages are requested as needed."""
        query: dict[str, str] = {}
        if statuses:
            query["status"] = ",".join(statuses)
        if symbol is not None:
            query["symbol"] = symbol
        remaining = limit
        while remaining is None or remaining > 0:
            query["limit"] = str(PAGE_ORDERS_MAX if remaining is None else min(PAGE_ORDERS_MAX, remaining))
            page = read((await self._request("GET", "/orders", query=query)).body, OrderPage)
            for snapshot in page.orders:
                yield snapshot
            if page.next_cursor is None:
                return
            query["cursor"] = page.next_cursor
            remaining = None if remaining is None else remaining - len(page.orders)

    async def cancel(self, order_id: str) -> Acknowledgement:
        """Request a cancel. A repeat has no effect; an order that has ended raises ApiError `ORDER_FINAL`."""
        response = await self._request("POST", f"/orders/{quote(order_id, safe='')}/cancel")
        return read(response.body, Acknowledgement)

    async def events(
        self,
        *,
        order_id: str | None = None,
        account_id: str | None = None,
        limit: int = 100,
        since: datetime | None = None,
        after: datetime | None = None,
    ) -> list[RecordedEvent]:
        """Return the newest `limit` events of an order or of the account, in ascending order.

        `since` selects events at or after a time, `after` events strictly after it.
        """
        if (order_id is None) == (account_id is None):
            raise ValueError("pass exactly one of order_id and account_id")
        subject = f"orders/{quote(order_id, safe='')}" if order_id else f"accounts/{quote(account_id or '', safe='')}"
        query = {"limit": str(limit)}
        query |= {name: at.isoformat() for name, at in (("since", since), ("after", after)) if at is not None}
        response = await self._request("GET", f"/{subject}/events", query=query)
        return read(response.body, EventPage).events

    async def stream(
        self,
        order_id: str | None = None,
        last_event_id: str | None = None,
        *,
        on_disconnect: Callable[[ClientError], None] | None = None,
    ) -> AsyncGenerator[Message, None]:
        """Yield the messages of one order or of the whole account as they happen; close it with `aclosing`.

        After a lost connection the client reconnects and resumes after the last message received, without a limit;
        `on_disconnect` is called once per loss. If the first connection cannot be made, the stream fails after
        `Retry.attempts_max` attempts, like any other request. After `resync_required` messages are missing: read the
        current state with `order` or `orders`.
        """
        path = "/stream" if order_id is None else f"/orders/{quote(order_id, safe='')}/stream"
        failures, was_connected = 0, False
        while True:
            parser = Parser(last_event_id)
            try:
                async with aclosing(self._listen(path, parser, last_event_id)) as messages:
                    async for message in messages:
                        failures, was_connected = 0, True
                        last_event_id = message.id
                        yield message
                loss: ClientError = NotReachable("the gateway closed the stream")
            except ClientError as error:
                if not error.retryable:
                    raise
                loss = error
            failures += 1
            if not was_connected and failures >= self._retry.attempts_max:
                raise loss
            if on_disconnect is not None and was_connected and failures == 1:
                on_disconnect(loss)
            await asyncio.sleep(self._retry.delay(failures, parser.retry_seconds or 0.0))

    async def _listen(self, path: str, parser: Parser, last_event_id: str | None) -> AsyncGenerator[Message, None]:
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-cache"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        try:
            async with self._open_session.get(
                self._url(path), headers=headers, timeout=self._stream_timeout, allow_redirects=False
            ) as response:
                if response.status != 200:
                    raise api_error(response.status, await response.read())
                if response.content_type != "text/event-stream":
                    raise UnreadableResponse(
                        f"the stream has content type {response.content_type}, not text/event-stream"
                    )
                async for chunk in response.content.iter_any():
                    for message in parser.feed(chunk):
                        yield message
        except MessageTooLong as error:
            raise UnreadableResponse(f"the stream cannot be parsed: {error}") from None
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._not_reachable(error) from error

    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        window_seconds: float = math.inf,
    ) -> "_Response":
        """Send a request, with retries while the gateway is unreachable or unavailable.

        Every request of this API is safe to repeat. Derived keys detect a repeat only within a window, so no retry is
        sent that might arrive after it.
        """
        ends_at = time.monotonic() + window_seconds - self._timeout_seconds
        failures, in_doubt = 0, False
        while True:
            try:
                return await self._attempt(method, self._url(path, query), body, headers or {})
            except ClientError as error:
                failures += 1
                # Once an attempt may have arrived, the request stays in doubt, whatever the later attempts return.
                error.in_doubt = in_doubt = in_doubt or error.in_doubt
                if not error.retryable or failures >= self._retry.attempts_max:
                    raise
                delay = self._retry.delay(failures, error.retry_after_seconds)
                if in_doubt and time.monotonic() + delay > ends_at:
                    raise
                await asyncio.sleep(delay)

    async def _attempt(self, method: str, url: URL, body: bytes | None, headers: Mapping[str, str]) -> "_Response":
        all_headers = dict(headers)
        if body is not None:
            all_headers["Content-Type"] = "application/json"
        try:
            # Following a redirect could turn a POST into a GET or send the token to another host.
            async with self._open_session.request(
                method, url, data=body, headers=all_headers, timeout=self._timeout, allow_redirects=False
            ) as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._not_reachable(error) from error
        if response.status >= 300:
            raise api_error(response.status, content, response.headers.get("Retry-After", ""))
        return _Response(content, response.headers.get("Idempotent-Replayed") == "true")

    @property
    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the client is not open: use it with `async with`")
        return self._session

    def _url(self, path: str, query: Mapping[str, str] | None = None) -> URL:
        # Path segments are already percent-encoded, so that an id with a slash cannot address another path.
        return URL(f"{self._base_url}{path}" + (f"?{urlencode(query)}" if query else ""), encoded=True)

    def _not_reachable(self, error: Exception) -> NotReachable:
        if isinstance(error, aiohttp.ClientSSLError):
            step = "use http:// if it has no certificate" if "WRONG_VERSION" in str(error) else "check its certificate"
            return NotReachable(f"no TLS connection to {self._base_url}: {step}", in_doubt=False)
        if isinstance(error, aiohttp.ClientConnectorError):
            # No connection was made, so nothing was sent and nothing is in doubt.
            cause = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            return NotReachable(f"no connection to {self._base_url}: {cause}", in_doubt=False)
        return NotReachable(f"no response from {self._base_url}: {str(error) or type(error).__name__}")


class _Response(NamedTuple):
    """A response with a status below 300."""

    body: bytes
    replayed: bool
