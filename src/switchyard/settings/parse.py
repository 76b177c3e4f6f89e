"""One setting: its name, default and documentation, where its value comes from, and how its text is parsed."""

import re
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal, InvalidOperation
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

from switchyard.domain.errors import SettingError
from switchyard.domain.ids import AccountId, VenueName
from switchyard.domain.market.routing import BEST, AccountRoutes, Route
from switchyard.domain.values import AMOUNT_LIMIT

_T = TypeVar("_T")

# The IPv4 addresses, as a socket that takes both versions shows them.
_MAPPED = IPv6Network("::ffff:0:0/96")


def text(value: str) -> str:
    """Any text that is not empty."""
    if not value:
        raise ValueError("must not be empty")
    return value


def flag(value: str) -> bool:
    """A boolean."""
    known = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if value.lower() not in known:
        raise ValueError("must be true or false")
    return known[value.lower()]


def whole(low: int, high: int) -> Callable[[str], int]:
    """A whole number within bounds."""

    def parse(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise ValueError("must be a whole number") from None
        if not low <= number <= high:
            raise ValueError(f"must be between {low} and {high}")
        return number

    return parse


def _duration(low: float, high: float, unit: str) -> Callable[[str], timedelta]:
    def parse(value: str) -> timedelta:
        try:
            number = float(value)
        except ValueError:
            raise ValueError(f"must be a number of {unit}") from None
        if not low <= number <= high:
            raise ValueError(f"must be between {low:g} and {high:g} {unit}")
        return timedelta(**{unit: number})

    return parse


def seconds(low: float, high: float) -> Callable[[str], timedelta]:
    """A duration in seconds within bounds."""
    return _duration(low, high, "seconds")


def minutes(low: float, high: float) -> Callable[[str], timedelta]:
    """A duration in minutes within bounds."""
    return _duration(low, high, "minutes")


def milliseconds(low: int, high: int) -> Callable[[str], timedelta]:
    """A whole number of milliseconds within bounds."""
    parse = whole(low, high)
    return lambda value: timedelta(milliseconds=parse(value))


def amount(value: str) -> Decimal:
    """An amount of money; zero is allowed."""
    try:
        number = Decimal(value)
    except InvalidOperation:
        raise ValueError("must be a number") from None
    if not (number.is_finite() and 0 <= number < AMOUNT_LIMIT):
        raise ValueError("must be between 0 and 10^15")
    return number


def limit(value: str) -> Decimal:
    """A positive amount."""
    number = amount(value)
    if not number:
        raise ValueError("must be above 0")
    return number


def percent(value: str) -> Decimal:
    """A number from 0 to below 100."""
    number = amount(value)
    if number >= 100:
        raise ValueError("must be below 100")
    return number


def ratio(value: str) -> float:
    """A number between 0 and 1."""
    try:
        number = float(value)
    except ValueError:
        raise ValueError("must be a number") from None
    if not 0 <= number <= 1:
        raise ValueError("must be between 0 and 1")
    return number


def choice(*known: str) -> Callable[[str], str]:
    """One of these words."""

    def parse(value: str) -> str:
        if value not in known:
            raise ValueError(f"must be one of {', '.join(known)}")
        return value

    return parse


# As ports.venue.Dedupe, which the client must not depend on.
Dedupe = Literal["permanent", "ttl", "while_open", "none"]
# `forever` and `open_only` are earlier names, which stay accepted.
DEDUPE_NAMES: dict[str, Dedupe] = {
    "permanent": "permanent",
    "forever": "permanent",
    "ttl": "ttl",
    "while_open": "while_open",
    "open_only": "while_open",
    "none": "none",
}


def dedupe(value: str) -> Dedupe:
    """How long a venue recognises a repeated client order id."""
    if value not in DEDUPE_NAMES:
        raise ValueError(f"must be one of {', '.join(DEDUPE_NAMES)}")
    return DEDUPE_NAMES[value]


def final_errors(value: str) -> frozenset[tuple[int, str | None]]:
    """Pairs of HTTP status and error code, as `STATUS` or `STATUS:CODE` separated by commas; none if empty."""
    errors: set[tuple[int, str | None]] = set()
    for item in filter(None, (part.strip() for part in value.split(","))):
        status, colon, code = item.partition(":")
        is_error = status.isascii() and status.isdigit() and 400 <= int(status) <= 599 and status != "429"
        if not is_error or bool(colon) != bool(code):
            raise ValueError("must look like 403,400:INVALID_QTY, with statuses from 400 to 599 other than 429")
        errors.add((int(status), code or None))
    return frozenset(errors)


def optional(parse: Callable[[str], _T]) -> Callable[[str], _T | None]:
    """The value, or None where the setting is empty."""
    return lambda value: parse(value) if value else None


def words(*known: str) -> Callable[[str], frozenset[str]]:
    """One or more of these words, separated by commas."""

    def parse(value: str) -> frozenset[str]:
        given = frozenset(part.strip() for part in value.split(","))
        if not given <= set(known):
            raise ValueError(f"must be one or more of {', '.join(known)}, separated by commas")
        return given

    return parse


def venue_names(value: str) -> tuple[VenueName, ...]:
    """Venue names separated by commas."""
    names = tuple(VenueName(name.strip()) for name in value.split(","))
    if not all(name.isidentifier() and name.isascii() for name in names) or len(
        {name.upper() for name in names}
    ) != len(names):
        raise ValueError("must be distinct venue names (letters, digits, _), separated by commas")
    if BEST in names:
        raise ValueError(f"must not contain {BEST}, which stands for a choice by quality in routes")
    return names


def route(value: str) -> Route:
    """One venue, several in order of preference as `a|b`, or `best` for a choice by quality, as `best` or `best:a|b`.

    `best` alone has no venues: it stands for all of them.
    """
    word, colon, listed = value.strip().partition(":")
    by_quality = word.strip() == BEST
    if by_quality and not colon:
        return Route((), by_quality=True)
    venues = tuple(VenueName(name.strip()) for name in (listed if by_quality else value).split("|"))
    if not all(name.isidentifier() and name != BEST for name in venues) or len(set(venues)) != len(venues):
        raise ValueError("must name a venue, several as simA|simB, or best, or best:simA|simB")
    return Route(venues, by_quality=by_quality)


def routes(value: str) -> Mapping[str, Route]:
    """A route for each symbol, as `SYMBOL=route` separated by commas."""
    routes: dict[str, Route] = {}
    for item in filter(None, (part.strip() for part in value.split(","))):
        symbol, equals, given = item.partition("=")
        if not (symbol and equals and given) or symbol.strip() in routes:
            raise ValueError("must look like BTC=simA,ETH=simA|simB,SOL=best, each symbol once")
        routes[symbol.strip()] = route(given)
    return routes


def account_routes(value: str) -> AccountRoutes:
    """A route for each account, as `ACCOUNT=route` or `ACCOUNT/SYMBOL=route` separated by commas."""
    found: dict[tuple[AccountId, str | None], Route] = {}
    for item in filter(None, (part.strip() for part in value.split(","))):
        whose, equals, given = item.partition("=")
        name, slash, symbol = (part.strip() for part in whose.partition("/"))
        key = (account(name), symbol or None) if name else None
        if key is None or not (equals and given) or bool(slash) != bool(symbol) or key in found:
            raise ValueError("must look like desk-1=simA,desk-2/BTC=simB, each account and symbol once")
        found[key] = route(given)
    return found


def _names(value: str, what: str) -> dict[str, str]:
    names: dict[str, str] = {}
    for item in filter(None, (part.strip() for part in value.split(","))):
        ours, equals, theirs = (part.strip() for part in item.partition("="))
        if not (ours and equals and theirs) or ours in names or not theirs.isprintable() or len(theirs) > 128:
            raise ValueError(f"must look like {what}, each once, with names of at most 128 characters")
        names[ours] = theirs
    return names


def account_names(value: str) -> Mapping[AccountId, str]:
    """A venue's account for each of ours, as `OURS=THEIRS` separated by commas."""
    return {account(ours): theirs for ours, theirs in _names(value, "desk-1=A-17,desk-2=A-18").items()}


def symbol_names(value: str) -> Mapping[str, str]:
    """A venue's symbol for each of ours, as `OURS=THEIRS` separated by commas; no two share one."""
    names = _names(value, "USDJPY=USD/JPY,BTC=XBT")
    if len(set(names.values())) != len(names):
        raise ValueError("must give each symbol another name: answers are mapped back")
    return names


def header_name(value: str) -> str:
    """The name of an HTTP header."""
    if not re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}", value):
        raise ValueError("must be the name of an HTTP header, such as X-Api-Key")
    return value


