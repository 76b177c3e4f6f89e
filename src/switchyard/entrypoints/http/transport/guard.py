"""The way into an application: whose a request is, and what it must pass before it is routed.

Client addresses behind trusted proxies and how many connections each has; host, origin, media type, codings and path;
the names that are served; headers that every answer carries. Reads a request's head and settings; writes no state.
"""

import re
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from urllib.parse import unquote

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from switchyard.domain.errors import RequestError
from switchyard.entrypoints.http.errors import (
    GUARD_HEADERS,
    HostNotAllowed,
    InvalidHost,
    OriginNotAllowed,
    TooManyConnections,
    UnknownTransferCoding,
    UnsupportedMediaType,
    WireResponse,
    error_response,
)
from switchyard.settings import Settings

Network = IPv4Network | IPv6Network

# Proxies in a row whose entries in X-Forwarded-For are believed; no set-up has more.
FORWARDED_MAX = 16
# Room for the addresses of a busy day; each entry is about 200 bytes.
_PARSED_MAX = 4_096
# A fifth of all connections is kept for addresses that have few, so that a few greedy ones cannot lock out the others.
RESERVED_SHARE = 0.2
# Connections that an address may still open from the reserved part.
FEW_CONNECTIONS = 16
# Member of a request's scope: the trusted proxy that it came from, once `client` is the proxy's client.
TRUSTED_PROXY = "switchyard.trusted_proxy"
# Member of a request's scope if its target is a whole URL: `protocol.py` has put that URL's host in the place of Host.
ABSOLUTE_TARGET = "switchyard.absolute_target"
DEFAULT_PORT = "80"
# Headers that HTTP clients send by themselves (curl and those of Python, Node, Go, Java and Perl), and the documented
# ones of `/do/order`. A proxy adds others, and a list of those would never be complete.
_CLIENT_HEADERS = frozenset(
    {
        b"accept",
        b"accept-charset",
        b"accept-encoding",
        b"accept-language",
        b"baggage",
        b"cache-control",
        b"connection",
        b"content-encoding",
        b"content-length",
        b"content-type",
        b"expect",
        b"host",
        b"http2-settings",
        b"idempotency-key",
        b"keep-alive",
        b"pragma",
        b"priority",
        b"sec-fetch-mode",
        b"te",
        b"traceparent",
        b"tracestate",
        b"transfer-encoding",
        b"upgrade",
        b"user-agent",
    }
)
# The longest header name or Host that an error quotes.
_NAME_LENGTH_MAX = 64


class Proxies:
    """The proxies whose X-Forwarded-For is believed."""

    def __init__(self, networks: Sequence[Network] = ()) -> None:
        self._networks = tuple(networks)
        self._trusts = lru_cache(_PARSED_MAX)(self._is_listed)

    def trusts(self, address: str) -> bool:
        """Whether the address is one of the proxies."""
        return bool(self._networks) and self._trusts(address)

    def client_of(self, proxy: str, forwarded: Sequence[bytes]) -> str:
        """Return the address of the client behind a trusted proxy.

        Each proxy appends the address that it was called from, so the entries are read from the right and the first
        one that is not a proxy is the client. Everything left of it was written by the client and proves nothing.
        """
        client = proxy
        for entry in reversed(b",".join(forwarded).rsplit(b",", FORWARDED_MAX)[-FORWARDED_MAX:]):
            address = _without_port(entry.strip().decode("latin-1"))
            if not _is_address(address):
                break
            client = address
            if not self._trusts(address):
                break
        return client

    def see_through(self, scope: Scope) -> bool:
        """Put the client in the place of a trusted proxy that a request came from; false if it came from none."""
        peer = scope["client"]
        if not self._networks or peer is None or not self._trusts(peer[0]):
            return False
        forwarded = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
        scope[TRUSTED_PROXY] = peer[0]
        scope["client"] = self.client_of(peer[0], forwarded), 0
        return True

    def _is_listed(self, address: str) -> bool:
        if not _is_address(address):
            return False
        parsed = _plain(address)
        return any(parsed in network for network in self._networks if network.version == parsed.version)


