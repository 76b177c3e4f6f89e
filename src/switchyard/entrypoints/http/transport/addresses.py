"""Client addresses: which one a request comes from behind trusted proxies, and how many connections each one has.

Pure bookkeeping in memory: reads and writes nothing else.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from starlette.types import Scope

from switchyard.entrypoints.http.transport.doors import name_and_port

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
    if scope["scheme"] != "http":
        return "its target has the scheme https, which only a proxy serves"
    if is_loopback(client_address(scope)) and (host := _foreign_host(scope)) is not None:
        return f"its Host is {host[:_NAME_LENGTH_MAX].decode('latin-1')}, and programs of this machine use localhost"
    unusual = next((name for name, _ in scope["headers"] if name not in _CLIENT_HEADERS), None)
    return (
        None if unusual is None else f"a proxy may have added its header {unusual[:_NAME_LENGTH_MAX].decode('latin-1')}"
    )


def _foreign_host(scope: Scope) -> bytes | None:
    """Return the Host if it is not a name of the loopback address, or has a port that is not the server's."""
    host: bytes = next((value for name, value in scope["headers"] if name == b"host"), b"")
    name, port = name_and_port(host) or ("", "")
    own_ports = {"", str(scope["server"][1])}
    return None if is_loopback(name) and port in own_ports else host


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