def header_value(value: str) -> str:
    """A secret that can be sent in an HTTP header."""
    if not value or not value.isascii() or not value.isprintable() or len(value) > 4096:
        raise ValueError("must be 1 to 4096 printable ASCII characters")
    return value


def venue_url(value: str) -> str:
    """The kind of a venue with its address, or the URL of a broker that speaks our own protocol."""
    kind, colon, address = value.partition(":")
    is_plain = kind in ("http", "https") and address.startswith("//")
    is_kind = re.fullmatch(r"[a-z][a-z0-9-]{0,31}", kind) is not None and kind not in ("http", "https")
    if kind in ("paper", "null"):
        is_kind = value in ("paper:", "null:", "null:resting")
    if not colon or not (is_plain or is_kind) or (is_kind and address and not (kind == "null" or "://" in address)):
        raise ValueError("must be paper:, http://host:port, or KIND: or KIND:https://host of an installed adapter")
    return value.rstrip("/")


def option_values(value: str) -> Mapping[str, str]:
    """Values by name, as `name=value` separated by commas, or in a line each, which may then have commas.

    Among lines, those that begin with `#` are comments. If nothing follows a `name=`, the indented lines below it are
    its value, such as a key in PEM.
    """
    given: dict[str, str] = {}
    name = ""
    for item in value.split("\n" if "\n" in value else ","):
        if not item.strip() or (item.lstrip().startswith("#") and "\n" in value):
            continue
        is_below = "\n" in value and bool(name) and item[0] in " \t"
        if is_below and (not given[name] or "\n" in given[name]) and item.strip().isprintable():
            given[name] += item.strip() + "\n"
            continue
        name, equals, text = (part.strip() for part in item.partition("="))
        if not equals or not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name) or name in given or not text.isprintable():
            raise ValueError("must look like region=eu,mode=live, each name once in lower case")
        given[name] = text
    return given