class ConnectionCaps:
    """Counts connections by address; the caller counts the total."""

    def __init__(
        self,
        *,
        total_max: int = 10_000,
        per_address_max: int = 2_000,
        proxies: Proxies | None = None,
        on_rejection: Callable[[], None] = lambda: None,
    ) -> None:
        self.total_max = total_max
        self.per_address_max = per_address_max
        self.proxies = proxies or Proxies()
        self._crowded_from = total_max - int(total_max * RESERVED_SHARE)
        self._few = min(FEW_CONNECTIONS, per_address_max)
        self._on_rejection = on_rejection
        self._counts: dict[str, int] = {}

    def is_crowded(self, total: int) -> bool:
        """Whether only the reserved part is left."""
        return total > self._crowded_from

    def enter(self, address: str | None, total: int) -> bool:
        """Count a connection from an address; false if it has to be closed. `total` includes it.

        A trusted proxy is not counted (its clients are, by `enter_client`), nor is a connection without an address.
        """
        if address is None:
            return self._decided(total <= self.total_max)
        limit = self._few if self.is_crowded(total) else self.per_address_max
        return self._decided(total <= self.total_max and self._counts.get(address, 0) < limit) and self._count(address)

    def enter_client(self, address: str) -> bool:
        """Count a request that a trusted proxy forwards for a client; false if it has to be rejected."""
        return self._decided(self._counts.get(address, 0) < self.per_address_max) and self._count(address)

    def leave(self, address: str) -> None:
        """A counted connection or request has ended."""
        count = self._counts[address] - 1
        if count:
            self._counts[address] = count
        else:
            del self._counts[address]

    def _count(self, address: str) -> bool:
        self._counts[address] = self._counts.get(address, 0) + 1
        return True

    def _decided(self, has_room: bool) -> bool:
        if not has_room:
            self._on_rejection()
        return has_room


def sign_of_proxy(scope: Scope) -> str | None:
    """Return why a proxy may have forwarded the request; None if it looks like one of a program of this machine.

    A proxy need not leave a sign.
    """
    if TRUSTED_PROXY in scope:
        return "it came from a trusted proxy"
    if scope["http_version"] == "1.0":
        return "it is HTTP/1.0, which proxies use"
    if ABSOLUTE_TARGET in scope:
        return "its target is a whole URL, which clients send only to a proxy"
    if is_loopback(client_address(scope)) and (host := _foreign_host(scope)) is not None:
        own = f"localhost:{scope['server'][1]}"
        return f"its Host is {host[:_NAME_LENGTH_MAX].decode('latin-1')}, and programs of this machine use {own}"
    unusual = next((name for name, _ in scope["headers"] if name not in _CLIENT_HEADERS), None)
    return (
        None if unusual is None else f"a proxy may have added its header {unusual[:_NAME_LENGTH_MAX].decode('latin-1')}"
    )


def _foreign_host(scope: Scope) -> bytes | None:
    """Return the Host if it is not a name of the loopback address, or its port is not the server's.

    One without a port names port 80: many proxies remove the port of the Host that they pass on.
    """
    host: bytes = next((value for name, value in scope["headers"] if name == b"host"), b"")
    name, port = name_and_port(host) or ("", "")
    return None if is_loopback(name) and (port or DEFAULT_PORT) == str(scope["server"][1]) else host


def client_address(scope: Scope) -> str:
    """Return the address of a request's client; `-` for a connection without one."""
    client = scope["client"]
    return "-" if client is None else str(client[0])


@lru_cache(_PARSED_MAX)
def limited_as(address: str) -> str:
    """Return the name under which limits count an address: an IPv6 client can use every address of its /64 network."""
    if not _is_address(address):
        return address
    parsed = _plain(address)
    return str(IPv6Network((parsed, 64), strict=False)) if isinstance(parsed, IPv6Address) else str(parsed)


@lru_cache(_PARSED_MAX)
def is_loopback(host: str) -> bool:
    """Whether an address, or the name `localhost`, means this machine only."""
    if not _is_address(host):
        return host.lower() == "localhost"
    return _plain(host).is_loopback


def _plain(address: str) -> IPv4Address | IPv6Address:
    """Return the parsed address; an IPv4 address that is written as IPv6 as IPv4."""
    parsed = ip_address(address)
    return parsed.ipv4_mapped or parsed if isinstance(parsed, IPv6Address) else parsed


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def _without_port(entry: str) -> str:
    """Return the address of `1.2.3.4:567`, `[::1]:567` or a plain address."""
    if entry.startswith("["):
        return entry[1:].partition("]")[0]
    return entry.partition(":")[0] if entry.count(":") == 1 else entry


