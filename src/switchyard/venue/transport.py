"""HTTP exchanges with a broker, which record whether any byte of the request may have been sent.

That fact decides between `NotSent` (safe to send again) and `Lost` (in doubt). `outcomes` interprets the result. A
request that is given up is destroyed in the kernel too: it must not arrive after a lookup found the order absent.

HTTP/1.1 has no correlation: on a connection that is used again, a second response to one request is read as the
response to the next. So a connection carries one request, and spare connections are opened ahead of the requests,
unless a repeated order does no harm at the broker (`Pool.reuses`; ADR 43). A response that counts only if it surely
answers the request must be the only one until the broker ends the connection (`is_only_response`).

HTTP clients hide what matters here: when a request is written, what follows a response, and their own repeats. So this
is a protocol of asyncio with the parser of httptools, and nothing in between (ADR 51).
"""

import asyncio
import select
import socket
import ssl
import struct
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple, cast
from urllib.parse import urlsplit

import httptools
import msgspec
import structlog
from aiohappyeyeballs import AddrInfoType, start_connection

from switchyard.domain.orders.reasons import AmbiguousCode, UnsentCode
from switchyard.ports.clock import boot_seconds
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
# How often the age of the connections that wait for a request is checked.
WAITING_CHECK_SECONDS: Final = 0.5
# The time between two addresses of one name that are tried at once (RFC 8305).
NEXT_ADDRESS_SECONDS: Final = 0.25
# Closing a socket discards what the kernel has not delivered yet and resets the connection. Set when the socket is
# made, so that a kill of the process has the same effect; without it, the kernel retransmits the request after both.
_ZERO_LINGER: Final = struct.pack("ii", 1, 0)
# How long the broker may take to end a connection after its response. It was asked to (`Connection: close`), and a
# server does that at once; a rejection by one that does not leaves the order in doubt.
END_SECONDS: Final = 1.0
# The status line and the headers of a response, with those of interim ones.
HEAD_BYTES_MAX: Final = 64 * 1024


class BrokerResponse(msgspec.Struct, frozen=True):
    """A complete response within its size limit."""

    status: int
    body: bytes
    headers: Mapping[str, str] = MappingProxyType({})
    """By their names in lower case; of several with one name the first."""
    address: str | None = None
    """The peer that the connection led to."""
    is_only_response: bool = False
    """Whether the connection carried this request and this response, and nothing else until the broker ended it. False
    if that was not awaited."""
    is_followed: bool = False
    """Whether something that was not asked for had arrived behind the response by the time it was read."""

    @property
    def is_cached(self) -> bool:
        """Whether a cache on the way says that it answered instead of the broker."""
        return self.headers.get("age", "0").strip() != "0"


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

AwaitsEnd = Callable[[int, Mapping[str, str], bytes], bool]
"""Whether a response with this status, these headers and this body counts only if it surely answers its request."""


def never_awaited(_status: int, _headers: Mapping[str, str], _body: bytes) -> bool:
    """The default `awaits_end`: the response names what it is about, or decides nothing."""
    return False


class Pool(msgspec.Struct, frozen=True):
    """How many connections to a broker there are, and for how long."""

    connections_max: int
    spares_min: int = 0
    """Connections that are opened ahead while there are no requests."""
    spares_max: int = 0
    idle_seconds: float = IDLE_SECONDS
    reuses: bool = False
    """Whether a connection carries one request after the other; there are no spare ones then."""


class _BadResponse(Exception):
    """What arrived is no response, or exceeds its size limit."""


