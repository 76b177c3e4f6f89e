"""HTTP/1.1 on a socket, with the bounds that uvicorn leaves out: how much, how long, how many."""

import asyncio
from collections import deque
from http import HTTPStatus
from itertools import chain

import httptools
import msgspec
from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

# Room for every token and tracing header in use; what is longer is an attack or a mistake.
HEAD_BYTES_MAX = 64 * 1024
# On the wire, chunk framing and trailers included. Far above any body that a route reads, so that the sender of one
# that is somewhat too large still reads the route's 413 instead of a reset connection.
REQUEST_BYTES_MAX = 16 * 1024 * 1024
# A slow client is gone within 10 s: this, the second of lingering below, and a second to spare.
REQUEST_SECONDS_MAX = 8.0
# Closing with unread bytes resets the connection and the answer is lost, so these are read and dropped for a while.
LINGER_SECONDS = 1.0
# Scope extensions, for what ASGI has no word for.
# Drop the connection with all that is buffered for it: a plain close waits for a reader that may never read again.
ABORT = "switchyard.abort"
# Write a whole answer at once: as two messages it is two system calls, and each costs as much as parsing the request.
ANSWER = "switchyard.answer"
# At some 10 KB each, what one process can hold without being short of memory for orders.
CONNECTIONS_MAX = 10_000


def _rejection(status: HTTPStatus, reason: str, message: str) -> bytes:
    body = msgspec.json.encode({"status": "REJECTED", "reason": reason, "message": message})
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    return head.encode() + body


MALFORMED = _rejection(HTTPStatus.BAD_REQUEST, "INVALID_HTTP", "this is not an HTTP/1.1 request")
TOO_SLOW = _rejection(HTTPStatus.REQUEST_TIMEOUT, "REQUEST_TIMEOUT", "the request took too long to arrive")
TOO_LARGE = _rejection(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "BODY_TOO_LARGE", "the request is too large")
HEAD_TOO_LARGE = _rejection(
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "HEADER_TOO_LARGE", f"headers are limited to {HEAD_BYTES_MAX} bytes"
)
TOO_MANY = _rejection(HTTPStatus.SERVICE_UNAVAILABLE, "TOO_MANY_CONNECTIONS", "no connection is free; try again later")


