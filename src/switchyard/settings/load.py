"""Reads every setting once at the start; an unknown or invalid setting stops the process with a SettingError."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from switchyard.domain.errors import SettingError
from switchyard.domain.ids import VenueName
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.market.routing import Route
from switchyard.settings.document import instruments_of, read_document, venue_of
from switchyard.settings.idempotency import SECTION, idempotency_of
from switchyard.settings.kafka import kafka_of, passed_names
from switchyard.settings.names import unknown_shared_names
from switchyard.settings.pdca_api import pdca_api_of
from switchyard.settings.rechecks import rechecks_of
from switchyard.settings.risk import SECTION as RISK_SECTION
from switchyard.settings.risk import risk_of
from switchyard.settings.secret import check_secret
from switchyard.settings.setting import value_of
from switchyard.settings.table import SETTINGS, Settings
from switchyard.settings.tracing import tracing_of

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
    values: dict[str, Any] = {
        setting.field: value_of(setting, setting.name, environment, setting.default) for setting in SETTINGS
    }
    data_dir: Path = values["data_dir"]
    values["audit_path"] = values["audit_path"] or data_dir / "gateway" / "audit.log"
    values["state_dir"] = values["state_dir"] or _state_home(environment) / "switchyard"
    names: tuple[VenueName, ...] = values["venue_names"]
    values["default_route"] = _checked_route("SOR_DEFAULT_VENUE", values["default_route"] or Route(names[:1]), names)
    values["symbol_routes"] = {
        symbol: _checked_route("SOR_SYMBOL_ROUTES", route, names) for symbol, route in values["symbol_routes"].items()
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
        if each.quotes == "venue" and each.url.startswith("http") and each.quotes_poll >= values["quote_age_max"]:
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