class _Received(NamedTuple):
    """A complete response as it arrived."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class _Connection(asyncio.Protocol):
    """A connection to the broker; it notes whatever arrives beyond one response to each request."""

    def __init__(self, note_unasked: Callable[[], None], on_end: Callable[["_Connection"], None]) -> None:
        self._note_unasked = note_unasked
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._answer: asyncio.Future[_Received] | None = None
        """The response to the request that was written last."""
        self._has_unasked = False
        self.ended: asyncio.Future[bool] = self._loop.create_future()
        """Whether the end of the connection was a regular one, not a reset."""
        self.waits_since = boot_seconds()
        """When it was opened, or had its last complete response."""
        self.is_used = False
        """Whether the connection has carried a request."""
        self.may_be_used_again = False

    # The connection as `Transport` uses it.

    @property
    def address(self) -> str | None:
        """The peer that the connection leads to."""
        if self._transport is None:
            return None
        host, port, *_ = self._transport.get_extra_info("peername") or ("unknown", 0)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    @property
    def is_followed(self) -> bool:
        """Whether something has arrived that was not asked for."""
        return self._has_unasked

    def is_silent(self) -> bool:
        """Whether the connection is open and nothing has arrived since the last response, also not in the kernel."""
        if self._transport is None or self._transport.is_closing() or self._has_unasked:
            return False
        arrivals = select.poll()
        arrivals.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not arrivals.poll(0)

    def ask(self, request: bytes, bytes_max: int) -> "asyncio.Future[_Received]":
        """Write a request and return the future of its response; the connection must be silent."""
        assert self._transport is not None, "a connection is used once it is open"
        self.is_used, self.may_be_used_again = True, False
        self._parser = httptools.HttpResponseParser(self)
        self._bytes_max, self._head_bytes = bytes_max, 0
        self._begin_response()
        self._answer = self._loop.create_future()
        self._transport.write(request)
        return self._answer

    async def has_ended_after_response(self) -> bool:
        """Wait until the broker ends the connection, and return whether nothing followed its response.

        A body that lasts until the end may itself contain what followed.
        """
        await asyncio.wait((self.ended,), timeout=END_SECONDS)
        return self.ended.done() and self.ended.result() and not self._has_unasked and not self._lasts_until_end

    def abort(self) -> None:
        """Destroy the connection, with everything that is not yet delivered; a close would deliver it first."""
        if self._transport is not None:
            self._transport.abort()

    # The callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived; the last byte on its own, because what follows a complete response is unasked."""
        arrived = memoryview(data)
        for part in (arrived[:-1], arrived[-1:]):
            if not part:
                continue
            if self._answer is None or self._answer.done() or self._parser is None:
                self._note()
                return
            if not self._has_head:
                self._head_bytes += len(part)
            try:
                self._parser.feed_data(part)
            except httptools.HttpParserUpgrade:
                pass  # its response is complete, and there is no other protocol here
            except httptools.HttpParserError as error:
                if not self._answer.done():
                    self._answer.set_exception(_BadResponse(str(error)))
                    self._note()
                    return
            if len(self._body) > self._bytes_max:
                self._fail(_BadResponse(f"the response exceeds {self._bytes_max} bytes"))
            elif not self._has_head and self._head_bytes > HEAD_BYTES_MAX:
                self._fail(_BadResponse(f"the headers of the response exceed {HEAD_BYTES_MAX} bytes"))

    def eof_received(self) -> None:
        """The end of the connection is the end of a body without a length."""
        if self._has_head_without_length():
            self._complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Take note of the end."""
        if exc is None and self._has_head_without_length():
            self._complete()
        self._fail(ConnectionError("the connection ended before the response was complete"))
        if not self.ended.done():
            self.ended.set_result(exc is None)
        self._on_end(self)

    # The callbacks of httptools; those of what follows a complete response are ignored.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep the first value of each header; those behind a body are no headers of the response."""
        if not self._has_head:
            self._headers.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))

    def on_headers_complete(self) -> None:
        """Take note of where the body ends."""
        if self._answer is not None and not self._answer.done():
            self._has_head = True
            chunked = self._headers.get("transfer-encoding", "").lower().endswith("chunked")
            self._lasts_until_end = not chunked and "content-length" not in self._headers

    def on_body(self, body: bytes) -> None:
        """Collect the body, and no more than is looked at."""
        if self._answer is not None and not self._answer.done() and len(self._body) <= self._bytes_max:
            self._body += body

    def on_message_complete(self) -> None:
        """Complete the response; an interim one (1xx) is not the response to the request."""
        assert self._parser is not None
        status = self._parser.get_status_code()
        if 100 <= status < 200 and status != 101:
            self._begin_response()
            return
        self._lasts_until_end = False
        self._complete()

    def _begin_response(self) -> None:
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._has_head = False
        self._lasts_until_end = False

    def _has_head_without_length(self) -> bool:
        return self._answer is not None and not self._answer.done() and self._has_head and self._lasts_until_end

    def _complete(self) -> None:
        if self._answer is None or self._answer.done() or self._parser is None or len(self._body) > self._bytes_max:
            return
        self.waits_since = boot_seconds()
        self.may_be_used_again = not self._lasts_until_end and self._parser.should_keep_alive()
        self._answer.set_result(_Received(self._parser.get_status_code(), self._headers, bytes(self._body)))

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)

    def _note(self) -> None:
        if not self._has_unasked:
            self._has_unasked = True
            self._note_unasked()
        self.abort()


