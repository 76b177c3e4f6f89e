"""Checks that every request passes before it is routed: host, origin, media type, codings and path.

Reads a request's head; writes nothing. Headers that every answer carries are here too.
"""

import re
from collections.abc import Collection
from ipaddress import ip_address
from urllib.parse import unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from switchyard.entrypoints.http.errors import (
    GUARD_HEADERS,
    HostNotAllowed,
    InvalidHost,
    OriginNotAllowed,
    UnknownTransferCoding,
    UnsupportedMediaType,
)

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


class Doors:
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


class Guarded:
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
