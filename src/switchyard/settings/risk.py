"""The `risk` section: the pre-trade rules.

Each key comes from its environment variable, else from the YAML file, else from its default.
"""

import difflib
from collections.abc import Callable, Mapping
from typing import Any

from switchyard.domain.errors import SettingError
from switchyard.domain.risk.limits import RiskLimits
from switchyard.settings import parse
from switchyard.settings.setting import Setting, parsed, value_of

SECTION = "risk"


def _key(name: str, reader: Callable[[str], Any], text: str, default: str | None = None) -> Setting:
    """A key of the section; its environment variable is `RISK_` and the key in capitals."""
    return Setting(f"RISK_{name.upper()}", name, default, reader, text)


RISK_SETTINGS: tuple[Setting, ...] = (
    _key("max_qty", parse.limit, "Largest quantity of an order, in units. `RISK_MAX_QTY`."),
)

_BY_NAME = {setting.field: setting for setting in RISK_SETTINGS}


def risk_of(section: Any, environment: Mapping[str, str]) -> RiskLimits:
    """Read the section; raises SettingError for an unknown key or an invalid value."""
    if section is not None and not isinstance(section, Mapping):
        raise SettingError(SECTION, "must be a mapping of settings, not a single value")
    for name in section or {}:
        if name not in _BY_NAME:
            close = difflib.get_close_matches(str(name), _BY_NAME, n=1)
            hint = f"; did you mean {SECTION}.{close[0]}?" if close else ""
            raise SettingError(f"{SECTION}.{name}", f"is not a setting{hint}")
    values = {name: _value(setting, environment, section or {}) for name, setting in _BY_NAME.items()}
    return RiskLimits(**values)


def _value(setting: Setting, environment: Mapping[str, str], section: Mapping[str, Any]) -> Any:
    value = section.get(setting.field)
    if setting.name in environment or value is None:
        return value_of(setting, setting.name, environment, setting.default)
    return parsed(setting, f"{SECTION}.{setting.field}", str(value))
