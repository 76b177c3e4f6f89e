"""HTTP exchanges with a broker, which record whether any byte of the request may have been sent.

That fact decides between `NotSent` (safe to send again) and `Lost` (in doubt). `outcomes` interprets the result. A
request that is given up is destroyed in the kernel too: it must not arrive after a lookup found the order absent.

HTTP/1.1 has no correlation: on a connection that is used again, a second response to one request is read as the
response to the next. So a connection carries one request, and spare connections are opened ahead of the requests,
unless a repeated order does no harm at the broker (`Pool.reuses`; ADR 43). A response that counts only if it surely
answers the request must be the only one until the broker ends the connection (`is_only_response`).
"""

import asyncio
import select
import socket
import struct
from collections import deque
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from types import MappingProxyType, SimpleNamespace
from typing import Any, Final, cast

import aiohttp
import msgspec
import structlog
from aiohappyeyeballs import AddrInfoType
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.streams import StreamReader
from aiohttp.tracing import Trace
from yarl import URL

from switchyard.adapters.system_clock import boot_seconds
from switchyard.adapters.venues.wire import TIME_HEADER
from switchyard.domain.reasons import AmbiguousCode, UnsentCode
from switchyard.ports.venue import OnDeparture, ignore_departure

log = structlog.get_logger()

# Covers the name lookup, the TCP and TLS handshakes and the wait for a free connection. Nothing is sent before that, so
# a time-out here is proven unsent. Shorter than the send deadline of an IOC order (2.5 s).
CONNECT_SECONDS: Final = 2.0
# The longest response time: the kernel must not retransmit a request for longer, even if this process is stopped and
# cannot give up itself. It acts on established connections only; CONNECT_SECONDS bounds the rest.
UNACKNOWLEDGED_SECONDS: Final = 5.0
# How long a connection may wait for a request. Shorter than the shortest common keep-alive (5 s): if the broker closes
# an idle connection just as an order is sent on it, that order is in doubt.
IDLE_SECONDS: Final = 4.0
# Spare connections are replaced this long before they are too old, so that there is always one while a handshake lasts.
REPLACED_AHEAD_SECONDS: Final = 1.0
# How often the age of the spare connections is checked.
SPARES_CHECK_SECONDS: Final = 0.5
# Closing a socket discards what the kernel has not delivered yet and resets the connection. Set when the socket is
# made, so that a kill of the process has the same effect; without it, the kernel retransmits the request after both.
_ZERO_LINGER: Final = struct.pack("ii", 1, 0)
# How long the broker may take to end a connection after its response. It was asked to (`Connection: close`), and a
# server does that at once; a rejection by one that does not leaves the order in doubt.
END_SECONDS: Final = 1.0
# aiohttp stops reading a body at twice this size; no response may be so long (`Transport.ask`).
_READ_BUFFER_BYTES: Final = 4 * 1024 * 1024
# aiohttp's own time-outs are off: `Transport.ask` sets the deadlines.
_NO_TIMEOUTS: Final = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)


class BrokerResponse(msgspec.Struct, frozen=True):
    """A complete response within its size limit."""

    status: int
    body: bytes
    retry_after: str | None = None
    venue_time: str | None = None
    date: str | None = None
    address: str | None = None
    """The peer that the connection led to."""
    is_cached: bool = False
    """Whether a cache on the way says that it answered instead of the broker."""
    is_only_response: bool = False
    """Whether the connection carried this request and this response, and nothing else until the broker ended it. False
    if that was not awaited."""


class NotSent(msgspec.Struct, frozen=True):
    """Proven: no byte of the request was sent."""

    code: UnsentCode
    detail: str | None = None


class Lost(msgspec.Struct, frozen=True):
    """Bytes may have been sent, and no complete response arrived."""

    code: AmbiguousCode
    detail: str | None = None
    address: str | None = None
    """The peer that the connection led to."""


Exchange = BrokerResponse | NotSent | Lost

