"""Loads the settings: environment, the YAML file and defaults; rejects unknown names of ours."""

import difflib
import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec

from switchyard.domain.errors import SettingError
from switchyard.domain.ids import VenueName
from switchyard.domain.market.instruments import DEFAULT_INSTRUMENTS, Catalogue, Instrument
from switchyard.domain.market.routing import Route
from switchyard.domain.values import SYMBOL
from switchyard.settings.idempotency import IDEMPOTENCY_SETTINGS, SECTION, idempotency_of
from switchyard.settings.kafka import KAFKA_SETTINGS, kafka_of, passed_names
from switchyard.settings.parse import file_of, value_of, values_of
from switchyard.settings.pdca import PDCA_API_SETTINGS, RECHECK_SETTINGS, pdca_api_of, rechecks_of
from switchyard.settings.risk import RISK_SETTINGS, risk_of
from switchyard.settings.risk import SECTION as RISK_SECTION
from switchyard.settings.secret import check_secret
from switchyard.settings.table import SETTINGS, VENUE_SETTINGS, Settings, VenueSettings
from switchyard.settings.tracing import TRACING_SETTINGS, tracing_of


def venue_of(name: VenueName, environment: Mapping[str, str], section: Mapping[str, Any]) -> VenueSettings:
    """Read the settings of one venue: from the environment, else from the file, else the defaults."""
    document = section.get(name, {}) if isinstance(section, Mapping) else None
    if not isinstance(document, Mapping):
        raise SettingError("SWITCHYARD_CONFIG", "venues must map venue names to their settings")
    known = [setting.field for setting in VENUE_SETTINGS]
    for member in document:
        if member not in known:
            raise SettingError(
                "SWITCHYARD_CONFIG", f"venues.{name}.{member} is not a setting; allowed: {', '.join(known)}"
            )
    values = {}
    stated = set(document)
    files: dict[str, Path] = {}
    for setting in VENUE_SETTINGS:
        default = _text(document[setting.field]) if setting.field in document else setting.default
        values[setting.field] = value_of(setting, setting.name + name.upper(), environment, default)
        path = file_of(setting, setting.name + name.upper(), environment)
        if path is not None:
            files[setting.field] = path
        if path is not None or setting.name + name.upper() in environment:
            stated.add(setting.field)
    return VenueSettings(name=name, stated=frozenset(stated), files=files, **values)


def _text(value: Any) -> str:
    """A value of the file as the text of its setting; a mapping, such as `symbols`, as `ours=theirs`."""
    if isinstance(value, Mapping):
        return ",".join(f"{ours}={theirs}" for ours, theirs in value.items())
    return str(value)