def secret_values(value: str) -> "SecretNames":
    """The same, of values that are never shown."""
    return SecretNames({name: Secret(text) for name, text in option_values(value).items()})


# The recorded files of quotes by their endings, and how they are written.
QUOTE_FILES = (".csv", ".jsonl")


def quote_source(value: str) -> str:
    """`venue`, `none`, another venue as `venue:NAME`, or a recorded file as `file:PATH`."""
    scheme, _, rest = value.partition(":")
    is_other = scheme == "venue" and rest
    if value not in ("venue", "none") and not is_other and not (scheme == "file" and rest.endswith(QUOTE_FILES)):
        raise ValueError("must be venue, venue:NAME, none or file:PATH with a path that ends in .csv or .jsonl")
    return value


def instant(value: str) -> datetime:
    """A time with its offset from UTC."""
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        at = None
    if at is None or at.tzinfo is None:
        raise ValueError("must be a time with its offset, such as 2026-01-05T09:00:00Z")
    return at.astimezone(UTC)


def database_url(value: str) -> str:
    """The URL of a PostgreSQL database; several hosts are separated by commas."""
    scheme, _, rest = value.partition("://")
    if scheme not in ("postgresql", "postgres"):
        raise ValueError("must begin with postgresql://; leave it unset to use SQLite in the data folder")
    authority, path = re.split("[?#]", rest, maxsplit=1)[0].partition("/")[::2]
    hosts = authority.rpartition("@")[2].split(",")
    if "@" in path or not all(re.fullmatch(r"(\[[^\]]*\]|[^:\[\]]*)(:[0-9]*)?", host) for host in hosts):
        raise ValueError(
            "must look like postgresql://user:password@host:port/name; write / ? # @ : % in a password "
            "percent-encoded, such as %2F for /"
        )
    return value


def books_url(value: str) -> str:
    """The URL of a PostgreSQL database, or `sqlite`."""
    if value == "sqlite":
        return value
    if not value.startswith(("postgresql://", "postgres://")):
        raise ValueError("must begin with postgresql://, or be sqlite")
    return database_url(value)


def http_url(value: str) -> str:
    """The URL of a server, without a user, a path or a query."""
    try:
        parts = urlsplit(value.rstrip("/"))
        is_valid = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or parts.scheme not in ("http", "https") or parts.path or parts.query or "@" in parts.netloc:
        raise ValueError("must look like http://host:port or https://host:port")
    return value.rstrip("/")


def server_url(example: str) -> Callable[[str], str]:
    """The address of a server, with a path but without credentials."""

    def parse(value: str) -> str:
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc or parts.query:
            raise ValueError(f"must be an address such as {example}, without credentials")
        return value

    return parse


