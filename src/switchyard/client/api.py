"""The client: one gateway, one account, over HTTP."""

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
# Four keepalives of the server's default: a silence that long means that the peer is gone without a goodbye.
SILENCE_SECONDS_MAX = 60.0
# For how long a gateway takes an equal order for a repeat, unless it is configured otherwise.
WINDOW_SECONDS = 60.0


class Client:
    """Places, follows and cancels one account's orders; use it with `async with`."""

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

        Every order goes out under an idempotency key, a fresh random one unless the caller brings one. When the
        connection fails or the gateway says 503, nobody knows whether the order was taken; it is sent again under
        the *same* key, a bounded number of times, and the gateway answers with the order that the key already has.
        So retrying never makes a second order. If doubt remains in the end, the error's `idempotency_key` names the
        key: repeat with it, and it is still one order. A caller that must survive its own crash brings a stored key.
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
            answer = await self._request("POST", "/orders", body=encode(request), headers={"Idempotency-Key": key})
            acknowledgement = read(answer.body, Acknowledgement)
        except ClientError as error:
            if error.in_doubt:
                error.idempotency_key = key
            raise
        return msgspec.structs.replace(acknowledgement, idempotency_key=key, replayed=answer.replayed)

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
        """Place an order that has no key: an equal one within the window is its duplicate, whoever sends it.

        For callers that cannot keep a key between two tries. Two equal orders that are both meant need `place`.
        """
        answer = await self._request(
            "POST",
            "/orders",
            body=encode(order_by_content(symbol, side, qty, order_type, limit_price, stop_price)),
            headers={"Idempotency-Derive": "true"},
            window_seconds=window_seconds,
        )
        return read(answer.body, PlacementResponse).result()

    async def order(self, order_id: str) -> OrderSnapshot:
        """The order as it stands."""
        answer = await self._request("GET", f"/orders/{quote(order_id, safe='')}")
        return read(answer.body, OrderSnapshot)

    async def orders(
        self, *, statuses: Sequence[Status] = (), symbol: str | None = None, limit: int | None = None
    ) -> AsyncGenerator[OrderSnapshot, None]:
        """The account's orders, newest first, page by page as they are asked for."""
        wanted: dict[str, str] = {}
        if statuses:
            wanted["status"] = ",".join(statuses)
        if symbol is not None:
            wanted["symbol"] = symbol
        left = limit
        while left is None or left > 0:
            wanted["limit"] = str(PAGE_ORDERS_MAX if left is None else min(PAGE_ORDERS_MAX, left))
            page = read((await self._request("GET", "/orders", query=wanted)).body, OrderPage)
            for snapshot in page.orders:
                yield snapshot
            if page.next_cursor is None:
                return
            wanted["cursor"] = page.next_cursor
            left = None if left is None else left - len(page.orders)

    async def cancel(self, order_id: str) -> Acknowledgement:
        """Ask for the order's end; a repeat is harmless, and `ORDER_FINAL` says that it had ended already."""
        answer = await self._request("POST", f"/orders/{quote(order_id, safe='')}/cancel")
        return read(answer.body, Acknowledgement)

    async def events(
        self,
        *,
        order_id: str | None = None,
        account_id: str | None = None,
        limit: int = 100,
        since: datetime | None = None,
        after: datetime | None = None,
    ) -> list[RecordedEvent]:
        """The newest events of an order or of the account, oldest of them first."""
        if (order_id is None) == (account_id is None):
            raise ValueError("name either an order or an account")
        subject = f"orders/{quote(order_id, safe='')}" if order_id else f"accounts/{quote(account_id or '', safe='')}"
        query = {"limit": str(limit)}
        query |= {name: at.isoformat() for name, at in (("since", since), ("after", after)) if at is not None}
        answer = await self._request("GET", f"/{subject}/events", query=query)
        return read(answer.body, EventPage).events

    async def stream(
        self,
        order_id: str | None = None,
        last_event_id: str | None = None,
        *,
        on_loss: Callable[[ClientError], None] | None = None,
    ) -> AsyncGenerator[Message, None]:
        """Messages of one order, or of the whole account, as they happen; close it with `contextlib.aclosing`.

        A lost connection is made again, resuming after the last message seen, for as long as the caller listens;
        `on_loss` hears of each loss once. Only a stream that never came about gives up, like any other request: a wrong
        address would otherwise wait for ever. After `resync_required` messages are missing: read the state anew.
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
                loss: ClientError = NotReachable("the stream ended")
            except ClientError as error:
                if not error.repeatable:
                    raise
                loss = error
            failures += 1
            if not was_connected and failures >= self._retry.attempts_max:
                raise loss
            if on_loss is not None and was_connected and failures == 1:
                on_loss(loss)
            await asyncio.sleep(self._retry.delay(failures, parser.retry_seconds or 0.0))

    async def _listen(self, path: str, parser: Parser, last_event_id: str | None) -> AsyncGenerator[Message, None]:
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-cache"}
        if last_event_id is not None:
            headers["Last-Event-ID"] = last_event_id
        try:
            async with self._open.get(
                self._url(path), headers=headers, timeout=self._stream_timeout, allow_redirects=False
            ) as response:
                if response.status != 200:
                    raise api_error(response.status, await response.read())
                if response.content_type != "text/event-stream":
                    raise UnreadableResponse(f"the stream cannot be read: it is {response.content_type}")
                async for chunk in response.content.iter_any():
                    for message in parser.feed(chunk):
                        yield message
        except MessageTooLong as error:
            raise UnreadableResponse(f"the stream cannot be read: {error}") from None
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
        """One request, repeated while the way or the gateway is down: every request of this API may be repeated.

        Where a repeat is recognised only within a window, none is sent that might arrive after it.
        """
        ends_at = time.monotonic() + window_seconds - self._timeout_seconds
        failures, in_doubt = 0, False
        while True:
            try:
                return await self._attempt(method, self._url(path, query), body, headers or {})
            except ClientError as error:
                failures += 1
                # One attempt that may have arrived is enough, whatever became of the later ones.
                error.in_doubt = in_doubt = in_doubt or error.in_doubt
                if not error.repeatable or failures >= self._retry.attempts_max:
                    raise
                delay = self._retry.delay(failures, error.retry_after_seconds)
                if in_doubt and time.monotonic() + delay > ends_at:
                    raise
                await asyncio.sleep(delay)

    async def _attempt(self, method: str, url: URL, body: bytes | None, headers: Mapping[str, str]) -> "_Response":
        sent = dict(headers)
        if body is not None:
            sent["Content-Type"] = "application/json"
        try:
            # A redirect would turn a POST into a GET, or hand the token to another host.
            async with self._open.request(
                method, url, data=body, headers=sent, timeout=self._timeout, allow_redirects=False
            ) as response:
                answer = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._not_reachable(error) from error
        if response.status >= 300:
            raise api_error(response.status, answer, response.headers.get("Retry-After", ""))
        return _Response(answer, response.headers.get("Idempotent-Replayed") == "true")

    @property
    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("use the client with `async with`")
        return self._session

    def _url(self, path: str, query: Mapping[str, str] | None = None) -> URL:
        # Ids come from people: encoded here, they cannot lead to another path.
        return URL(f"{self._base_url}{path}" + (f"?{urlencode(query)}" if query else ""), encoded=True)

    def _not_reachable(self, error: Exception) -> NotReachable:
        if isinstance(error, aiohttp.ClientConnectorError):
            # Without a connection nothing was sent, so nothing is in doubt.
            cause = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            return NotReachable(f"no connection to {self._base_url}: {cause}", in_doubt=False)
        return NotReachable(f"no answer from {self._base_url}: {str(error) or type(error).__name__}")


class _Response(NamedTuple):
    """A good answer."""

    body: bytes
    replayed: bool
