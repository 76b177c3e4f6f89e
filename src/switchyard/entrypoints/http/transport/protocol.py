"""uvicorn's HTTP/1.1 protocol with limits on the size and the duration of a request and on connections.

Reads and writes one socket; calls the ASGI application through uvicorn.
"""

import asyncio
import re
from collections import deque
from http import HTTPStatus
from itertools import chain
from typing import Any

import httptools
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from switchyard.entrypoints.http.errors import ErrorBody, json_response
from switchyard.entrypoints.http.transport.guard import ABSOLUTE_TARGET, ConnectionCaps, limited_as

# Room for every token and tracing header in use.
HEAD_BYTES_MAX = 64 * 1024
# On the wire, chunk framing and trailers included. Far above `BODY_BYTES_MAX`, so that a client whose body is somewhat
# too large reads the route's 413 instead of a reset connection.
REQUEST_BYTES_MAX = 16 * 1024 * 1024
# A slow client is disconnected within 10 s: this, LINGER_SECONDS, and a second to spare.
REQUEST_SECONDS_MAX = 8.0
# Closing a socket with unread bytes resets the connection and loses the answer, so they are read and dropped this long.
LINGER_SECONDS = 1.0
# The two scope extensions are callables for which ASGI has no message.
# Drop the connection and its write buffer: a plain close waits for the client to read the buffer.
ABORT = "switchyard.abort"
# Write a whole response at once: ASGI's two messages are two system calls, each as expensive as parsing the request.
WRITE_RESPONSE = "switchyard.write_response"
# A connection in use is closed after this time, with the answer to its next request, so that none is held for ever and
# a balancer can move its clients.
CONNECTION_AGE_SECONDS_MAX = 3600.0
# Idle time while connections are scarce. Closing earlier than a client expects may cost it one repeated request.
CROWDED_IDLE_SECONDS_MAX = 5.0

_VERSIONS = frozenset({"1.0", "1.1"})
_ABSOLUTE_FORM = re.compile(rb"(https?)://([^/?#]+)(/[^?#]*)?([?#].*)?", re.IGNORECASE | re.DOTALL)


def _rejection(status: HTTPStatus, reason: str, message: str) -> bytes:
    return json_response(status, ErrorBody("REJECTED", reason, message), (b"connection", b"close")).encoded()


MALFORMED = _rejection(HTTPStatus.BAD_REQUEST, "INVALID_HTTP", "the request is not valid HTTP/1.1")
BAD_TARGET = _rejection(
    HTTPStatus.BAD_REQUEST,
    "INVALID_HTTP",
    "the request's target must be a path, or a URL with http or https and a host",
)
BAD_VERSION = _rejection(
    HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "HTTP_VERSION_NOT_SUPPORTED", "the request must be HTTP/1.1 or HTTP/1.0"
)
TOO_SLOW = _rejection(
    HTTPStatus.REQUEST_TIMEOUT, "REQUEST_TIMEOUT", f"the request did not arrive within {REQUEST_SECONDS_MAX:.0f} s"
)
TOO_LARGE = _rejection(
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "BODY_TOO_LARGE", f"the request is longer than {REQUEST_BYTES_MAX} bytes"
)
HEAD_TOO_LARGE = _rejection(
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE,
    "HEADER_TOO_LARGE",
    f"the headers are longer than {HEAD_BYTES_MAX} bytes",
)
TOO_MANY_CONNECTIONS = _rejection(
    HTTPStatus.SERVICE_UNAVAILABLE,
    "TOO_MANY_CONNECTIONS",
    "the server has no free connection for this address: close connections, or try again later",
)