def read_document(environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the sections of the YAML file; empty if `SWITCHYARD_CONFIG` is unset and no `switchyard.yaml` exists."""
    configured = environment.get("SWITCHYARD_CONFIG")
    path = Path(configured or "switchyard.yaml")
    if configured is None and not path.exists():
        return {}
    import yaml

    try:
        document = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise SettingError("SWITCHYARD_CONFIG", f"{path} cannot be read: {error}") from None
    if document is None:
        return {}
    if not isinstance(document, dict):
        raise SettingError(
            "SWITCHYARD_CONFIG", f"{path} must contain a mapping of sections, not {type(document).__name__}"
        )
    return document


def instruments_of(section: Any) -> Mapping[str, Instrument]:
    """Return the default instruments, with those of the file added or replaced."""
    if not isinstance(section, Mapping):
        raise SettingError("SWITCHYARD_CONFIG", "instruments must map symbols to their properties")
    instruments = dict(DEFAULT_INSTRUMENTS)
    for symbol, properties in section.items():
        where = f"instruments.{symbol}"
        if not isinstance(properties, Mapping):
            raise SettingError("SWITCHYARD_CONFIG", f"{where} must be a mapping of properties")
        if not SYMBOL.fullmatch(str(symbol)):
            raise SettingError("SWITCHYARD_CONFIG", f"{where}: a symbol must match {SYMBOL.pattern}")
        try:
            # YAML parses fractions as binary floats; their shortest text is the number in the file.
            exact = {
                key: Decimal(str(value)) if isinstance(value, float) else value for key, value in properties.items()
            }
            instrument = msgspec.convert({"symbol": str(symbol), **exact}, Instrument)
        except (msgspec.ValidationError, InvalidOperation) as error:
            raise SettingError("SWITCHYARD_CONFIG", f"{where}: {error}") from None
        _check_amounts(instrument, where)
        instruments[str(symbol)] = instrument
    return instruments


def _check_amounts(instrument: Instrument, where: str) -> None:
    for name in ("step", "tick", "lot", "multiplier", "min_qty", "max_qty", "collar_percent"):
        amount = getattr(instrument, name)
        if amount is not None and not (amount.is_finite() and amount > 0):
            raise SettingError("SWITCHYARD_CONFIG", f"{where}.{name} must be greater than 0")
    if not 0 <= instrument.fee_percent < 100:
        raise SettingError("SWITCHYARD_CONFIG", f"{where}.fee_percent must be at least 0 and below 100")
    smallest, largest = instrument.min_qty, instrument.max_qty
    if smallest is not None and largest is not None and smallest > largest:
        raise SettingError("SWITCHYARD_CONFIG", f"{where}.min_qty must not be above max_qty")


# Variables with our prefix that the client commands, the DAG for Airflow and the tests read; they are not settings of
# the server.
_OTHER_NAMES = frozenset(
    {"SWITCHYARD_CONFIG", "SWITCHYARD_TOKEN", "SWITCHYARD_COMMAND", "SWITCHYARD_TEST_POSTGRES_BIN"}
)
# Only this product uses these. A limit under an unknown name would not be in force, so the process must not start.
OWN_PREFIXES = (
    "SWITCHYARD_",
    "RISK_",
    "SSE_",
    "OUTBOX_",
    "SOR_",
    "VENUE_",
    "EXCHANGE_SIM_",
    "IDEMPOTENCY_",
    "IDEMPO_",
    "PDCA_",
)
# Other programs use these too: DO_NOT_TRACK, GATEWAY_SERVICE_HOST, KAFKA_OPTS.
SHARED_PREFIXES = ("DO_", "GATEWAY_", "KAFKA_", "BACKOFFICE_", "JWT_HS256_")
# The share of equal characters from which a name under a shared prefix counts as misspelt: a letter more, less or
# swapped in the shortest of our names is above it, the names of other programs are below it.
NEAR = 0.85
# Kubernetes adds these to every container for a service; `enableServiceLinks: false` in the pod turns them off.
_SERVICE_LINK = re.compile(r".+_(SERVICE_HOST|SERVICE_PORT|PORT)(_[A-Z0-9_]+)?")


def unknown_shared_names(names: Iterable[str], venues: Collection[VenueName]) -> tuple[str, ...]:
    """The variables under a shared prefix that are no settings; raises SettingError for one that must be an error."""
    all_settings = (
        *SETTINGS,
        *KAFKA_SETTINGS,
        *IDEMPOTENCY_SETTINGS,
        *RISK_SETTINGS,
        *PDCA_API_SETTINGS,
        *RECHECK_SETTINGS,
        *TRACING_SETTINGS,
    )
    known = {setting.name for setting in all_settings} | _OTHER_NAMES
    known |= {setting.name + "_FILE" for setting in all_settings if setting.secret}
    for venue in venues:
        of_venue = [(setting.name + venue.upper(), setting.secret) for setting in VENUE_SETTINGS]
        known |= {name for name, _ in of_venue} | {name + "_FILE" for name, secret in of_venue if secret}
    unknown = sorted(set(names) - known)
    for name in unknown:
        if name.startswith(OWN_PREFIXES):
            raise SettingError(name, f"is not a setting{_hint(name, known)}")
        if name.startswith(SHARED_PREFIXES) and difflib.get_close_matches(name, known, n=1, cutoff=NEAR):
            raise SettingError(name, f"is not a setting{_hint(name, known)}")
    return tuple(name for name in unknown if name.startswith(SHARED_PREFIXES))


def _hint(name: str, known: Collection[str]) -> str:
    if _SERVICE_LINK.fullmatch(name):
        return "; if Kubernetes set it for a service, set enableServiceLinks to false in the pod, else unset it"
    prefix = name.partition("_")[0] + "_"
    close = difflib.get_close_matches(name, [each for each in known if each.startswith(prefix)], n=1)
    return f"; did you mean {close[0]}?" if close else "; unset it, or see `switchyard settings` for all names"


# Secrets that sign or derive something, so their strength is checked. Passwords and tokens are set by other systems.
_SIGNING_SECRETS = {
    "JWT_HS256_SECRET": "jwt_secret",
    "SWITCHYARD_JOURNAL_KEY": "journal_key",
    "IDEMPO_SECRET": "idempotency_secret",
}


def load_settings(
    environ: Mapping[str, str] | None = None, options: Mapping[str, str | None] | None = None
) -> Settings:
    """Read all settings; `options` are command-line values by setting name."""
    environment = dict(os.environ if environ is None else environ)
    environment.update({name: value for name, value in (options or {}).items() if value is not None})
    document = read_document(environment)
    values = values_of(SETTINGS, environment)
    data_dir: Path = values["data_dir"]
    values["audit_path"] = values["audit_path"] or data_dir / "gateway" / "audit.log"
    values["state_dir"] = values["state_dir"] or _state_home(environment) / "switchyard"
    names: tuple[VenueName, ...] = values["venue_names"]
    values["default_route"] = _checked_route("SOR_DEFAULT_VENUE", values["default_route"] or Route(names[:1]), names)
    values["symbol_routes"] = {
        symbol: _checked_route("SOR_SYMBOL_ROUTES", route, names) for symbol, route in values["symbol_routes"].items()
    }
    values["account_routes"] = {
        key: _checked_route("SOR_ACCOUNT_ROUTES", route, names) for key, route in values["account_routes"].items()
    }
    values["kafka"] = kafka_of(environment)
    if values["kafka"] is not None:
        for setting_name, key in (
            ("SWITCHYARD_BUS_KEY", values["kafka"].key),
            ("SWITCHYARD_BUS_KEY_PREVIOUS", values["kafka"].previous_key),
        ):
            if key is not None:
                check_secret(setting_name, key)
    passed = set() if values["kafka"] is None else passed_names(environment)
    values["unknown_names"] = unknown_shared_names(environment.keys() - passed, names)
    for setting_name, field in _SIGNING_SECRETS.items():
        if values[field] is not None:
            check_secret(setting_name, values[field])
    venue_section = document.pop("venues", {}) or {}
    venues = tuple(venue_of(name, environment, venue_section) for name in names)
    for each in venues:
        _check_quotes_of_another(each, venues)
        if (
            each.quotes == "venue"
            and each.kind not in ("paper", "null")
            and each.quotes_poll >= values["quote_age_max"]
        ):
            raise SettingError(
                f"VENUE_QUOTES_POLL_SEC_{each.name.upper()}",
                "must be less than SWITCHYARD_QUOTE_AGE_MAX_SEC: every quote would be stale before the next one comes",
            )
        if each.reuse_connections and each.dedupe != "permanent":
            raise SettingError(
                f"VENUE_REUSE_CONNECTIONS_{each.name.upper()}",
                "true needs VENUE_DEDUPE_ permanent, because a second response of the broker would be taken for the "
                "answer to the next order; unset it, or set it to false",
            )
        if each.amend == "cancel_replace" and each.exec_id_scope == "order":
            raise SettingError(
                f"VENUE_AMEND_{each.name.upper()}",
                "cancel_replace needs VENUE_EXEC_ID_SCOPE_ venue or symbol: an execution id that is unique only within "
                "an order could come again on the order that replaces it",
            )
        if (
            each.token is not None
            and "@" in each.url.partition("://")[2]
            and each.token_header.lower() == "authorization"
        ):
            raise SettingError(
                f"VENUE_TOKEN_{each.name.upper()}",
                "the venue's URL has credentials too, and both use the header Authorization: remove one, or set "
                f"VENUE_TOKEN_HEADER_{each.name.upper()}",
            )
    instruments = instruments_of(document.pop("instruments", {}) or {})
    idempotency = idempotency_of(
        document.pop(SECTION, None),
        environment,
        derive=values.pop("idempotency_derive"),
        secret=values.pop("idempotency_secret"),
        redis_url=values["redis_url"],
    )
    risk = risk_of(
        document.pop(RISK_SECTION, None),
        environment,
        Catalogue(instruments, allows_unlisted=values["unlisted_symbols"] == "allow"),
    )
    if document:
        raise SettingError(
            "SWITCHYARD_CONFIG",
            f"unknown section {next(iter(document))!r}; allowed: {SECTION}, instruments, {RISK_SECTION}, venues",
        )
    return Settings(
        **values,
        venues=venues,
        instruments=instruments,
        idempotency=idempotency,
        risk=risk,
        pdca_api=pdca_api_of(environment),
        rechecks=rechecks_of(environment),
        tracing=tracing_of(environment),
    )


def _check_quotes_of_another(venue: VenueSettings, venues: Sequence[VenueSettings]) -> None:
    """Raise SettingError unless the venue whose quotes this one takes has quotes of its own."""
    setting, other = f"VENUE_QUOTES_{venue.name.upper()}", venue.quotes_of
    if other is None:
        return
    if venue.kind != "paper":
        raise SettingError(setting, "only a paper exchange fills at the quotes of another venue")
    known = [each.name for each in venues if each is not venue and each.quotes != "none" and each.quotes_of is None]
    if other not in known:
        raise SettingError(
            setting, f"{other!r} is not another venue with quotes of its own: {', '.join(known) or 'none'}"
        )


def _checked_route(setting_name: str, route: Route, names: tuple[VenueName, ...]) -> Route:
    for venue in route.venues:
        if venue not in names:
            raise SettingError(setting_name, f"{venue!r} is not one of SOR_VENUES ({', '.join(names)})")
    return route if route.venues else Route(names, by_quality=True)


def _state_home(environment: Mapping[str, str]) -> Path:
    """The user's folder for state that outlives a restart, by the XDG Base Directory Specification."""
    given = Path(environment.get("XDG_STATE_HOME", ""))
    if given.is_absolute():  # the specification: ignore a relative path
        return given
    home = environment.get("HOME")
    return (Path(home) if home else Path("~").expanduser()) / ".local" / "state"