# Names of this machine: a page of another site cannot have them as its own origin.
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
ANY_HOST = "*"
# Header values that were found valid, so that the next request needs one lookup; clients can vary the port at will.
_KNOWN_MAX = 1_000
_READING_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_WATCHED = frozenset(
    {b"host", b"origin", b"content-type", b"content-encoding", b"content-length", b"transfer-encoding"}
)
# uri-host and port of RFC 3986, without the percent-encoding that no host name needs.
_AUTHORITY = re.compile(rb"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._~!$&'()*+,;=-]+))(?::([0-9]*))?")
_JSON = re.compile(rb'application/json(?:[ \t]*;[ \t]*charset="?utf-8"?)?[ \t]*;?[ \t]*', re.IGNORECASE)
# A slash or backslash that is not a separator of the path stays encoded.
_ENCODED_SEPARATOR = re.compile(r"(%2f|%5c)", re.IGNORECASE)


class RequestGuard:
    """Raises a RequestError for a request that must not reach a route."""

    def __init__(self, names: Collection[str] = ()) -> None:
        """`names`: the host names that are served beside those of this machine; `*` allows every name."""
        normal = frozenset(map(_normal, names)) - {ANY_HOST}
        self._allows_any = ANY_HOST in names
        self._names = normal | LOOPBACK_NAMES
        # Other programs of this machine serve pages under its loopback names too.
        self._origins = frozenset(name.encode() for name in normal - LOOPBACK_NAMES)
        self._known_hosts: set[bytes] = set()
        self._known_types: set[bytes] = {b"application/json"}

    def admit(self, scope: Scope) -> None:
        """Check the head of a request and correct its decoded path."""
        host = origin = media_type = None
        has_body = False
        for name, value in scope["headers"]:
            if name not in _WATCHED:
                continue
            if name == b"host":
                if host is not None:
                    raise InvalidHost("must be given once")
                host = value
            elif name == b"content-type":
                if media_type is not None:
                    raise UnsupportedMediaType("Content-Type", "must be given once")
                media_type = value
            elif name == b"content-length":
                has_body = has_body or value != b"0"
            elif name == b"origin":
                origin = value if origin is None else b""
            elif name == b"transfer-encoding":
                if value.lower() != b"chunked" or scope["http_version"] == "1.0":
                    raise UnknownTransferCoding
                has_body = True
            elif value.lower() != b"identity":
                raise UnsupportedMediaType("Content-Encoding", "send the body without compression")
        if scope["raw_path"].find(b"%") >= 0:
            scope["path"] = routed_path(scope["raw_path"])
        if host is None:
            # HTTP/1.0 has no Host, and no browser sends HTTP/1.0.
            if scope["http_version"] != "1.0":
                raise InvalidHost("is required")
        elif host not in self._known_hosts:
            self._check_host(host, scope["path"])
        if scope["method"] not in _READING_METHODS:
            if origin is not None and not self._is_own(origin, host):
                raise OriginNotAllowed
            if has_body and media_type not in self._known_types:
                self._check_media_type(media_type)

    def _check_host(self, host: bytes, path: str) -> None:
        parts = name_and_port(host)
        if parts is None:
            raise InvalidHost("is not a host name with an optional port")
        name, _ = parts
        if name in self._names or self._allows_any:
            _remember(self._known_hosts, host)
        elif path != "/metrics" and not path.startswith("/health"):
            # Probes and scrapers address a container by whatever name or address it has at the moment.
            raise HostNotAllowed

    def _is_own(self, origin: bytes, host: bytes | None) -> bool:
        """Whether a page of this server sent the request: of the host that it asks for, or of a configured name.

        The second is for a proxy that replaces the Host. It takes only the default port: other programs have others.
        """
        _, separator, authority = origin.lower().partition(b"://")
        return bool(separator) and (authority in self._origins or (host is not None and authority == host.lower()))

    def _check_media_type(self, media_type: bytes | None) -> None:
        if media_type is None or _JSON.fullmatch(media_type) is None:
            raise UnsupportedMediaType("Content-Type", "must be application/json")
        _remember(self._known_types, media_type)