class Transport:
    """A bounded pool of connections to one broker.

    Without `reuses`, a connection carries one request, and those that wait have carried nothing yet: the spare ones.
    Each one that is used is replaced; unused ones are closed at the age of `idle_seconds` and replaced down to
    `spares_min`. If a connection fails, those that wait are closed too: while the broker is away, a request on a new
    connection is proven unsent, and one on a connection that was opened before would be in doubt.
    """

    def __init__(
        self,
        url: str,
        pool: Pool,
        *,
        headers: Mapping[str, str] = MappingProxyType({}),
        note_unasked: Callable[[], None] = lambda: None,
    ) -> None:
        """`note_unasked` is called for each connection on which the broker sends something that was not asked for."""
        parts = urlsplit(url.rstrip("/"))
        self._url, self._path = url, parts.path
        self._host = (parts.hostname or "").encode("idna").decode()
        self._is_secure = parts.scheme == "https"
        self._port = parts.port or (443 if self._is_secure else 80)
        host = f"[{self._host}]" if ":" in self._host else self._host
        self._head = _header_lines(
            {
                "Host": host if parts.port is None else f"{host}:{parts.port}",
                "Accept": "application/json",
                # A small compressed response could expand beyond the size limit.
                "Accept-Encoding": "identity",
                # An answer about an order must come from the broker, not from a cache on the way.
                "Cache-Control": "no-cache, no-store",
                "User-Agent": "event-switchyard",
                **headers,
            }
        )
        self._pool = pool
        self._spares_min = 0 if pool.reuses else pool.spares_min
        self._spares_max = 0 if pool.reuses else pool.spares_max
        self._note_unasked = note_unasked
        self._is_open = False
        self._secure: ssl.SSLContext | None = None
        self._free = asyncio.Semaphore(pool.connections_max)
        self._waiting: deque[_Connection] = deque()
        """Those that may carry the next request, the one that waits longest first."""
        self._connections: set[_Connection] = set()
        self._opening: set[asyncio.Task[None]] = set()
        self._upkeep: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to open the spare connections."""
        if self._is_secure:
            self._secure = ssl.create_default_context()
            self._secure.set_alpn_protocols(["http/1.1"])
        self._is_open = True
        self._upkeep = asyncio.create_task(self._keep_up())

    async def close(self) -> None:
        """Close every connection."""
        self._is_open = False
        tasks = [*self._opening, *([self._upkeep] if self._upkeep else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._waiting.clear()
        ends = [connection.ended for connection in self._connections]
        for connection in list(self._connections):
            connection.abort()
        await asyncio.gather(*ends)

    async def ask(
        self,
        method: str,
        path: str,
        *,
        response_seconds: float,
        bytes_max: int,
        body: bytes | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
        on_departure: OnDeparture = ignore_departure,
        awaits_end: AwaitsEnd = never_awaited,
        is_alone: bool = False,
    ) -> Exchange:
        """Send one request once and read its response; network and broker failures are returned, not raised.

        If `awaits_end`, the broker has to end the connection before the response is returned (`is_only_response`);
        on one that is reused that cannot be awaited. `is_alone`: the request has a connection of its own in any case.
        Without a complete response, for whatever reason, the connection is aborted; and after it, unless it is reused.
        """
        if not self._is_open:
            return NotSent("VENUE_DOWN")
        connection: _Connection | None = None
        has_departed = is_kept = False
        reuses = self._pool.reuses and not is_alone
        began_at, loop = boot_seconds(), asyncio.get_running_loop()
        try:
            request = self._request(method, path, headers, body, reuses=reuses)
            async with asyncio.timeout(CONNECT_SECONDS) as deadline, self._free:
                try:
                    # In a pool that reuses connections, those that wait may have carried a request.
                    connection = await (self._open() if self._pool.reuses and is_alone else self._connection())
                    # After a pause of the process the connection may be there in the turn of the loop in which the
                    # deadline passes. The loop's own clock stands still while the machine is suspended.
                    ends_at = deadline.when()
                    if ends_at is None or loop.time() > ends_at or boot_seconds() - began_at > CONNECT_SECONDS:
                        raise TimeoutError
                    if not connection.is_silent():
                        raise ConnectionError("something arrived before the request was sent")
                    has_departed = True
                    deadline.reschedule(loop.time() + response_seconds)
                    answer = connection.ask(request, bytes_max)
                    on_departure()
                    received = await answer
                    is_only_response = False
                    if not reuses and awaits_end(*received):
                        is_only_response = await connection.has_ended_after_response()
                    is_kept = reuses and connection.may_be_used_again and connection.is_silent()
                    return BrokerResponse(
                        received.status,
                        received.body,
                        received.headers,
                        connection.address,
                        is_only_response=is_only_response,
                        is_followed=connection.is_followed,
                    )
                finally:
                    if is_kept and connection is not None:
                        self._waiting.append(connection)
                    elif connection is not None:
                        connection.abort()
        except Exception as error:
            # For every kind of error, the outcome depends only on whether the request was sent.
            if has_departed and connection is not None:
                self.discard_waiting()
                return _lost(error, connection.address)
            return NotSent("BROKER_DOWN", _not_sent_error(error))

    def discard_waiting(self) -> None:
        """Close every connection that waits for a request."""
        while self._waiting:
            self._waiting.pop().abort()

    def _request(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, *, reuses: bool
    ) -> bytes:
        length = {} if body is None else {"Content-Length": str(len(body))}
        line = f"{method} {self._path}{path} HTTP/1.1\r\n".encode("ascii")
        connection = b"Connection: keep-alive\r\n" if reuses else b"Connection: close\r\n"
        return b"".join((line, self._head, connection, _header_lines({**headers, **length}), b"\r\n", body or b""))

    async def _connection(self) -> _Connection:
        """Return the connection that waits for the shortest time and on which nothing has arrived, or open one."""
        found = self._take_waiting()
        self._open_spare()
        return found or await self._open()

    def _take_waiting(self) -> _Connection | None:
        while self._waiting:
            connection = self._waiting.pop()
            if boot_seconds() - connection.waits_since <= self._pool.idle_seconds and connection.is_silent():
                return connection
            connection.abort()
        return None

    async def _open(self) -> _Connection:
        loop = asyncio.get_running_loop()
        addresses = await loop.getaddrinfo(self._host, self._port, type=socket.SOCK_STREAM)
        made = await start_connection(
            addresses,
            happy_eyeballs_delay=NEXT_ADDRESS_SECONDS,
            interleave=1,
            socket_factory=lambda address: _new_socket(address),
        )
        try:
            _, connection = await loop.create_connection(
                lambda: _Connection(self._note, self._connections.discard),
                sock=made,
                ssl=self._secure,
                server_hostname=self._host if self._secure else None,
            )
        except BaseException:
            made.close()
            raise
        self._connections.add(connection)
        return connection

    def _open_spare(self) -> None:
        if len(self._waiting) + len(self._opening) < self._spares_max:
            task = asyncio.create_task(self._add_spare())
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _add_spare(self) -> None:
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                self._waiting.append(await self._open())
        except OSError:  # TimeoutError is one
            self.discard_waiting()

    async def _keep_up(self) -> None:
        while True:
            now = boot_seconds()
            while self._waiting and now - self._waiting[0].waits_since > self._pool.idle_seconds:
                self._waiting.popleft().abort()
            fresh_since = now - self._pool.idle_seconds + REPLACED_AHEAD_SECONDS
            fresh = sum(waiting.waits_since > fresh_since and waiting.is_silent() for waiting in self._waiting)
            for _ in range(self._spares_min - fresh - len(self._opening)):
                self._open_spare()
            await asyncio.sleep(WAITING_CHECK_SECONDS)

    def _note(self) -> None:
        log.warning("unasked_response", url=self._url)
        self._note_unasked()


def _header_lines(headers: Mapping[str, str]) -> bytes:
    """The header lines of a request; raises ValueError if a value would end its line."""
    lines = [f"{name}: {value}\r\n" for name, value in headers.items()]
    for line in lines:
        if not line[:-2].isprintable():
            raise ValueError(f"the header {line.partition(':')[0]} has a control character")
    return "".join(lines).encode("latin-1")


def _new_socket(address: AddrInfoType) -> socket.socket:
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _ZERO_LINGER)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(UNACKNOWLEDGED_SECONDS * 1000))
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return made


def _lost(error: Exception, address: str | None) -> Lost:
    match error:
        case TimeoutError():
            return Lost("NETWORK_TIMEOUT", None, address)
        case OSError():
            return Lost("NETWORK_DISCONNECTED", None, address)
        case _BadResponse():
            return Lost("UNKNOWN", str(error), address)
        case _:
            return Lost("UNKNOWN", repr(error), address)


def _not_sent_error(error: Exception) -> str:
    match error:
        case TimeoutError():
            return "no connection in time"
        case socket.gaierror():
            return "name lookup failed"
        case OSError():
            return error.strerror or str(error) or "no connection"
        case _:
            return repr(error)
