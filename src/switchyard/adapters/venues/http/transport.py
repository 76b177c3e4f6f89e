"""One HTTP exchange with a broker, and the one fact that matters when it fails: whether any byte may have left."""

import asyncio
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Final

import aiohttp
import msgspec
from yarl import URL

from switchyard.domain.reasons import AmbiguousCode, UnsentCode
from switchyard.ports.venue import OnDeparture, ignore_departure

# Connecting, with the name lookup, the handshake and the wait for a free connection. Nothing has left by then, so
# giving up costs another try and no doubt; within what an IOC order has in all (2.5 s).
CONNECT_SECONDS: Final = 2.0
# The deadlines are our own, see `Transport.ask`.
_NO_TIMEOUTS: Final = aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None)


class BrokerResponse(msgspec.Struct, frozen=True):
    """A whole answer, within its bound."""

    status: int
    body: bytes
    retry_after: str | None = None


class NotSent(msgspec.Struct, frozen=True):
    """Proven: no byte of the request left."""

    code: UnsentCode
    detail: str | None = None


class Lost(msgspec.Struct, frozen=True):
    """Bytes may have left, and no whole answer came back."""

    code: AmbiguousCode
    detail: str | None = None


Exchange = BrokerResponse | NotSent | Lost


class _Oversized(Exception):
    """The answer is over its bound."""


class _Departure:
    """Watches one request: until it leaves, the time to connect runs; from then on, the time to be answered."""

    def __init__(self, limit: asyncio.Timeout, answer_seconds: float, tell: OnDeparture) -> None:
        self._limit = limit
        self._answer_seconds = answer_seconds
        self._tell = tell
        self.has_departed = False

    def note(self) -> None:
        """The next thing that happens is that bytes are written; raises where it is too late for that.

        A process that was paused in the middle finds its connection made and its time over at the same moment.
        """
        ends_at = self._limit.when()
        if ends_at is not None and asyncio.get_running_loop().time() > ends_at:
            raise TimeoutError
        self.has_departed = True
        self._limit.reschedule(asyncio.get_running_loop().time() + self._answer_seconds)
        # The one who hears of it runs in a later turn of the loop, when the bytes are written.
        self._tell()


class Transport:
    """A bounded pool of connections to one broker."""

    def __init__(self, url: str, *, connections_max: int, idle_seconds: float, headers: Mapping[str, str]) -> None:
        self._url = url.rstrip("/")
        self._connections_max = connections_max
        self._idle_seconds = idle_seconds
        self._headers = dict(headers)
        self._session: aiohttp.ClientSession | None = None

    async def start(self) -> None:
        """Be ready to connect; nobody is connected to yet."""
        tracing = aiohttp.TraceConfig()
        tracing.on_request_headers_sent.append(_note_departure)
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=self._connections_max, keepalive_timeout=self._idle_seconds),
            cookie_jar=aiohttp.DummyCookieJar(),
            headers={"Accept": "application/json", "Accept-Encoding": "identity", **self._headers},
            # A small answer that grows on decompression would get round its bound.
            auto_decompress=False,
            trace_configs=[tracing],
        )

    async def close(self) -> None:
        """Drop every connection."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def ask(
        self,
        method: str,
        path: str,
        *,
        answer_seconds: float,
        bytes_max: int,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        on_departure: OnDeparture = ignore_departure,
    ) -> Exchange:
        """Send one request once and read its answer; never raises for what the network or the broker may do.

        aiohttp repeats a request of its own accord only on a connection that broke, and only for methods that HTTP
        calls idempotent: never a POST.
        """
        if self._session is None:
            return NotSent("VENUE_DOWN")
        departure: _Departure | None = None
        try:
            async with asyncio.timeout(CONNECT_SECONDS) as limit:
                departure = _Departure(limit, answer_seconds, on_departure)
                async with self._session.request(
                    method,
                    URL(self._url + path, encoded=True),
                    data=body,
                    headers=headers,
                    allow_redirects=False,
                    timeout=_NO_TIMEOUTS,
                    trace_request_ctx=departure,
                ) as response:
                    read = await _read(response, bytes_max)
                    return BrokerResponse(response.status, read, response.headers.get("Retry-After"))
        except Exception as error:
            # Whatever it was: what follows from it depends on nothing but this.
            if departure is not None and departure.has_departed:
                return _loss(error)
            return NotSent("BROKER_DOWN", _obstacle(error))


async def _note_departure(
    session: aiohttp.ClientSession, context: SimpleNamespace, sent: aiohttp.TraceRequestHeadersSentParams
) -> None:
    """Called by aiohttp right before it writes the first byte of a request."""
    departure: _Departure = context.trace_request_ctx
    departure.note()


async def _read(response: aiohttp.ClientResponse, bytes_max: int) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > bytes_max:
            raise _Oversized(f"over {bytes_max} bytes")
    return bytes(body)


def _loss(error: Exception) -> Lost:
    match error:
        case TimeoutError():
            return Lost("NETWORK_TIMEOUT")
        case _Oversized() | aiohttp.ClientResponseError():
            return Lost("UNKNOWN", str(error))
        case aiohttp.ClientError() | OSError():
            return Lost("NETWORK_DISCONNECTED")
        case _:
            return Lost("UNKNOWN", repr(error))


def _obstacle(error: Exception) -> str:
    match error:
        case TimeoutError():
            return "no connection in time"
        case aiohttp.ClientConnectorDNSError():
            return "name lookup failed"
        case aiohttp.ClientConnectorError():
            return error.strerror or "no connection"
        case _:
            return repr(error)