class GuardHeaders:
    """An application whose every answer has `GUARD_HEADERS`."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        await self._app(scope, receive, guarded(send))


def guarded(send: Send) -> Send:
    """Return a `send` that adds those of `GUARD_HEADERS` that the answer does not set itself."""

    async def send_guarded(message: Message) -> None:
        if message["type"] == "http.response.start":
            own = message.get("headers", [])
            names = {name.lower() for name, _ in own}
            message = {**message, "headers": [*own, *(header for header in GUARD_HEADERS if header[0] not in names)]}
        await send(message)

    return send_guarded


def routed_path(raw_path: bytes) -> str:
    """Decode a path for routing; an encoded separator stays encoded, so it cannot lead to another route."""
    parts = _ENCODED_SEPARATOR.split(raw_path.decode("latin-1"))
    return "".join(part if index % 2 else unquote(part) for index, part in enumerate(parts))


def name_and_port(authority: bytes) -> tuple[str, str] | None:
    """Return the host name, in its normal form, and the port of a Host header; None if the header is malformed."""
    match = _AUTHORITY.fullmatch(authority)
    if match is None:
        return None
    address, name, port = match.groups(b"")
    return _normal((address or name).decode("ascii")), port.decode("ascii")


def _normal(name: str) -> str:
    text = name.lower().removesuffix(".")
    try:
        return str(ip_address(text.strip("[]")))
    except ValueError:
        return text


def _remember(known: set[bytes], value: bytes) -> None:
    if len(known) >= _KNOWN_MAX:
        known.clear()
    known.add(value)


log = structlog.get_logger()

# Addresses that stand for all addresses of the machine; no client uses them as a host name.
_WILDCARDS = frozenset({"0.0.0.0", "::"})


def served_names(settings: Settings) -> frozenset[str]:
    """Return the host names that are served beside those of the loopback address."""
    own = frozenset[str]() if settings.host in _WILDCARDS else frozenset({settings.host})
    return settings.allowed_hosts | own


def do_order_needs_token(settings: Settings, sends: bool) -> bool | None:
    """Whether `/do/order` requires a token; None: only from clients on other machines.

    `sends`: whether this process sends orders. On PostgreSQL other processes may send them too, to venues that it does
    not know.
    """
    if settings.do_requires_token is not None:
        return settings.do_requires_token
    # A proxy on this machine may leave no sign of itself, so real orders are never accepted by the address alone.
    return None if sends and not settings.sends_elsewhere and is_loopback(settings.host) else True


def warn_of_exposure(settings: Settings, sends: bool) -> None:
    """Warn if the gateway listens on more than the loopback address."""
    if is_loopback(settings.host):
        return
    needs_token = do_order_needs_token(settings, sends)
    log.warning(
        "gateway_reachable_from_other_machines",
        host=settings.host,
        do_order_without_token="rejected" if needs_token else "accepted (DO_REQUIRE_TOKEN=false)",
        host_names=sorted(served_names(settings)) or "only loopback names: set SWITCHYARD_ALLOWED_HOSTS",
        encryption="none: put a proxy with TLS in front of it",
    )


class GuardedApp:
    """An ASGI application in front of another: every request passes the guard.

    A request from a trusted proxy counts as one of the proxy's client, by the client's own address.
    """

    def __init__(self, app: ASGIApp, guard: RequestGuard, caps: ConnectionCaps) -> None:
        self._app = app
        self._guard = guard
        self.caps = caps
        """The limits of the server in front of it, which also count the clients behind trusted proxies."""

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Serve one request."""
        if scope["type"] != "http":
            return _nothing()
        try:
            self._guard.admit(scope)
        except RequestError as error:
            return self.reject(error, scope, send)
        serve = self._serve_forwarded if self.caps.proxies.see_through(scope) else self._app
        return serve(scope, receive, send)

    async def reject(self, error: RequestError, _scope: Scope, send: Send) -> None:
        """Answer a request that reaches no route."""
        await send_response(error_response(error), send)

    async def _serve_forwarded(self, scope: Scope, receive: Receive, send: Send) -> None:
        name = limited_as(client_address(scope))
        if not self.caps.enter_client(name):
            await self.reject(TooManyConnections(self.caps.per_address_max), scope, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            self.caps.leave(name)


async def _nothing() -> None:
    """Answer an event of the server that is no request."""


async def send_response(response: WireResponse, send: Send) -> None:
    """Answer without Starlette."""
    send = guarded(send)
    await send({"type": "http.response.start", "status": response.status, "headers": response.headers})
    await send({"type": "http.response.body", "body": response.body})
