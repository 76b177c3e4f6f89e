"""The stateful limits of the section `risk`: over open orders, positions, results and time."""

from collections.abc import Callable, Sequence
from datetime import time, tzinfo
from typing import Any
from zoneinfo import ZoneInfo

from switchyard.domain.risk.claims import WINDOW_ORDERS_MAX
from switchyard.settings import parse
from switchyard.settings.rule_lists import KeyPart, RuleList
from switchyard.settings.setting import Setting

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
