"""Every setting: typed, documented, read once.

Highest first: command-line option, environment variable, the YAML file, the default. A secret may come from a
file (`<NAME>_FILE`), which is how key managers hand them over.
"""

import difflib
import os
import secrets
from collections.abc import Callable, Mapping
from datetime import timedelta
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import yaml

from switchyard.domain.errors import SettingError
from switchyard.domain.ids import VenueName
from switchyard.domain.instruments import DEFAULT_INSTRUMENTS, Instrument

SECRET_LENGTH_MIN = 32
# Names that samples and tutorials use; a gateway that signs with one of them is open to everyone.
_WELL_KNOWN_SECRETS = ("secret", "changeme", "change-me", "password", "default", "dev-secret", "your-256-bit-secret")


class Setting(NamedTuple):
    """One setting as people know it."""

    name: str
    field: str
    default: str | None
    parse: Callable[[str], Any]
    text: str
    secret: bool = False


def _text(value: str) -> str:
    if not value:
        raise ValueError("must not be empty")
    return value


def _flag(value: str) -> bool:
    known = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
    if value.lower() not in known:
        raise ValueError("must be true or false")
    return known[value.lower()]


def _whole(low: int, high: int) -> Callable[[str], int]:
    def parse(value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            raise ValueError("must be a whole number") from None
        if not low <= number <= high:
            raise ValueError(f"must be between {low} and {high}")
        return number

    return parse


def _seconds(low: float, high: float) -> Callable[[str], timedelta]:
    def parse(value: str) -> timedelta:
        try:
            number = float(value)
        except ValueError:
            raise ValueError("must be a number of seconds") from None
        if not low <= number <= high:
            raise ValueError(f"must be between {low:g} and {high:g} seconds")
        return timedelta(seconds=number)

    return parse


def _choice(*known: str) -> Callable[[str], str]:
    def parse(value: str) -> str:
        if value not in known:
            raise ValueError(f"must be one of {', '.join(known)}")
        return value

    return parse


def _names(value: str) -> tuple[VenueName, ...]:
    names = tuple(VenueName(name.strip()) for name in value.split(","))
    if not all(name.isidentifier() for name in names) or len({name.upper() for name in names}) != len(names):
        raise ValueError("must be different venue names (letters, digits, _), separated by commas")
    return names


def _routes(value: str) -> Mapping[str, VenueName]:
    routes: dict[str, VenueName] = {}
    for item in filter(None, (part.strip() for part in value.split(","))):
        symbol, equals, venue = item.partition("=")
        if not (symbol and equals and venue) or symbol in routes:
            raise ValueError("must look like BTC=simA,ETH=simB, each symbol once")
        routes[symbol.strip()] = VenueName(venue.strip())
    return routes


def _venue_url(value: str) -> str:
    if value not in ("paper:", "null:") and not value.startswith(("http://", "https://")):
        raise ValueError("must be paper:, null: or http://host:port")
    return value.rstrip("/")


def _url(value: str) -> str:
    if not value.startswith(("postgresql://", "postgres://")):
        raise ValueError("must begin with postgresql://; leave it out for SQLite in the data folder")
    return value


SETTINGS: tuple[Setting, ...] = (
    Setting("SWITCHYARD_DATA_DIR", "data_dir", "var", Path, "Folder of the database, secrets and books."),
    Setting("SWITCHYARD_HOST", "host", "127.0.0.1", _text, "Address that the gateway listens on."),
    Setting("SWITCHYARD_PORT", "port", "8081", _whole(0, 65535), "Port that the gateway listens on; 0 picks one."),
    Setting("SWITCHYARD_DATABASE_URL", "database_url", None, _url, "`postgresql://…`; unset: SQLite in the data folder."),
    Setting("SWITCHYARD_WORKER", "worker", "true", _flag, "Whether `up` also sends orders, or only accepts them."),
    Setting("SWITCHYARD_QUEUE_CAPACITY", "queue_capacity", "10000", _whole(1, 1_000_000),
            "Changes that may wait for the journal; beyond it a request gets 503 `QUEUE_REJECT`."),
    Setting("SWITCHYARD_LOG_LEVEL", "log_level", "info", _choice("debug", "info", "warning", "error"), "Least level that is logged."),
    Setting("SWITCHYARD_LOG_FORMAT", "log_format", "text", _choice("text", "json"), "How log lines look."),
    Setting("SWITCHYARD_JOURNAL_KEY", "journal_key", None, _text,
            "Key of the journal's signed head; unset: a random one under the data folder.", secret=True),
    Setting("JWT_HS256_SECRET", "jwt_secret", None, _text,
            "Secret that tokens are signed with; unset: a random one under the data folder.", secret=True),
    Setting("SWITCHYARD_JWT_AUDIENCE", "jwt_audience", None, _text, "Required `aud` of tokens; unset: not looked at."),
    Setting("SWITCHYARD_JWT_ISSUER", "jwt_issuer", None, _text, "Required `iss` of tokens; unset: not looked at."),
    Setting("IDEMPOTENCY_TTL_SEC", "idempotency_ttl", "86400", _seconds(1, 31_536_000), "How long a key is remembered."),
    Setting("GATEWAY_AUDIT_PATH", "audit_path", None, Path, "The audit file; unset: `gateway/audit.log` in the data folder."),
    Setting("GATEWAY_METRICS_TOKEN", "metrics_token", None, _text, "When set, `/metrics` asks for it in `X-Metrics-Token`.", secret=True),
    Setting("SSE_BUFFER_SIZE", "sse_buffer_size", "1000", _whole(1, 1_000_000), "Newest messages kept in memory for a resume."),
    Setting("SSE_KEEPALIVE_SEC", "sse_keepalive", "15", _seconds(0.1, 3600), "Silence after which a keepalive comment is sent."),
    Setting("SSE_DISPATCH_QUEUE_CAPACITY", "sse_queue_capacity", "10000", _whole(1, 1_000_000),
            "Messages that one reader may lag behind before it is disconnected."),
    Setting("SOR_VENUES", "venue_names", "sim", _names, "The venues, separated by commas."),
    Setting("SOR_DEFAULT_VENUE", "default_venue", None, VenueName, "Venue of symbols without a route; unset: the first."),
    Setting("SOR_SYMBOL_ROUTES", "symbol_routes", "", _routes, "Routes such as `BTC=simA,ETH=simB`."),
    Setting("OUTBOX_BATCH_SIZE", "outbox_batch_size", "32", _whole(1, 1000), "Sends of one batch; times the parallelism, the sends that may be under way."),
    Setting("OUTBOX_PARALLELISM", "outbox_parallelism", "4", _whole(1, 64), "Batches that may be under way at once."),
    Setting("OUTBOX_RETRY_MAX", "outbox_retry_max", "8", _whole(0, 1000), "Attempts after the first before a row is dead."),
    Setting("OUTBOX_STUCK_THRESHOLD_MIN", "outbox_stuck_after", "10", lambda value: _seconds(0.01, 1440)(value) * 60,
            "Minutes after which a send without an outcome is in doubt."),
    Setting("OUTBOX_IDLE_SLEEP_MS", "outbox_idle_sleep_ms", "200", _whole(1, 60_000), "How often an idle worker looks for work, at the least."),
)  # fmt: skip


class VenueSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How one venue is reached and, if it is a simulated one, how it behaves."""

    name: VenueName
    url: str
    dedupe: Literal["forever", "open_only", "ttl", "none"]
    window: timedelta
    dedupe_ttl: timedelta
    delay: timedelta
    partial_steps: int
    reject_all: bool


# Per venue, with the venue's name in capitals behind it.
VENUE_SETTINGS: tuple[Setting, ...] = (
    Setting("VENUE_URL_", "url", "paper:", _venue_url,
            "`paper:` the paper exchange; `http://host:port` a broker; `null:` in memory, fills everything, for benchmarks."),
    Setting("VENUE_DEDUPE_", "dedupe", "open_only", _choice("forever", "open_only", "ttl", "none"),
            "Broker: for how long it recognises a repeated client order id; `none`: neither that nor lookup."),
    Setting("VENUE_WINDOW_SEC_", "window", "10", _seconds(0, 86_400),
            "Broker: how long after a send an order may still turn up."),
    Setting("VENUE_DEDUPE_TTL_SEC_", "dedupe_ttl", "60", _seconds(0, 31_536_000), "Broker: how long, with `ttl`. Kept for the record: doubt is settled by asking, never by this time."),
    Setting("EXCHANGE_SIM_DELAY_MS_", "delay", "0", lambda value: timedelta(milliseconds=_whole(0, 3_600_000)(value)),
            "Paper exchange: how long each report is held back."),
    Setting("EXCHANGE_SIM_PARTIAL_STEPS_", "partial_steps", "1", _whole(1, 1000), "Paper exchange: fills per order."),
    Setting("EXCHANGE_SIM_REJECT_ALL_", "reject_all", "false", _flag, "Paper exchange: refuse every order."),
)  # fmt: skip

# Read by the client commands and by the tests, not by the server.
_OTHER_NAMES = frozenset({"SWITCHYARD_CONFIG", "SWITCHYARD_TOKEN", "SWITCHYARD_TEST_POSTGRES_BIN"})


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one process; the field texts are in `SETTINGS`."""

    data_dir: Path
    host: str
    port: int
    database_url: str | None
    worker: bool
    queue_capacity: int
    log_level: str
    log_format: str
    journal_key: str | None
    jwt_secret: str | None
    jwt_audience: str | None
    jwt_issuer: str | None
    idempotency_ttl: timedelta
    audit_path: Path
    metrics_token: str | None
    sse_buffer_size: int
    sse_keepalive: timedelta
    sse_queue_capacity: int
    venue_names: tuple[VenueName, ...]
    default_venue: VenueName
    symbol_routes: Mapping[str, VenueName]
    outbox_batch_size: int
    outbox_parallelism: int
    outbox_retry_max: int
    outbox_idle_sleep_ms: int
    outbox_stuck_after: timedelta
    venues: tuple[VenueSettings, ...]
    instruments: Mapping[str, Instrument]


def load_settings(
    environ: Mapping[str, str] | None = None, options: Mapping[str, str | None] | None = None
) -> Settings:
    """Read everything once; `options` are command-line values by setting name."""
    environment = dict(os.environ if environ is None else environ)
    environment.update({name: value for name, value in (options or {}).items() if value is not None})
    document = _read_document(environment)
    values: dict[str, Any] = {
        setting.field: _value(setting, setting.name, environment, setting.default) for setting in SETTINGS
    }
    data_dir: Path = values["data_dir"]
    values["audit_path"] = values["audit_path"] or data_dir / "gateway" / "audit.log"
    names: tuple[VenueName, ...] = values["venue_names"]
    values["default_venue"] = values["default_venue"] or names[0]
    for setting_name, venue in [("SOR_DEFAULT_VENUE", values["default_venue"])] + [
        ("SOR_SYMBOL_ROUTES", venue) for venue in values["symbol_routes"].values()
    ]:
        if venue not in names:
            raise SettingError(setting_name, f"{venue!r} is not one of SOR_VENUES ({', '.join(names)})")
    _refuse_unknown_names(environment, names)
    if values["jwt_secret"] is not None:
        _check_secret("JWT_HS256_SECRET", values["jwt_secret"])
    if values["journal_key"] is not None:
        _check_secret("SWITCHYARD_JOURNAL_KEY", values["journal_key"])
    venue_section = document.pop("venues", {}) or {}
    venues = tuple(_venue(name, environment, venue_section) for name in names)
    instruments = _instruments(document.pop("instruments", {}) or {})
    if document:
        raise SettingError("SWITCHYARD_CONFIG", f"unknown section {next(iter(document))!r}")
    return Settings(**values, venues=venues, instruments=instruments)


def jwt_secret(settings: Settings) -> str:
    """The configured secret, else the one under the data folder, made on first use."""
    return settings.jwt_secret or _kept_secret(settings.data_dir / "jwt_secret")


def journal_key(settings: Settings) -> bytes:
    """The key of the signed head, configured or kept under the data folder."""
    return (settings.journal_key or _kept_secret(settings.data_dir / "journal_key")).encode()


def _kept_secret(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    made = secrets.token_hex(32)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        kept = path.read_text("ascii").strip()
        if len(kept) >= SECRET_LENGTH_MIN:
            return kept
        raise SettingError(str(path), "holds no usable secret; delete it to have a new one made") from None
    with os.fdopen(descriptor, "w") as file:
        file.write(made + "\n")
        file.flush()
        os.fsync(descriptor)
    return made


def _check_secret(name: str, secret: str) -> None:
    if any(secret.lower().startswith(known) for known in _WELL_KNOWN_SECRETS):
        raise SettingError(name, "is a well-known value; use a random one, e.g. from `openssl rand -hex 32`")
    if len(secret.encode()) < SECRET_LENGTH_MIN:
        raise SettingError(name, f"must have at least {SECRET_LENGTH_MIN} bytes")


def _value(setting: Setting, name: str, environment: Mapping[str, str], default: str | None) -> Any:
    text = environment.get(name)
    if setting.secret and text is None and (path := environment.get(name + "_FILE")):
        try:
            text = Path(path).read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingError(name + "_FILE", f"cannot be read: {error}") from None
    if text is None:
        text = default
    if text is None:
        return None
    try:
        return setting.parse(text)
    except ValueError as error:
        shown = "" if setting.secret else f", not {text!r}"
        raise SettingError(name, f"{error}{shown}") from None


def _refuse_unknown_names(environment: Mapping[str, str], venues: tuple[VenueName, ...]) -> None:
    """A misspelt setting must not be passed over in silence."""
    known = {setting.name for setting in SETTINGS} | _OTHER_NAMES
    known |= {setting.name + "_FILE" for setting in SETTINGS if setting.secret}
    known |= {setting.name + venue.upper() for setting in VENUE_SETTINGS for venue in venues}
    prefixes = ("SWITCHYARD_", *(setting.name for setting in VENUE_SETTINGS))
    for name in environment:
        if name.startswith(prefixes) and name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            raise SettingError(name, "is not a setting" + (f"; did you mean {close[0]}?" if close else ""))


def _venue(name: VenueName, environment: Mapping[str, str], section: Mapping[str, Any]) -> VenueSettings:
    document = section.get(name, {}) if isinstance(section, Mapping) else None
    if not isinstance(document, Mapping):
        raise SettingError("SWITCHYARD_CONFIG", "venues must map each venue's name to its settings")
    known = {setting.field for setting in VENUE_SETTINGS}
    for member in document:
        if member not in known:
            raise SettingError("SWITCHYARD_CONFIG", f"venues.{name}.{member} is not a setting")
    values = {}
    for setting in VENUE_SETTINGS:
        default = str(document[setting.field]) if setting.field in document else setting.default
        values[setting.field] = _value(setting, setting.name + name.upper(), environment, default)
    return VenueSettings(name=name, **values)


def _read_document(environment: Mapping[str, str]) -> dict[str, Any]:
    named = environment.get("SWITCHYARD_CONFIG")
    path = Path(named or "switchyard.yaml")
    if named is None and not path.exists():
        return {}
    try:
        document = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingError("SWITCHYARD_CONFIG", f"{path} cannot be read: {error}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise SettingError("SWITCHYARD_CONFIG", f"{path} must hold sections, not {type(document).__name__}")
    return document


def _instruments(section: Any) -> Mapping[str, Instrument]:
    if not isinstance(section, Mapping):
        raise SettingError("SWITCHYARD_CONFIG", "instruments must map symbols to their properties")
    listed = dict(DEFAULT_INSTRUMENTS)
    for symbol, properties in section.items():
        where = f"instruments.{symbol}"
        if not isinstance(properties, Mapping):
            raise SettingError("SWITCHYARD_CONFIG", f"{where} must be a mapping")
        try:
            # YAML's floats are binary; their shortest text is what the person wrote.
            exact = {
                key: Decimal(str(value)) if isinstance(value, float) else value for key, value in properties.items()
            }
            instrument = msgspec.convert({"symbol": str(symbol), **exact}, Instrument)
        except (msgspec.ValidationError, InvalidOperation) as error:
            raise SettingError("SWITCHYARD_CONFIG", f"{where}: {error}") from None
        for amount in ("step", "tick", "lot", "multiplier"):
            if not getattr(instrument, amount) > 0:
                raise SettingError("SWITCHYARD_CONFIG", f"{where}.{amount} must be greater than 0")
        listed[str(symbol)] = instrument
    return listed