def redis_url(value: str) -> str:
    """The URL of a Redis server."""
    try:
        parts = urlsplit(value)
        is_valid = bool(parts.path if parts.scheme == "unix" else parts.hostname) and parts.port != 0
    except ValueError:
        is_valid = False
    if not is_valid or parts.scheme not in ("redis", "rediss", "unix"):
        raise ValueError("must look like redis://host:6379/0 (rediss:// with TLS, unix:///path for a socket)")
    return value


def topic(value: str) -> str:
    """The name of a Kafka topic."""
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", value) or value in (".", ".."):
        raise ValueError("must be a topic's name: 1 to 249 letters, digits or ._-")
    return value


def host(value: str) -> str:
    """A host name or IP address."""
    if not re.fullmatch(r"[A-Za-z0-9._:-]+", value):
        raise ValueError("must be a host name or an IP address")
    return value


def host_names(value: str) -> frozenset[str]:
    """Host names and IP addresses without ports, separated by commas; `*` for every name; none if empty."""
    names = frozenset(filter(None, (part.strip() for part in value.split(","))))
    if not all(re.fullmatch(r"\*|[A-Za-z0-9._-]+|\[?[0-9A-Fa-f:.]+\]?", name) for name in names):
        raise ValueError("must be host names or IP addresses without ports, separated by commas, or *")
    return names


def networks(value: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """IP addresses and networks, separated by commas; none if empty."""
    try:
        return tuple(_plain(ip_network(part.strip())) for part in value.split(",") if part.strip())
    except ValueError:
        raise ValueError("must be IP addresses or networks such as 10.0.0.0/8, separated by commas") from None


def _plain(network: IPv4Network | IPv6Network) -> IPv4Network | IPv6Network:
    """The network; one of IPv4 addresses that is written as IPv6 (`::ffff:10.0.0.0/104`) as IPv4, like addresses."""
    if isinstance(network, IPv4Network) or not network.subnet_of(_MAPPED):
        return network
    return IPv4Network((int(network.network_address) & 0xFFFF_FFFF, network.prefixlen - _MAPPED.prefixlen))


def account(value: str) -> AccountId:
    """One account id."""
    if not re.fullmatch(r"[A-Za-z0-9_.@:|-]{1,64}", value) or value == "-":
        raise ValueError("must be an account id: 1 to 64 letters, digits or _.@:|-, and not '-' alone")
    return AccountId(value)


def accounts(value: str) -> bool | frozenset[AccountId]:
    """All accounts (True), none (False), or a set of account ids."""
    word = value.strip().lower()
    if word in ("true", "false"):
        return word == "true"
    # `on` probably means all accounts, but would be read as the id of a single account.
    if word in ("", "1", "0", "yes", "no", "on", "off"):
        raise ValueError("must be true, false or account ids separated by commas (write a single account `1` as `1,`)")
    return frozenset(AccountId(name.strip()) for name in value.split(",") if name.strip())


class Setting(NamedTuple):
    """A setting: its environment variable, its field, its default as text, its parser and its description."""

    name: str
    field: str
    default: str | None
    parse: Callable[[str], Any]
    text: str
    secret: bool = False


class Secret(str):
    """A string whose `repr` is masked, so that printed settings show no secret."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


class SecretNames(dict[str, Secret]):
    """Secrets by name."""

    __slots__ = ()


def file_of(setting: Setting, name: str, environment: Mapping[str, str]) -> Path | None:
    """The file that a secret is read from; None if it is given itself, or not at all."""
    path = environment.get(name + "_FILE") if setting.secret and name not in environment else None
    return Path(path) if path else None


def read_secret(name: str, path: Path) -> str:
    """Return the text of a secret's file; raises SettingError."""
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(name + "_FILE", f"cannot be read: {error}") from None


def value_of(setting: Setting, name: str, environment: Mapping[str, str], default: str | None) -> Any:
    """Read a value from the environment (a secret also from its file), else use the default."""
    text = environment.get(name)
    if (path := file_of(setting, name, environment)) is not None:
        text = read_secret(name, path)
    if text is None:
        text = default
    return None if text is None else parsed(setting, name, text)


def values_of(settings: Iterable[Setting], environment: Mapping[str, str]) -> dict[str, Any]:
    """Read the values of these settings, by field."""
    return {each.field: value_of(each, each.name, environment, each.default) for each in settings}


def parsed(setting: Setting, name: str, text: str) -> Any:
    """Parse the text; raises SettingError with the name under which the text was found."""
    try:
        value = setting.parse(text)
    except ValueError as error:
        shown = "" if setting.secret else f", not {text!r}"
        raise SettingError(name, f"{error}{shown}") from None
    return Secret(value) if setting.secret and isinstance(value, str) else value
