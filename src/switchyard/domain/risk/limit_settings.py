"""The stateful limits as the section `risk` of the settings has them. No value: no limit."""

from collections.abc import Mapping
from datetime import time, timedelta, tzinfo
from decimal import Decimal
from zoneinfo import ZoneInfo

import msgspec

from switchyard.domain.ids import AccountId
from switchyard.domain.risk.claims import NO_LIMITS, Breach, Limits
from switchyard.domain.risk.trading_day import TradingDay

_Pair = tuple[AccountId, str]


class LimitSettings(msgspec.Struct, frozen=True, kw_only=True):
    """One field for each setting, named like it; `settings/risk_limits.py` describes them."""

    max_open_orders: int | None = None
    max_open_orders_by_account: Mapping[AccountId, int] = {}
    max_open_orders_by_account_symbol: Mapping[_Pair, int] = {}
    max_open_notional: Decimal | None = None
    max_open_notional_by_account: Mapping[AccountId, Decimal] = {}
    max_open_notional_by_account_symbol: Mapping[_Pair, Decimal] = {}
    max_position: Decimal | None = None
    max_position_by_account: Mapping[AccountId, Decimal] = {}
    max_position_by_account_symbol: Mapping[_Pair, Decimal] = {}
    max_gross_exposure: Decimal | None = None
    max_gross_exposure_by_account: Mapping[AccountId, Decimal] = {}
    max_gross_exposure_by_account_symbol: Mapping[_Pair, Decimal] = {}
    max_daily_loss: Decimal | None = None
    max_daily_loss_by_account: Mapping[AccountId, Decimal] = {}
    max_orders_per_window: int | None = None
    max_orders_per_window_by_account: Mapping[AccountId, int] = {}
    orders_window: timedelta = timedelta(seconds=1)
    trading_day_zone: tzinfo = ZoneInfo("UTC")
    trading_day_roll: time = time(0)

    @property
    def trading_day(self) -> TradingDay:
        """The trading day of a time."""
        return TradingDay(self.trading_day_zone, self.trading_day_roll)

    def limits_of(self, account: AccountId, symbol: str) -> Limits:
        """The limits of an account in a symbol: the account's own go before the global ones.

        A limit of the account and symbol is one more limit; on a position, the stricter of the two counts.
        """
        pair = (account, symbol)
        positions = [
            limit
            for limit in (
                self.max_position_by_account.get(account, self.max_position),
                self.max_position_by_account_symbol.get(pair),
            )
            if limit is not None
        ]
        limits = Limits(
            open_orders=self.max_open_orders_by_account.get(account, self.max_open_orders),
            symbol_open_orders=self.max_open_orders_by_account_symbol.get(pair),
            open_notional=self.max_open_notional_by_account.get(account, self.max_open_notional),
            symbol_open_notional=self.max_open_notional_by_account_symbol.get(pair),
            position=min(positions, default=None),
            gross_exposure=self.max_gross_exposure_by_account.get(account, self.max_gross_exposure),
            symbol_gross_exposure=self.max_gross_exposure_by_account_symbol.get(pair),
            daily_loss=self.max_daily_loss_by_account.get(account, self.max_daily_loss),
            window_orders=self.max_orders_per_window_by_account.get(account, self.max_orders_per_window),
        )
        return NO_LIMITS if limits == NO_LIMITS else limits

    def setting_of(self, breach: Breach, account: AccountId, symbol: str) -> str:
        """The name of the setting that has the limit which was breached."""
        field = f"max_{breach.reason.removeprefix('LIMIT_').lower()}"
        by_pair: Mapping[_Pair, object] = getattr(self, f"{field}_by_account_symbol", {})
        if breach.of_symbol and by_pair.get((account, symbol)) == breach.allowed:
            field += "_by_account_symbol"
        elif account in getattr(self, f"{field}_by_account"):
            field += "_by_account"
        return f"RISK_{field.upper()}"

    def symbols(self) -> frozenset[str]:
        """Every symbol that a limit names."""
        pairs = (
            *self.max_open_orders_by_account_symbol,
            *self.max_open_notional_by_account_symbol,
            *self.max_position_by_account_symbol,
            *self.max_gross_exposure_by_account_symbol,
        )
        return frozenset(symbol for _, symbol in pairs)