class _HeadTooLarge(Exception):
    """Ends parsing from within a callback."""


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol for one connection; whoever sends too much or too slowly is answered and cut off.

    One timer per connection looks at the clock when a request could be overdue at the earliest, and is set again for
    the next such time. A request in time costs no timer at all, not even uvicorn's own for idle connections, which
    this one replaces.
    """

    # Slots, because a thirty-first attribute in the dictionary would make all the others slower.
    __slots__ = (
        "_earlier",
        "_extensions",
        "_idle_since",
        "_rejected",
        "_request_bytes",
        "_request_bytes_max",
        "_request_since",
        "_timer",
    )

    request_seconds_max = REQUEST_SECONDS_MAX
    connections_max = CONNECTIONS_MAX

    _request_since: float | None
    """When the first byte of the request that is not complete yet arrived."""
    _idle_since: float
    """When the last answer was finished, or the connection made."""
    _earlier: deque[RequestResponseCycle]
    """Requests ahead of `cycle` in a pipeline; the first that is not answered is the one being answered."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to watch the connection, unless there are too many."""
        super().connection_made(transport)
        self._request_since = None
        self._idle_since = self.loop.time()
        self._request_bytes = 0
        self._request_bytes_max = HEAD_BYTES_MAX
        self._earlier = deque()
        self._extensions = {ABORT: transport.abort, ANSWER: self.answer}
        self._rejected = len(self.connections) > self.connections_max
        self._timer = self.loop.call_later(self.request_seconds_max, self._look_at_clock)
        if self._rejected:
            transport.write(TOO_MANY)
            transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the request being answered; uvicorn tells only the latest, which may be queued behind it."""
        self._timer.cancel()
        super().connection_lost(exc)
        for cycle in self._earlier:
            _hang_up(cycle)

    def data_received(self, data: bytes) -> None:
        """Feed the parser within the bounds."""
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
            self._reject(HEAD_TOO_LARGE if isinstance(error.__context__, _HeadTooLarge) else MALFORMED)
        else:
            if self._request_since is None and self.scope is not self.cycle.scope:
                # The next request has begun in the same data.
                self._request_since = self.loop.time()
            if self._request_bytes > self._request_bytes_max:
                self._reject(TOO_LARGE if self._in_body() else HEAD_TOO_LARGE)

    def on_headers_complete(self) -> None:
        """Start the request, if its head is within the bound."""
        if self._request_bytes > HEAD_BYTES_MAX and self._head_bytes() > HEAD_BYTES_MAX:
            raise _HeadTooLarge
        if self.parser.should_upgrade():
            return
        previous = self.cycle
        super().on_headers_complete()
        self.scope["extensions"] = self._extensions  # type: ignore[typeddict-item]
        self._request_bytes_max = REQUEST_BYTES_MAX
        # Trailers must not turn up among the headers that the application has already judged.
        self.headers = []
        if self.pipeline:
            self._forget_answered()
            self._earlier.append(previous)

    def on_message_complete(self) -> None:
        """Stop the request's clock: from here on the client waits for us."""
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
        """Go on with the next request of a pipeline, or wait for one."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self._idle_since = self.loop.time()
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())

    def answer(self, scope: Scope, whole: bytes) -> bool:
        """Write a request's whole answer; false where that takes more care and ASGI's own way has to be gone."""
        cycle = self.cycle
        if cycle.scope is not scope or cycle.response_started or cycle.disconnected or not cycle.keep_alive:
            return False
        self.transport.write(whole)
        cycle.response_started = cycle.response_complete = True
        cycle.message_event.set()
        cycle.on_response()
        return True

    def shutdown(self) -> None:
        """Let an answer be finished, but not a stream, which has no end: its client reconnects elsewhere."""
        answering = self._answering()
        if self._rejected or (answering is not None and answering.chunked_encoding):
            self.transport.close()
        else:
            super().shutdown()

    def _head_bytes(self) -> int:
        return len(self.url) + sum(map(len, chain.from_iterable(self.headers))) + 4 * len(self.headers)

    def _feed_without_upgrade(self, rest: bytes) -> None:
        """Parse the request again as if it had not asked for another protocol.

        Java's client offers HTTP/2 this way on every plain connection; the parser then takes the body for something
        else, and the order would arrive empty.
        """
        head = [b"%b %b HTTP/1.1" % (self.parser.get_method(), self.url)]
        head += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        self.parser = httptools.HttpRequestParser(self)
        self.parser.feed_data(b"\r\n".join([*head, b"", rest]))

    def _in_body(self) -> bool:
        return self._request_bytes_max == REQUEST_BYTES_MAX

    def _answering(self) -> RequestResponseCycle | None:
        """The request whose answer is not finished and whose turn it is."""
        self._forget_answered()
        cycle = self._earlier[0] if self._earlier else self.cycle
        return None if cycle is None or cycle.response_complete else cycle

    def _forget_answered(self) -> None:
        while self._earlier and self._earlier[0].response_complete:
            self._earlier.popleft()

    def _look_at_clock(self) -> None:
        if self.transport.is_closing():
            # Only a client that does not read its answer is still there the next time.
            self._timer = self.loop.call_later(self.request_seconds_max, self.transport.abort)
            return
        now = self.loop.time()
        # A request that begins from now on is due no sooner than this.
        seconds_left = self.request_seconds_max
        if self._request_since is not None:
            if not self._waits_for_earlier_answer():
                # Behind another request it may have been our turn, with reading paused, until that was answered.
                seconds_left += max(self._request_since, self._idle_since) - now
                if seconds_left <= 0:
                    self._reject(TOO_SLOW)
                    return
        elif self._answering() is None:
            idle_seconds_max = self.request_seconds_max if self.cycle is None else self.timeout_keep_alive
            seconds_left = min(seconds_left, self._idle_since + idle_seconds_max - now)
            if seconds_left <= 0:
                self.transport.close()
                return
        self._timer = self.loop.call_later(seconds_left, self._look_at_clock)

    def _waits_for_earlier_answer(self) -> bool:
        """Whether the bytes now arriving come after a complete request that is still being answered."""
        answering = self._answering()
        return answering is not None and not answering.more_body

    def _reject(self, answer: bytes) -> None:
        """Answer, and take nothing more from this connection."""
        self._rejected = True
        self._timer.cancel()
        answering = self._answering()
        if answering is not None and not answering.more_body:
            # Written now, the rejection would pass for the answer to an earlier request, which may well succeed.
            answering.keep_alive = False
            return
        if not (self._in_body() and self.cycle.response_started):
            self.transport.write(answer)
        if self._in_body():
            _hang_up(self.cycle)
        if self.transport.can_write_eof():
            self.transport.write_eof()
            self.flow.resume_reading()
            self._timer = self.loop.call_later(LINGER_SECONDS, self.transport.abort)
        else:
            self.transport.close()


def _hang_up(cycle: RequestResponseCycle) -> None:
    """Let the application see a disconnect."""
    cycle.waiting_for_100_continue = False
    cycle.disconnected = not cycle.response_complete
    cycle.message_event.set()
