"""Reads the YAML file and its sections `venues` and `instruments`."""

from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import msgspec

from switchyard.domain.errors import SettingError
from switchyard.domain.ids import VenueName
from switchyard.domain.market.instruments import DEFAULT_INSTRUMENTS, Instrument
from switchyard.domain.values import SYMBOL
from switchyard.settings.setting import value_of
from switchyard.settings.table import VENUE_SETTINGS, VenueSettings


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
    for setting in VENUE_SETTINGS:
        default = _text(document[setting.field]) if setting.field in document else setting.default
        values[setting.field] = value_of(setting, setting.name + name.upper(), environment, default)
    return VenueSettings(name=name, **values)


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