AwaitsEnd = Callable[[int, bytes], bool]
"""Whether a response with this status and body counts only if it surely answers its request."""


def never_awaited(_status: int, _body: bytes) -> bool:
    """The default `awaits_end`: the response names what it is about, or decides nothing."""
    return False


class _Oversized(Exception):
    """The response exceeds its size limit."""


class Pool(msgspec.Struct, frozen=True):
    """How many connections to a broker there are, and for how long."""

    connections_max: int
    spares_min: int = 0
    """Connections that are opened ahead while there are no requests."""
    spares_max: int = 0
    idle_seconds: float = IDLE_SECONDS
    reuses: bool = False
    """Whether a connection carries one request after the other; there are no spare ones then."""


class _Protocol(ResponseHandler):
    """A connection to the broker; it notes whatever arrives beyond one response to each request.

    It looks at the bytes as they arrive: aiohttp drops those behind a response in several places.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, note_unasked: Callable[[], None], *, reuses: bool) -> None:
        super().__init__(loop)
        self._note_unasked = note_unasked
        self._reuses = reuses
        self._has_unasked = False
        self._end: asyncio.Future[bool] = loop.create_future()
        """Whether the end of the connection was a regular one, not a reset."""
        self.is_used = False
        """Whether the connection has carried a request."""
        self._body: StreamReader | None = None
        """That of the response to the last request, as soon as its headers are complete."""

    def ask(self) -> None:
        """Expect a response to the request that is written next; raises ConnectionError if something has arrived."""
        if not self.is_silent():
            raise ConnectionError("something arrived before the request was sent")
        self.is_used, self._body = True, None

    def is_silent(self) -> bool:
        """Whether the connection is open and nothing has arrived since the last response, also not in the kernel."""
        if self.transport is None or self.transport.is_closing() or self.should_close:
            return False
        arrivals = select.poll()
        arrivals.register(self.transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not arrivals.poll(0)

    async def has_ended_after_response(self) -> bool:
        """Wait until the broker ends the connection, and return whether nothing followed its response."""
        await asyncio.wait((self._end,), timeout=END_SECONDS)
        return self._end.done() and self._end.result() and not self._has_unasked

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived; the last byte on its own, because what follows a complete response is unasked."""
        error = self.exception()
        for part in (data[:-1], data[-1:]) if data else (data,):
            if part and not self._awaits_response:
                self._note()
            super().data_received(part)
        if self.exception() is not error:  # no response, or bytes behind one with `Connection: close`
            self._note()

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Take a parsed response from the parser; an interim one (1xx) is not the response to the request."""
        message, body = data
        if message.code == 101 or not 100 <= message.code < 200:
            if self._body is not None:
                self._note()
            self._body = body
        super().feed_data(data, size)

    def connection_lost(self, exc: BaseException | None) -> None:
        """Take note of the end."""
        self._end.set_result(exc is None)
        super().connection_lost(exc)

    def close(self) -> None:
        """Close the connection; after its only response, `Transport.ask` does that when it has seen what follows."""
        if self._reuses or not self.is_used or self._awaits_response:
            super().close()

    @property
    def _awaits_response(self) -> bool:
        return self.is_used and (self._body is None or not self._body.is_eof())

    def _note(self) -> None:
        if not self._has_unasked:
            self._has_unasked = True
            self.force_close()
            self._note_unasked()


class _Departure:
    """One request: its deadline (connect time-out until the first byte, then response time-out) and its connection."""

    def __init__(
        self, deadline: asyncio.Timeout, response_seconds: float, on_departure: OnDeparture, *, has_body: bool
    ) -> None:
        self._deadline = deadline
        self._response_seconds = response_seconds
        self._on_departure = on_departure
        self.has_body = has_body
        self.has_departed = False
        """Whether bytes may have been sent."""
        self._begun_at = boot_seconds()
        self.transport: asyncio.BaseTransport | None = None
        self.protocol: _Protocol | None = None
        self._is_noted = False

    def note(self) -> None:
        """Record that the first byte is about to be written; raises if the connect deadline has passed or bytes came.

        After a pause of the process the connection may complete in the same loop turn in which the deadline passes;
        without this check the request would still be sent. The loop's own clock stands still while the machine is
        suspended.
        """
        if self._is_noted:
            return
        self._is_noted, self.has_departed = True, False
        ends_at = self._deadline.when()
        if ends_at is not None and asyncio.get_running_loop().time() > ends_at:
            raise TimeoutError
        if boot_seconds() - self._begun_at > CONNECT_SECONDS:
            raise TimeoutError
        assert self.protocol is not None, "set by the connector"
        self.protocol.ask()
        self.has_departed = True
        self._deadline.reschedule(asyncio.get_running_loop().time() + self._response_seconds)
        # A task that this wakes runs in a later turn of the loop, after the bytes are written.
        self._on_departure()

    @property
    def address(self) -> str | None:
        """The peer that the connection leads to."""
        if self.transport is None:
            return None
        host, port, *_ = self.transport.get_extra_info("peername") or ("unknown", 0)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def abort(self) -> None:
        """Destroy the connection, with everything that is not yet delivered; a close would deliver it first."""
        if isinstance(self.transport, asyncio.WriteTransport):
            self.transport.abort()


# The request that the current task sends; set by `Transport.ask`, read by `_Connector`.
_request: ContextVar[_Departure] = ContextVar("request")


class _Connector(aiohttp.TCPConnector):
    """The connections to one broker; it tells each request which connection carries it.

    Without `reuses`, a connection is closed after its first response, and `_spares` are connections that have carried
    nothing yet. Each one that is used is replaced; unused ones are closed at the age of `idle_seconds` and replaced
    down to `spares_min`. If a connection fails, the spares are closed too: while the broker is away, a request on a new
    connection is proven unsent, and one on a spare connection would be in doubt.
    """

    def __init__(self, url: URL, pool: Pool, note_unasked: Callable[[], None]) -> None:
        if pool.reuses:
            super().__init__(
                limit=pool.connections_max, keepalive_timeout=pool.idle_seconds, socket_factory=_new_socket
            )
        else:
            super().__init__(limit=pool.connections_max, force_close=True, socket_factory=_new_socket)
        new_connection = partial(_Protocol, self._loop, note_unasked, reuses=pool.reuses)
        self._factory = cast("partial[ResponseHandler]", new_connection)
        self._idle_seconds = pool.idle_seconds
        self._spares_min = 0 if pool.reuses else pool.spares_min
        self._spares_max = 0 if pool.reuses else pool.spares_max
        # What aiohttp needs to open a connection; it is never sent.
        self._opening_request = aiohttp.ClientRequest("GET", url, loop=self._loop)
        # With the time at which each was opened, oldest first.
        self._spares: deque[tuple[_Protocol, float]] = deque()
        self._opening: set[asyncio.Task[None]] = set()
        self._upkeep = self._loop.create_task(self._keep_spares()) if self._spares_min else None

    async def connect(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - the signature is aiohttp's
    ) -> Connection:
        """Return a connection on which nothing has arrived yet: it would be read as the answer to this request."""
        departure = _request.get()
        while True:
            connection = await super().connect(req, traces, timeout)
            protocol = cast(_Protocol, connection.protocol)
            departure.transport, departure.protocol = connection.transport, protocol
            if protocol.is_silent():
                return connection
            connection.close()
            if not protocol.is_used:
                raise ConnectionError("something arrived before the request was sent")

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: list[Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - the signature is aiohttp's
    ) -> ResponseHandler:
        """Return a spare connection, or open one."""
        spare = self._take_spare()
        self._open_spare()
        return await super()._create_connection(req, traces, timeout) if spare is None else spare

    def _take_spare(self) -> _Protocol | None:
        """Return the newest spare connection, if it is alive and nothing has arrived on it."""
        while self._spares:
            protocol, opened_at = self._spares.pop()
            if boot_seconds() - opened_at <= self._idle_seconds and protocol.is_silent():
                return protocol
            protocol.abort()
        return None

    def _open_spare(self) -> None:
        if len(self._spares) + len(self._opening) < self._spares_max:
            task = self._loop.create_task(self._add_spare())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _add_spare(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                protocol = await super()._create_connection(self._opening_request, [], _NO_TIMEOUTS)
        except (aiohttp.ClientError, OSError):  # TimeoutError is an OSError
            self.discard_spares()
        else:
            self._spares.append((cast(_Protocol, protocol), boot_seconds()))

    async def _keep_spares(self) -> None:
        while True:
            now = boot_seconds()
            while self._spares and now - self._spares[0][1] > self._idle_seconds:
                self._spares.popleft()[0].abort()
            fresh_since = now - self._idle_seconds + REPLACED_AHEAD_SECONDS
            fresh = sum(opened_at > fresh_since and protocol.is_silent() for protocol, opened_at in self._spares)
            for _ in range(self._spares_min - fresh - len(self._opening)):
                self._open_spare()
            await asyncio.sleep(SPARES_CHECK_SECONDS)

    def discard_spares(self) -> None:
        """Close every spare connection."""
        while self._spares:
            self._spares.pop()[0].abort()

    async def end_spares(self) -> None:
        """Close every spare connection, and open no more."""
        self._spares_max = 0
        tasks = [*self._opening, *([self._upkeep] if self._upkeep else [])]
        for task in tasks:
            task.cancel()
        ends = [ended for protocol, _ in self._spares if (ended := protocol.closed) is not None]
        self.discard_spares()
        await asyncio.gather(*tasks, *ends, return_exceptions=True)
        self.discard_spares()  # one that was opened meanwhile


class Transport:
    """A bounded pool of connections to one broker."""

    def __init__(
        self,
        url: str,
        pool: Pool,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        note_unasked: Callable[[], None] = lambda: None,
    ) -> None:
        """`note_unasked` is called for each connection on which the broker sends something that was not asked for."""
        self._url = url.rstrip("/")
        self._pool = pool
        self._headers = dict(headers)
        self._note_unasked = note_unasked
        self._connector: _Connector | None = None
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Create the connection pool, and begin to open its spare connections."""
        tracing = aiohttp.TraceConfig()
        tracing.on_request_headers_sent.append(_note_headers)
        tracing.on_request_chunk_sent.append(_note_body)
        self._connector = _Connector(URL(self._url, encoded=True), self._pool, self._note)
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={
                "Accept": "application/json",
                "Accept-Encoding": "identity",
                # An answer about an order must come from the broker, not from a cache on the way.
                "Cache-Control": "no-cache, no-store",
                **self._headers,
            },
            # A small compressed response could expand beyond the size limit.
            auto_decompress=False,
            read_bufsize=_READ_BUFFER_BYTES,
            # A proxy from an environment variable would be an undeclared hop (VENUE_HOP_HOLD_SEC_).
            trust_env=False,
            trace_configs=[tracing],
        )
        # aiohttp would repeat a GET if a reused connection breaks. Repeats belong to the caller, who counts them.
        self._session._retry_connection = False

    def _note(self) -> None:
        log.warning("unasked_response", url=self._url)
        self._note_unasked()

    async def close(self) -> None:
        """Close every connection."""
        if self._session is not None and self._connector is not None:
            await self._connector.end_spares()
            await self._session.close()
            self._session = self._connector = None

    async def ask(
        self,
        method: str,
        path: str,
        *,
        response_seconds: float,
        bytes_max: int,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        on_departure: OnDeparture = ignore_departure,
        awaits_end: AwaitsEnd = never_awaited,
    ) -> Exchange:
        """Send one request once and read its response; network and broker failures are returned, not raised.

        If `awaits_end`, the broker has to end the connection before the response is returned (`is_only_response`).
        Without a complete response, for whatever reason, the connection is aborted; and after it, unless it is reused.
        """
        if self._session is None or self._connector is None:
            return NotSent("VENUE_DOWN")
        departure: _Departure | None = None
        is_complete = False
        try:
            async with asyncio.timeout(CONNECT_SECONDS) as deadline:
                departure = _Departure(deadline, response_seconds, on_departure, has_body=body is not None)
                _request.set(departure)
                async with self._session.request(
                    method,
                    URL(self._url + path, encoded=True),
                    data=body,
                    headers=headers,
                    allow_redirects=False,
                    timeout=_NO_TIMEOUTS,
                    trace_request_ctx=departure,
                ) as response:
                    address = departure.address  # the pool takes the connection back with the last byte
                    content = await _read(response, bytes_max)
                    is_complete = True
                    is_only_response = False
                    if not self._pool.reuses and awaits_end(response.status, content):
                        assert departure.protocol is not None, "it has carried the response"
                        is_only_response = await departure.protocol.has_ended_after_response()
                    headers_read = response.headers
                    return BrokerResponse(
                        response.status,
                        content,
                        retry_after=headers_read.get("Retry-After"),
                        venue_time=headers_read.get(TIME_HEADER),
                        date=headers_read.get("Date"),
                        address=address,
                        is_cached=headers_read.get("Age", "0").strip() != "0",
                        is_only_response=is_only_response,
                    )
        except Exception as error:
            # For every kind of error, the outcome depends only on whether the request was sent.
            if departure is not None and departure.has_departed:
                if self._connector is not None:
                    self._connector.discard_spares()
                return _lost(error, departure.address)
            return NotSent("BROKER_DOWN", _not_sent_error(error))
        finally:
            if departure is not None and not (is_complete and self._pool.reuses):
                departure.abort()


