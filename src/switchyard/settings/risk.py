"""The `risk` section: the pre-trade rules of seed 001 and the guards.

Each key comes from its environment variable, else from the YAML file, else from its default.
"""

import difflib
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, get_args

from switchyard.domain.errors import InvalidField, SettingError
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.orders.order import OrderType, Side
from switchyard.domain.risk.checks import RiskLimits
from switchyard.domain.risk.claims import LimitSettings
from switchyard.settings import parse
from switchyard.settings.risk_limits import LIMIT_SETTINGS
from switchyard.settings.rule_lists import NameSet, RuleList, one_of, symbol
from switchyard.settings.setting import Setting, parsed, value_of

SECTION = "risk"
_SIDES = NameSet(one_of(*get_args(Side)), "BUY|SELL")
_TYPES = NameSet(one_of(*get_args(OrderType)), "LIMIT|MARKET")
_SYMBOLS = NameSet(symbol, "BTC|ETH")


def _key(name: str, reader: Callable[[str], Any], text: str, default: str | None = None) -> Setting:
    """A key of the section; its environment variable is `RISK_` and the key in capitals."""
    return Setting(f"RISK_{name.upper()}", name, default, reader, text)


def _by_account(value: Callable[[str], Any], example: str) -> RuleList:
    return RuleList(["account"], value, example)


def _by_symbol(value: Callable[[str], Any], example: str) -> RuleList:
    return RuleList(["symbol"], value, example)


def _by_both(example: str) -> RuleList:
    return RuleList(["account", "symbol"], parse.limit, example)


def _rate(value: str) -> Decimal:
    rate = parse.limit(value)
    if not Decimal("0.001") <= rate <= 100_000:
        raise ValueError("must be between 0.001 and 100000 orders per second")
    return rate


RISK_SETTINGS: tuple[Setting, ...] = (
    _key("max_qty", parse.limit,
         "Largest quantity of an order, in units, for every account without a limit of its own."),
    _key("max_qty_by_account", _by_account(parse.limit, "acctA:100,acctB:500"),
         "The same by account, such as `acctA:100,acctB:500`; it goes before `RISK_MAX_QTY`, also where it is higher."),
    _key("max_qty_by_account_symbol", _by_both("acctA|BTC:5,acctA|ETH:20"),
         "The same by account and symbol, such as `acctA|BTC:5,acctA|ETH:20`; the stricter one counts."),
    _key("max_notional", parse.limit,
         "Largest notional of an order (quantity times price times multiplier, in the settlement currency of its "
         "instrument), for every account without a limit of its own. A MARKET order is judged by the venue's quote; "
         "without one it is rejected (`RISK_NO_PRICE`)."),
    _key("max_notional_by_account", _by_account(parse.limit, "acctA:100000,acctB:500000"),
         "The same by account, such as `acctA:100000,acctB:500000`; it goes before `RISK_MAX_NOTIONAL`."),
    _key("max_notional_by_account_symbol", _by_both("acctA|BTC:10000,acctA|ETH:50000"),
         "The same by account and symbol, such as `acctA|BTC:10000,acctA|ETH:50000`; the stricter one counts."),
    _key("min_price", parse.limit,
         "Lowest price of an order. Of this one, the account's and the symbol's the strictest counts. A MARKET order "
         "is judged by the venue's quote; without one it is rejected (`RISK_NO_PRICE`)."),
    _key("min_price_by_account", _by_account(parse.limit, "acctA:100,acctB:500"),
         "The same by account, such as `acctA:100,acctB:500`."),
    _key("min_price_by_symbol", _by_symbol(parse.limit, "BTC:100,ETH:50"),
         "The same by symbol, such as `BTC:100,ETH:50`."),
    _key("max_price", parse.limit,
         "Highest price of an order. Of this one, the account's and the symbol's the strictest counts."),
    _key("max_price_by_account", _by_account(parse.limit, "acctA:10000,acctB:20000"),
         "The same by account, such as `acctA:10000,acctB:20000`."),
    _key("max_price_by_symbol", _by_symbol(parse.limit, "BTC:100000,ETH:5000"),
         "The same by symbol, such as `BTC:100000,ETH:5000`."),
    _key("allowed_symbols_by_account", _by_account(_SYMBOLS, "acctA:BTC|ETH,acctB:BTC"),
         "The only symbols that an account may trade, such as `acctA:BTC|ETH,acctB:BTC`; `;` separates symbols too. An "
         "account that is not named may trade all."),
    _key("allowed_sides", _SIDES,
         "The only sides that are allowed, such as `BUY|SELL`. An order must be in this set, the account's and the "
         "symbol's."),
    _key("allowed_sides_by_account", _by_account(_SIDES, "acctA:BUY|SELL,acctB:BUY"),
         "The same by account, such as `acctA:BUY|SELL,acctB:BUY`."),
    _key("allowed_sides_by_symbol", _by_symbol(_SIDES, "BTC:BUY"), "The same by symbol, such as `BTC:BUY`."),
    _key("allowed_types", _TYPES,
         "The only order types that are allowed, such as `LIMIT|MARKET`. An order must be in this set, the account's "
         "and the symbol's."),
    _key("allowed_types_by_account", _by_account(_TYPES, "acctA:LIMIT|MARKET,acctB:LIMIT"),
         "The same by account, such as `acctA:LIMIT|MARKET,acctB:LIMIT`."),
    _key("allowed_types_by_symbol", _by_symbol(_TYPES, "BTC:LIMIT"), "The same by symbol, such as `BTC:LIMIT`."),
    _key("rate_per_sec", _rate,
         "New orders per second and account: a token bucket, which gateways with the same Redis share. A repeat with a "
         "known key takes no token."),
    _key("rate_burst", parse.whole(1, 1_000_000),
         "New orders that an account may send at once: the size of its bucket. By default `RISK_RATE_PER_SEC`, at "
         "least 1."),
    _key("restricted_symbols", _SYMBOLS, "Symbols in which nobody may place an order, such as `BTC|ETH`."),
    _key("duplicate_window_sec", parse.seconds(0, 86_400),
         "Seconds within which an equal order of the same account (symbol, side, type, quantity, prices, time in force "
         "and strategy) is rejected, whatever its idempotency key. `0`: off.", "0"),
    _key("strategy_fills_max", parse.whole(2, 100_000),
         "Filled orders of an account's strategy within `RISK_STRATEGY_FILLS_SEC` that suspend it: a kill of the "
         "strategy is set, until a person clears it. Without a value no strategy is suspended."),
    _key("strategy_fills_sec", parse.seconds(0.1, 86_400),
         "The window of `RISK_STRATEGY_FILLS_MAX`, in seconds.", "60"),
    *LIMIT_SETTINGS,
)  # fmt: skip