class _Rejected(Exception):
    """Ends parsing from within a callback."""

    def __init__(self, response: bytes) -> None:
        self.response = response


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol for one connection; a client that sends too much or too slowly gets an error and is closed.

    One timer per connection fires at the earliest time at which a request could be overdue, and is then set for the
    next such time. A request in time sets no timer, not even uvicorn's own for idle connections, which this replaces.
    """

    # Slots, because CPython's attribute lookup gets slower for an instance with more than 30 dictionary entries.
    __slots__ = (
        "_address",
        "_caps",
        "_earlier",
        "_extensions",
        "_idle_since",
        "_is_old",
        "_made_at",
        "_rejected",
        "_request_bytes",
        "_request_bytes_max",
        "_request_since",
        "_timer",
    )

    request_seconds_max = REQUEST_SECONDS_MAX
    connection_age_seconds_max = CONNECTION_AGE_SECONDS_MAX

    _address: str | None
    """The address under which the connection is counted; none if it is not."""

    _request_since: float | None
    """When the first byte of the incomplete request arrived; none between requests."""
    _idle_since: float
    """When the last response was complete, or the connection was made."""
    _earlier: deque[RequestResponseCycle]
    """Pipelined requests before `cycle`; the first one without a complete response is in progress."""

    def __init__(self, *args: Any, caps: ConnectionCaps, **options: Any) -> None:
        super().__init__(*args, **options)
        self._caps = caps

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the connection's timer; reject the connection if there are too many."""
        super().connection_made(transport)
        self._request_since = None
        self._idle_since = self._made_at = self.loop.time()
        self._is_old = False
        self._request_bytes = 0
        self._request_bytes_max = HEAD_BYTES_MAX
        self._earlier = deque()
        self._extensions = {ABORT: transport.abort, WRITE_RESPONSE: self.write_response}
        peer = None if self.client is None or self._caps.proxies.trusts(self.client[0]) else limited_as(self.client[0])
        self._rejected = not self._caps.enter(peer, len(self.connections))
        self._address = None if self._rejected else peer
        self._timer = self.loop.call_later(self.request_seconds_max, self._check_time)
        if self._rejected:
            transport.write(TOO_MANY_CONNECTIONS)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Disconnect every pipelined request; uvicorn disconnects only the latest one."""
        self._timer.cancel()
        if self._address is not None:
            self._caps.leave(self._address)
        super().connection_lost(exc)
        for cycle in self._earlier:
            _disconnect(cycle)

    def data_received(self, data: bytes) -> None:
        """Feed the parser and enforce the limits."""
        if self._rejected:
            return
        if self._request_since is None:
            self._request_since = self.loop.time()
        self._request_bytes += len(data)
        try:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                self._feed_without_upgrade(rest=data[upgrade.args[0] :])
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._reject(error.__context__.response if isinstance(error.__context__, _Rejected) else MALFORMED)
        else:
            if self._request_since is None and self.scope is not self.cycle.scope:
                # The next pipelined request has started in the same data.
                self._request_since = self.loop.time()
            if self._request_bytes > self._request_bytes_max:
                self._reject(TOO_LARGE if self._in_body() else HEAD_TOO_LARGE)

    def on_headers_complete(self) -> None:
        """Start the request if its head is within the limit and its version and target are served."""
        if self._request_bytes > HEAD_BYTES_MAX and self._head_bytes() > HEAD_BYTES_MAX:
            raise _Rejected(HEAD_TOO_LARGE)
        # The parser also accepts 0.9 and 2.0, which have another form.
        if self.parser.get_http_version() not in _VERSIONS:
            raise _Rejected(BAD_VERSION)
        if self.parser.should_upgrade():
            return
        if not self.url.startswith(b"/") and self.url != b"*":
            self._use_target_authority()
        previous = self.cycle
        super().on_headers_complete()
        if self._is_old:
            self.cycle.keep_alive = False
        self.scope["extensions"] = self._extensions  # type: ignore[typeddict-item]
        self._request_bytes_max = REQUEST_BYTES_MAX
        # Trailers go to a new list: they must not become headers that the application has already checked.
        self.headers = []
        if self.pipeline:
            self._drop_complete()
            self._earlier.append(previous)

    def on_message_complete(self) -> None:
        """Stop measuring the request's duration: it has arrived."""
        if self.parser.should_upgrade():
            return
        self._request_since = None
        self._request_bytes = 0
        self._request_bytes_max = HEAD_BYTES_MAX
        cycle = self.cycle
        if not cycle.response_complete:
            cycle.more_body = False
            cycle.message_event.set()

    def on_response_complete(self) -> None:
        """Start the next pipelined request, if there is one."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self._idle_since = self.loop.time()
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    def write_response(self, scope: Scope, response: bytes) -> bool:
        """Write a whole response; false where the application has to send it as ASGI messages instead.

        That is so for a pipelined request and for a connection that is to be closed.
        """
        cycle = self.cycle
        if cycle.scope is not scope or cycle.response_started or cycle.disconnected or not cycle.keep_alive:
            return False
        self.transport.write(response)
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        cycle.on_response()
        return True

    def shutdown(self) -> None:
        """Let a response finish, but close a stream, which has no end: its client reconnects elsewhere."""
        current = self._current_cycle()
        if self._rejected or (current is not None and current.chunked_encoding):
            self.transport.close()
        else:
            super().shutdown()

    def _head_bytes(self) -> int:
        return len(self.url) + sum(map(len, chain.from_iterable(self.headers))) + 4 * len(self.headers)

    def _feed_without_upgrade(self, rest: bytes) -> None:
        """Parse the request again without its Upgrade header.

        Java's HTTP client offers HTTP/2 this way on every plain connection. The parser would treat the body as data of
        the other protocol, and the order would arrive empty.
        """
        version = self.parser.get_http_version().encode()
        head = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        head += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.feed_data(b"\r\n".join([*head, b"", rest]))

    def _use_target_authority(self) -> None:
        """Turn an absolute-form target into scheme, path and Host: a Host beside it counts for nothing (RFC 9112)."""
        match = _ABSOLUTE_FORM.fullmatch(self.url)
        if match is None:
            raise _Rejected(BAD_TARGET)
        scheme, authority, path, rest = match.groups()
        self.scope["scheme"] = scheme.decode("ascii").lower()
        self.scope[ABSOLUTE_TARGET] = True  # type: ignore[literal-required]
        self.url = (path or b"/") + (rest or b"")
        # A second Host stays an error, and so does a missing one, except in HTTP/1.0, which does not require it.
        self.headers[:] = [(name, authority if name == b"host" else value) for name, value in self.headers]
        if self.parser.get_http_version() == "1.0" and (b"host", authority) not in self.headers:
            self.headers.append((b"host", authority))

    def _in_body(self) -> bool:
        return self._request_bytes_max == REQUEST_BYTES_MAX

    def _current_cycle(self) -> RequestResponseCycle | None:
        """Return the first request without a complete response; none if there is none."""
        self._drop_complete()
        cycle = self._earlier[0] if self._earlier else self.cycle
        return None if cycle is None or cycle.response_complete else cycle

    def _drop_complete(self) -> None:
        while self._earlier and self._earlier[0].response_complete:
            self._earlier.popleft()

    def _check_time(self) -> None:
        if self.transport.is_closing():
            # The connection stays open after this only if the client does not read its response.
            self._timer = self.loop.call_later(self.request_seconds_max, self.transport.abort)
            return
        now = self.loop.time()
        self._is_old = now - self._made_at > self.connection_age_seconds_max
        # A request that starts from now on cannot be overdue earlier than this.
        seconds_left = self.request_seconds_max
        if self._request_since is not None:
            if not self._waits_for_earlier_response():
                # While an earlier request was in progress reading may have been paused, so that time does not count.
                seconds_left += max(self._request_since, self._idle_since) - now
                if seconds_left <= 0:
                    self._reject(TOO_SLOW)
                    return
        elif self._current_cycle() is None:
            idle_seconds_max: float = self.request_seconds_max if self.cycle is None else self.timeout_keep_alive
            if self._caps.is_crowded(len(self.connections)):
                idle_seconds_max = min(idle_seconds_max, CROWDED_IDLE_SECONDS_MAX)
            seconds_left = min(seconds_left, self._idle_since + idle_seconds_max - now)
            if seconds_left <= 0:
                self.transport.close()
                return
        self._timer = self.loop.call_later(seconds_left, self._check_time)

    def _waits_for_earlier_response(self) -> bool:
        """Whether the arriving bytes belong to a request behind one that is complete and still in progress."""
        current = self._current_cycle()
        return current is not None and not current.more_body

    def _reject(self, response: bytes) -> None:
        """Write the error and read nothing more from this connection."""
        self._rejected = True
        self._timer.cancel()
        current = self._current_cycle()
        if current is not None and not current.more_body:
            # The client would read the error as the response to this earlier request, so only close after it.
            current.keep_alive = False
            return
        if not (self._in_body() and self.cycle.response_started):
            self.transport.write(response)
        if self._in_body():
            _disconnect(self.cycle)
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.flow.resume_reading()
            self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.abort)
        else:
            self.transport.close()


def _disconnect(cycle: RequestResponseCycle) -> None:
    """Make the application's next `receive` return a disconnect."""
    cycle.waiting_for_100_continue = False
    cycle.disconnected = not cycle.response_complete
    cycle.message_event.set()