def _new_socket(address: AddrInfoType) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ZERO_LINGER)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNACKNOWLEDGED_SECONDS * 1000))
    return made


async def _note_headers(
    session: aiohttp.ClientSession, context: SimpleNamespace, sent: aiohttp.TraceRequestHeadersSentParams
) -> None:
    """Trace hook that aiohttp calls right before it writes a request without a body."""
    departure: _Departure = context.trace_request_ctx
    if departure.has_body:
        departure.has_departed = True  # until `_note_body` has taken the last look
    else:
        departure.note()


async def _note_body(
    session: aiohttp.ClientSession, context: SimpleNamespace, sent: aiohttp.TraceRequestChunkSentParams
) -> None:
    """Trace hook that aiohttp calls right before it writes a request with its body, in a later turn of the loop."""
    departure: _Departure = context.trace_request_ctx
    departure.note()


async def _read(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > bytes_max:
            raise _Oversized(f"the response exceeds {bytes_max} bytes")
    return bytes(body)


def _lost(error: Exception, address: str | None) -> Lost:
    match error:
        case TimeoutError():
            return Lost("NETWORK_TIMEOUT", None, address)
        case _Oversized() | aiohttp.ClientResponseError():
            return Lost("UNKNOWN", str(error), address)
        case aiohttp.ClientError() | OSError():
            return Lost("NETWORK_DISCONNECTED", None, address)
        case _:
            return Lost("UNKNOWN", repr(error), address)


def _not_sent_error(error: Exception) -> str:
    match error:
        case TimeoutError():
            return "no connection in time"
        case aiohttp.ClientConnectorDNSError():
            return "name lookup failed"
        case aiohttp.ClientConnectorError():
            return error.strerror or "no connection"
        case aiohttp.ClientOSError(__cause__=ConnectionError() as cause):  # raised by `_note_body`
            return str(cause)
        case ConnectionError():
            return str(error)
        case _:
            return repr(error)
