"""The asynchronous client for one gateway and one account, over aiohttp."""

import asyncio
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from functools import wraps
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import aiohttp
from yarl import URL

from switchyard.client import calls, pages
from switchyard.client.address import checked_url, default_token, default_url
from switchyard.client.attempts import Attempts, Reconnects
from switchyard.client.calls import Call, Response, response_of, stream_headers, stream_path
from switchyard.client.errors import ClientError, NotReachable, UnreadableResponse
from switchyard.client.events import StreamEvent, stream_event
from switchyard.client.pages import Pages
from switchyard.client.sse import Message, MessageTooLong, Parser
from switchyard.client.wire import Retry, api_error

P = ParamSpec("P")
T = TypeVar("T")

# Four keepalive intervals of the server's default: after that the connection is considered lost.
SILENCE_SECONDS_MAX = 60.0


def _method(
    build: Callable[P, Call[T]],
) -> Callable[Concatenate["AsyncClient", P], Coroutine[Any, Any, T]]:
    """A method that sends the call."""

    @wraps(build)
    async def method(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._send(build(*args, **kwargs))

    return method


def _listed(
    build: Callable[P, Pages[T]],
) -> Callable[Concatenate["AsyncClient", P], AsyncGenerator[T, None]]:
    """A method that yields the items of a list; its pages are requested as needed."""

    @wraps(build)
    async def method(self: "AsyncClient", /, *args: P.args, **kwargs: P.kwargs) -> AsyncGenerator[T, None]:
        for call in build(*args, **kwargs).calls():
            for item in await self._send(call):
                yield item

    return method


class AsyncClient:
    """Places, reads, follows and cancels the orders of one account; use it with `async with`.

    Failed requests are retried under the policy `retry`. `timeout_seconds` limits each attempt. Without arguments the
    URL comes from `SWITCHYARD_HOST` and `SWITCHYARD_PORT`, and the token from `SWITCHYARD_TOKEN`.
    """

    def __init__(
        self,
        base_url: str | None = None,
        token: str | None = None,
        *,
        retry: Retry | None = None,
        timeout_seconds: float = 10.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._base_url = checked_url(default_url() if base_url is None else base_url)
        self._headers = {"Authorization": f"Bearer {default_token() if token is None else token}"}
        self._retry = retry or Retry()
        self._timeout_seconds = timeout_seconds
        self._sleep = sleep
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

    place = _method(calls.place)
    dry_run = _method(calls.dry_run)
    place_by_content = _method(calls.place_by_content)
    do_order = _method(calls.do_order)
    order = _method(calls.order)
    quote = _method(calls.quote)
    venues = _method(calls.venues)
    cancel = _method(calls.cancel)
    amend = _method(calls.amend)
    close_position = _method(calls.close_position)
    cancel_all = _method(calls.cancel_all)
    account = _method(calls.account)
    explain = _method(calls.explain)
    exposure = _method(calls.exposure)
    kill = _method(calls.kill)
    kill_state = _method(calls.kill_state)
    kills = _method(calls.kills)
    clear_kill = _method(calls.clear_kill)
    orders = _listed(pages.orders)
    positions = _listed(pages.positions)
    instruments = _listed(pages.instruments)
    events = _listed(pages.events)

    async def stream(
        self,
        order_id: str | None = None,
        last_event_id: str | None = None,
        *,
        on_disconnect: Callable[[ClientError], None] | None = None,
    ) -> AsyncGenerator[StreamEvent, None]:
        """Yield the events of one order or of the whole account as they happen; close it with `aclosing`.

        After a lost connection the client reconnects and resumes after the last event received, without a limit;
        `on_disconnect` is called once per loss. If the first connection cannot be made, the stream fails after
        `Retry.attempts_max` attempts, like any other request. After `ResyncRequired` events are missing: read the
        current state with `order` or `orders`.
        """
        reconnects = Reconnects(self._retry, last_event_id, on_disconnect)
        while True:
            loss: ClientError | None = None
            try:
                listening = self._listen(stream_path(order_id), reconnects.last_event_id, reconnects.parser())
                async with aclosing(listening) as messages:
                    async for message in messages:
                        event = stream_event(message)
                        reconnects.received(message)
                        yield event
            except ClientError as error:
                loss = error
            await self._sleep(reconnects.delay_after(loss))

    async def _listen(self, path: str, last_event_id: str | None, parser: Parser) -> AsyncGenerator[Message, None]:
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=self._timeout_seconds, sock_read=SILENCE_SECONDS_MAX)
        try:
            async with self._open_session.get(
                self._url(path), headers=stream_headers(last_event_id), timeout=timeout, allow_redirects=False
            ) as response:
                if response.status != 200:
                    raise api_error(response.status, await response.read())
                if response.content_type != "text/event-stream":
                    raise UnreadableResponse.not_a_stream(response.content_type)
                async for chunk in response.content.iter_any():
                    for message in parser.feed(chunk):
                        yield message
        except MessageTooLong as error:
            raise UnreadableResponse(f"the stream cannot be parsed: {error}") from None
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._not_reachable(error) from error

    async def send(self, call: Call[T]) -> T:
        """Send a call that has no method of its own, with retries."""
        return await self._send(call)

    async def _send(self, call: Call[T]) -> T:
        attempts = Attempts(call, self._retry, self._timeout_seconds)
        while True:
            try:
                return call.read(await self._exchange(call, attempts.timeout_seconds))
            except ClientError as error:
                delay = attempts.delay_after(error)
            await self._sleep(delay)

    async def _exchange(self, call: Call[Any], timeout_seconds: float) -> Response:
        timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        try:
            # Following a redirect could turn a POST into a GET or send the token to another host.
            async with self._open_session.request(
                call.method,
                self._url(call.path),
                data=call.body,
                headers=call.headers,
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise self._not_reachable(error) from error
        return response_of(response.status, response.headers, body)

    @property
    def _open_session(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("the client is not open: use it with `async with`")
        return self._session

    def _url(self, path: str) -> URL:
        return URL(self._base_url + path, encoded=True)

    def _not_reachable(self, error: Exception) -> NotReachable:
        if isinstance(error, aiohttp.ClientSSLError):
            return NotReachable.no_tls(self._base_url, error)
        if isinstance(error, aiohttp.ClientConnectorError):
            # No connection was made, so nothing was sent and nothing is in doubt.
            cause = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror
            return NotReachable.unsent(self._base_url, str(cause))
        return NotReachable.lost(self._base_url, error)
