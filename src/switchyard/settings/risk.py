"""The settings of pre-trade risk: rules by account and symbol, and stateful limits."""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import time, tzinfo
from decimal import Decimal
from typing import Any, Literal, get_args
from urllib.parse import unquote
from zoneinfo import ZoneInfo

from switchyard.domain.errors import InvalidField, SettingError
from switchyard.domain.ids import AccountId
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.orders.order import OrderType, Side
from switchyard.domain.risk.checks import RiskLimits
from switchyard.domain.risk.claims import WINDOW_ORDERS_MAX, LimitSettings
from switchyard.domain.values import SYMBOL, is_account
from switchyard.settings import parse
from switchyard.settings.parse import Setting, parsed, value_of

KeyPart = Literal["account", "symbol"]
Entry = tuple[str, tuple[str, ...], Any]
"""Where it is, the parts of its key, and its value as given."""

_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_SEPARATORS = re.compile(r"[|;]")


def decoded(text: str) -> str:
    """The text with its percent-encoded characters; `:`, `|`, `,`, `;` and `%` in a name must be written so."""
    if _ESCAPE.search(text):
        raise ValueError(f"{text!r} has a % that does not begin an escape such as %3A: write % itself as %25")
    return unquote(text, errors="strict")


def account(name: str) -> AccountId:
    """An account id as tokens have it."""
    if not is_account(name):
        raise ValueError(f"{name!r} is not an account id: 1 to 64 visible ASCII characters, no quotes and slashes")
    return AccountId(name)


def symbol(name: str) -> str:
    """A symbol; whether it is listed is checked against the catalogue."""
    if not SYMBOL.fullmatch(name):
        raise ValueError(f"{name!r} is not a symbol: it must match {SYMBOL.pattern}")
    return name


class NameSet:
    """A set of names, separated by `|` or `;`."""

    def __init__(self, check: Callable[[str], str], example: str) -> None:
        self._check = check
        self._example = example

    def __call__(self, text: str) -> frozenset[str]:
        """Parse the text of a variable."""
        return self.of_document(_SEPARATORS.split(text))

    def of_document(self, value: Any) -> frozenset[str]:
        """Parse a list of the YAML file; also the text of a variable."""
        if isinstance(value, str):
            return self(value)
        if not isinstance(value, Sequence) or not all(isinstance(item, str) for item in value):
            raise ValueError(f"must be names separated by |, as in {self._example}")
        try:
            return frozenset(self._check(decoded(item.strip())) for item in value)
        except ValueError as error:
            raise ValueError(f"{error}; example: {self._example}") from None


def one_of(*known: str) -> Callable[[str], str]:
    """A check of names that must be among these."""

    def check(name: str) -> str:
        if name not in known:
            raise ValueError(f"{name!r} is not one of {', '.join(known)}")
        return name

    return check


class RuleList:
    """A value for each key; a key is an account, a symbol, or both."""

    def __init__(self, parts: Sequence[KeyPart], value: Callable[[str], Any], example: str) -> None:
        self._parts = tuple(parts)
        self._value = value
        self._example = example

    def __call__(self, text: str) -> Mapping[Any, Any]:
        """Parse the text of a variable."""
        return self._rules(self._entries_of_text(text))

    def of_document(self, value: Any) -> Mapping[Any, Any]:
        """Parse a mapping of the YAML file; also the text of a variable."""
        if isinstance(value, str):
            return self(value)
        if not isinstance(value, Mapping):
            raise ValueError(f"must be a mapping, or text as in {self._example}")
        return self._rules(self._entries_of_mapping(value, ()))

    def _entries_of_text(self, text: str) -> Iterator[Entry]:
        if not text.strip():
            return
        form = f"{'|'.join(part.upper() for part in self._parts)}:VALUE"
        for number, entry in enumerate(text.split(","), 1):
            where = f"entry {number} ({entry.strip()!r})"
            key, *values = entry.split(":")
            names = key.split("|")
            if len(values) != 1 or len(names) != len(self._parts):
                raise ValueError(
                    f"{where} must be {form}, as in {self._example} "
                    "(write : | , ; and % in a name as %3A %7C %2C %3B %25)"
                )
            try:
                yield where, tuple(decoded(name.strip()) for name in names), values[0].strip()
            except ValueError as error:
                raise ValueError(f"{where}: {error}; example: {self._example}") from None

    def _entries_of_mapping(self, mapping: Mapping[Any, Any], outer: tuple[str, ...]) -> Iterator[Entry]:
        for name, value in mapping.items():
            key = (*outer, str(name))
            where = f"entry {'.'.join(key)}"
            if len(key) == len(self._parts):
                yield where, key, value
            elif isinstance(value, Mapping):
                yield from self._entries_of_mapping(value, key)
            else:
                raise ValueError(f"{where} must be a mapping of {self._parts[len(key)]}s, or text as {self._example}")

    def _rules(self, entries: Iterator[Entry]) -> Mapping[Any, Any]:
        rules: dict[Any, Any] = {}
        for where, names, given in entries:
            try:
                checked = tuple(
                    account(name) if part == "account" else symbol(name)
                    for part, name in zip(self._parts, names, strict=True)
                )
                key = checked if len(checked) > 1 else checked[0]
                if key in rules:
                    raise ValueError("is a second rule for the same name")
                rules[key] = self._one_value(given)
            except ValueError as error:
                raise ValueError(f"{where}: {error}; example: {self._example}") from None
        return rules

    def _one_value(self, given: Any) -> Any:
        if isinstance(self._value, NameSet):
            return self._value.of_document(given)
        if isinstance(given, bool) or not isinstance(given, str | int | float | Decimal):
            raise ValueError(f"its value must be a number, not {given!r}")
        return self._value(str(given))


