"""The synchronous client for one gateway and one account, over the standard library's HTTP client.

Idle connections are kept and used again; threads may share them.
"""

import os
import select
import socket
import ssl
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from functools import wraps
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar
from urllib.parse import urlsplit

from switchyard.client import calls, pages
from switchyard.client.address import checked_url, default_token, default_url
from switchyard.client.attempts import Attempts, Reconnects
from switchyard.client.calls import Call, Response, response_of, stream_headers, stream_path
from switchyard.client.errors import ClientError, NotReachable, UnreadableResponse
from switchyard.client.events import StreamEvent, stream_event
from switchyard.client.pages import Pages
from switchyard.client.sse import MessageTooLong
from switchyard.client.wire import Retry, api_error

# Four keepalive intervals of the server's default: after that the connection is considered lost.
SILENCE_SECONDS_MAX = 60.0
# More threads than this wait for a new connection now and then.
IDLE_MAX = 8
CHUNK_BYTES = 65_536


class Connections:
    """Sends requests to one gateway."""

    def __init__(self, base_url: str, headers: Mapping[str, str]) -> None:
        self._base_url = base_url
        parts = urlsplit(base_url)
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port, self._prefix = parts.hostname or "", parts.port, parts.path
        self._headers = dict(headers)
        # Appending to and popping from a list are atomic.
        self._idle: list[HTTPConnection] = []

    def close(self) -> None:
        """Close the idle connections."""
        while self._idle:
            self._idle.pop().close()

    def exchange(self, call: Call[Any], timeout_seconds: float) -> Response:
        """Send the call once; raises ClientError. A redirect is an error: it could send the token to another host."""
        connection = self._take_idle(timeout_seconds) or self._connect(timeout_seconds)
        try:
            answer = self._request(connection, call.method, call.path, call.headers, call.body)
            body = answer.read()
        except (OSError, HTTPException) as error:
            connection.close()
            raise NotReachable.lost(self._base_url, error) from error
        if answer.will_close or len(self._idle) >= IDLE_MAX:
            connection.close()
        else:
            self._idle.append(connection)
        return response_of(answer.status, answer.headers, body)

    def listen(self, path: str, headers: Mapping[str, str], timeout_seconds: float) -> Generator[bytes, None, None]:
        """Open a stream and yield its bytes as they arrive; raises ClientError."""
        connection = self._connect(timeout_seconds)
        try:
            answer = self._request(connection, "GET", path, headers, None)
            if answer.status != 200:
                raise api_error(answer.status, answer.read())
            if answer.headers.get_content_type() != "text/event-stream":
                raise UnreadableResponse.not_a_stream(answer.headers.get_content_type())
            connection.sock.settimeout(SILENCE_SECONDS_MAX)
            while chunk := answer.read1(CHUNK_BYTES):
                yield chunk
        except (OSError, HTTPException) as error:
            raise NotReachable.lost(self._base_url, error) from error
        finally:
            connection.close()

    def _request(
        self, connection: HTTPConnection, method: str, path: str, headers: Mapping[str, str], body: bytes | None
    ) -> HTTPResponse:
        connection.request(method, self._prefix + path, body=body, headers={**self._headers, **headers})
        return connection.getresponse()

    def _connect(self, timeout_seconds: float) -> HTTPConnection:
        connection = self._kind(self._host, self._port, timeout=timeout_seconds)
        try:
            connection.connect()
        except ssl.SSLError as error:
            connection.close()
            raise NotReachable.no_tls(self._base_url, error) from error
        except OSError as error:
            # No connection was made, so nothing was sent and nothing is in doubt.
            connection.close()
            cause = os.strerror(error.errno) if error.errno and error.errno > 0 else str(error)
            raise NotReachable.unsent(self._base_url, cause) from error
        return connection

    def _take_idle(self, timeout_seconds: float) -> HTTPConnection | None:
        while self._idle:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None  # another thread took it
            if not _has_ended(connection.sock):
                connection.sock.settimeout(timeout_seconds)
                return connection
            connection.close()
        return None


def _has_ended(idle: socket.socket) -> bool:
    """Whether the server closed the connection; it sends nothing else on an idle one."""
    poll = select.poll()
    poll.register(idle, select.POLLIN)
    return bool(poll.poll(0))


P = ParamSpec("P")
T = TypeVar("T")


def _method(build: Callable[P, Call[T]]) -> Callable[Concatenate["Client", P], T]:
    """A method that sends the call."""

    @wraps(build)
    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._send(build(*args, **kwargs))

    return method


def _listed(build: Callable[P, Pages[T]]) -> Callable[Concatenate["Client", P], Iterator[T]]:
    """A method that yields the items of a list; its pages are requested as needed."""

    @wraps(build)
    def method(self: "Client", /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        for call in build(*args, **kwargs).calls():
            yield from self._send(call)

    return method


class Client:
    """Places, reads, follows and cancels the orders of one account; threads may share it. Close it, or use `with`.

    Failed requests are retried under the policy `retry`. `timeout_seconds` limits each wait for the network. Without
    arguments the URL comes from `SWITCHYARD_HOST` and `SWITCHYARD_PORT`, and the token from `SWITCHYARD_TOKEN`.
    """

    def __init__(
        self,
        base_url: str | None = None,
        token: str | None = None,
        *,
        retry: Retry | None = None,
        timeout_seconds: float = 10.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        url = checked_url(default_url() if base_url is None else base_url)
        token = default_token() if token is None else token
        self._connections = Connections(url, {"Authorization": f"Bearer {token}"})
        self._retry = retry or Retry()
        self._timeout_seconds = timeout_seconds
        self._sleep = sleep

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the idle connections."""
        self._connections.close()

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

    def stream(
        self,
        order_id: str | None = None,
        last_event_id: str | None = None,
        *,
        on_disconnect: Callable[[ClientError], None] | None = None,
    ) -> Generator[StreamEvent, None, None]:
        """Yield the events of one order or of the whole account as they happen; close it with `contextlib.closing`.

        Reconnects and resumes like `AsyncClient.stream`.
        """
        reconnects = Reconnects(self._retry, last_event_id, on_disconnect)
        while True:
            loss: ClientError | None = None
            parser = reconnects.parser()
            listening = self._connections.listen(
                stream_path(order_id), stream_headers(reconnects.last_event_id), self._timeout_seconds
            )
            try:
                with closing(listening) as chunks:
                    for chunk in chunks:
                        for message in parser.feed(chunk):
                            event = stream_event(message)
                            reconnects.received(message)
                            yield event
            except MessageTooLong as error:
                loss = UnreadableResponse(f"the stream cannot be parsed: {error}")
            except ClientError as error:
                loss = error
            self._sleep(reconnects.delay_after(loss))

    def send(self, call: Call[T]) -> T:
        """Send a call that has no method of its own, with retries."""
        return self._send(call)

    def _send(self, call: Call[T]) -> T:
        attempts = Attempts(call, self._retry, self._timeout_seconds)
        while True:
            try:
                return call.read(self._connections.exchange(call, attempts.timeout_seconds))
            except ClientError as error:
                delay = attempts.delay_after(error)
            self._sleep(delay)