_BY_NAME = {setting.field: setting for setting in RISK_SETTINGS}


def risk_of(section: Any, environment: Mapping[str, str], catalogue: Catalogue) -> RiskLimits:
    """Read the section; raises SettingError for an unknown key, an invalid value or a symbol that is not listed."""
    if section is not None and not isinstance(section, Mapping):
        raise SettingError(SECTION, "must be a mapping of settings, not a single value")
    for name in section or {}:
        if name not in _BY_NAME:
            close = difflib.get_close_matches(str(name), _BY_NAME, n=1)
            hint = f"; did you mean {SECTION}.{close[0]}?" if close else ""
            raise SettingError(f"{SECTION}.{name}", f"is not a setting{hint}")
    values = {
        name: value
        for name, setting in _BY_NAME.items()
        if (value := _value(setting, environment, section or {}, catalogue)) is not None
    }
    values["duplicate_window"] = values.pop("duplicate_window_sec")
    values["strategy_fills_window"] = values.pop("strategy_fills_sec")
    if "rate_burst" in values and "rate_per_sec" not in values:
        raise SettingError("RISK_RATE_BURST", "has no effect without RISK_RATE_PER_SEC: set both, or none")
    values["orders_window"] = values.pop("orders_window_sec")
    return _limits_of(values)


def _limits_of(values: Mapping[str, Any]) -> RiskLimits:
    """The limits, those over open orders and positions apart."""
    stateful = {name: value for name, value in values.items() if name in LimitSettings.__struct_fields__}
    stateless = {name: value for name, value in values.items() if name not in stateful}
    return RiskLimits(**stateless, stateful=LimitSettings(**stateful))


def _value(setting: Setting, environment: Mapping[str, str], section: Mapping[str, Any], catalogue: Catalogue) -> Any:
    name = setting.name
    if name in environment or section.get(setting.field) is None:
        value = value_of(setting, name, environment, setting.default)
    else:
        name = f"{SECTION}.{setting.field}"
        value = _of_document(setting, name, section[setting.field])
    if value is not None:
        _check_symbols(setting, name, value, catalogue)
    return value


def _of_document(setting: Setting, name: str, given: Any) -> Any:
    if isinstance(setting.parse, RuleList | NameSet):
        try:
            return setting.parse.of_document(given)
        except ValueError as error:
            raise SettingError(name, str(error)) from None
    if isinstance(given, bool) or not isinstance(given, str | int | float):
        raise SettingError(name, f"must be a single value, not {type(given).__name__}")
    return parsed(setting, name, str(given))


def _check_symbols(setting: Setting, name: str, value: Any, catalogue: Catalogue) -> None:
    """Reject a rule for a symbol that no order can have: a misspelt limit would not be in force."""
    for symbol_name in _limits_of({setting.field: value}).symbols() if setting.field in _WITH_SYMBOLS else ():
        try:
            catalogue.tradable(symbol_name, symbol_name)
        except InvalidField as error:
            raise SettingError(name, error.message) from None


_WITH_SYMBOLS = frozenset(name for name in _BY_NAME if "symbol" in name)