_COUNT = parse.whole(1, 1_000_000)
_WINDOW_COUNT = parse.whole(1, WINDOW_ORDERS_MAX)


def zone(value: str) -> tzinfo:
    """A time zone of the IANA database."""
    try:
        return ZoneInfo(value)
    except (LookupError, ValueError, OSError):
        raise ValueError("must be a time zone of the IANA database, such as UTC or America/New_York") from None


def roll(value: str) -> time:
    """A time of day in hours and minutes."""
    try:
        at = time.fromisoformat(value)
    except ValueError:
        at = None
    if at is None or len(value) != 5 or at.tzinfo is not None:
        raise ValueError("must be a time of day as HH:MM, such as 17:00; in the YAML file in quotes")
    return at


def _limits(
    name: str, reader: Callable[[str], Any], text: str, *, examples: tuple[str, str], by_symbol: str = ""
) -> Sequence[Setting]:
    """A limit for all accounts, by account and, if `by_symbol` says what that means, by account and symbol."""
    variable = f"RISK_{name.upper()}"
    account, pair = examples
    settings = [
        Setting(variable, name, None, reader, f"{text}. For accounts without a limit of their own."),
        Setting(
            f"{variable}_BY_ACCOUNT",
            f"{name}_by_account",
            None,
            RuleList(_ACCOUNT, reader, account),
            f"The same by account, such as `{account}`; it goes before `{variable}`, also where it is higher.",
        ),
    ]
    if by_symbol:
        settings.append(
            Setting(
                f"{variable}_BY_ACCOUNT_SYMBOL",
                f"{name}_by_account_symbol",
                None,
                RuleList(_BOTH, reader, pair),
                f"{by_symbol}, such as `{pair}`.",
            )
        )
    return settings


_ACCOUNT: tuple[KeyPart, ...] = ("account",)
_BOTH: tuple[KeyPart, ...] = ("account", "symbol")
_COUNTS = ("acctA:100,acctB:500", "acctA|BTC:5,acctA|ETH:20")
_AMOUNTS = ("acctA:100000,acctB:500000", "acctA|BTC:10000,acctA|ETH:50000")
_SECOND_LIMIT = "A second limit on the orders in one symbol"

LIMIT_SETTINGS: tuple[Setting, ...] = (
    *_limits("max_open_orders", _COUNT, "Largest number of open orders of an account", examples=_COUNTS,
             by_symbol=_SECOND_LIMIT),
    *_limits("max_open_notional", parse.limit,
             "Largest sum that the open orders of an account may reserve, in each settlement currency: the quantity "
             "that is not filled yet, times price, times multiplier. A MARKET order counts at the quote plus the "
             "collar of its instrument, and is rejected without a quote (`LIMIT_NO_PRICE`)", examples=_AMOUNTS,
             by_symbol=_SECOND_LIMIT),
    *_limits("max_position", parse.limit,
             "Largest position of an account in a symbol, long or short, in units, if all its open orders of one side "
             "are filled", examples=_COUNTS, by_symbol="The same by account and symbol; the stricter one counts"),
    *_limits("max_gross_exposure", parse.limit,
             "Largest gross exposure of an account in each settlement currency: its positions at their cost, long and "
             "short ones added, and what its open orders reserve", examples=_AMOUNTS,
             by_symbol="A second limit on the exposure in one symbol"),
    *_limits("max_daily_loss", parse.limit,
             "Loss that an account may realise on a trading day in each settlement currency; once it is reached, only "
             "reducing orders are accepted until the next trading day", examples=_AMOUNTS),
    *_limits("max_orders_per_window", _WINDOW_COUNT,
             f"Largest number of orders of an account within `RISK_ORDERS_WINDOW_SEC`, at most {WINDOW_ORDERS_MAX}",
             examples=_COUNTS),
    Setting("RISK_ORDERS_WINDOW_SEC", "orders_window_sec", "1", parse.seconds(0.001, 86_400),
            "Seconds of the sliding window of `RISK_MAX_ORDERS_PER_WINDOW`."),
    Setting("RISK_TRADING_DAY_ZONE", "trading_day_zone", "UTC", zone,
            "Time zone of the trading day, such as `America/New_York`. All gateways and workers need the same."),
    Setting("RISK_TRADING_DAY_ROLL", "trading_day_roll", "00:00", roll,
            "Time of day at which a trading day begins, in its zone, such as `17:00`."),
)  # fmt: skip


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
