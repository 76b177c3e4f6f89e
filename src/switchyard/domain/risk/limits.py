"""The limits of the pre-trade rules, as the section `risk` of the settings has them. No value: no limit."""

import math
from collections.abc import Mapping
from datetime import timedelta
from decimal import Decimal

import msgspec

from switchyard.domain.ids import AccountId
from switchyard.domain.orders import OrderType, Side
from switchyard.domain.risk.limit_settings import LimitSettings

Pair = tuple[AccountId, str]
"""An account and a symbol."""


class RiskLimits(msgspec.Struct, frozen=True, kw_only=True):
    """One field for each setting, named like it; `settings/risk.py` describes them."""

    max_qty: Decimal | None = None
    max_qty_by_account: Mapping[AccountId, Decimal] = {}
    max_qty_by_account_symbol: Mapping[Pair, Decimal] = {}
    max_notional: Decimal | None = None
    max_notional_by_account: Mapping[AccountId, Decimal] = {}
    max_notional_by_account_symbol: Mapping[Pair, Decimal] = {}
    min_price: Decimal | None = None
    min_price_by_account: Mapping[AccountId, Decimal] = {}
    min_price_by_symbol: Mapping[str, Decimal] = {}
    max_price: Decimal | None = None
    max_price_by_account: Mapping[AccountId, Decimal] = {}
    max_price_by_symbol: Mapping[str, Decimal] = {}
    allowed_symbols_by_account: Mapping[AccountId, frozenset[str]] = {}
    allowed_sides: frozenset[Side] | None = None
    allowed_sides_by_account: Mapping[AccountId, frozenset[Side]] = {}
    allowed_sides_by_symbol: Mapping[str, frozenset[Side]] = {}
    allowed_types: frozenset[OrderType] | None = None
    allowed_types_by_account: Mapping[AccountId, frozenset[OrderType]] = {}
    allowed_types_by_symbol: Mapping[str, frozenset[OrderType]] = {}
    restricted_symbols: frozenset[str] = frozenset()
    rate_per_sec: Decimal | None = None
    rate_burst: int | None = None
    duplicate_window: timedelta = timedelta()
    """Zero: equal orders are not compared."""
    stateful: LimitSettings = LimitSettings()
    """The limits over open orders, positions, results and time; their settings are in the same section."""

    strategy_fills_max: int | None = None
    strategy_fills_window: timedelta = timedelta(seconds=60)

    @property
    def burst(self) -> int:
        """The size of an account's bucket; without a setting the orders of one second."""
        if self.rate_burst is not None or self.rate_per_sec is None:
            return self.rate_burst or 1
        return max(math.ceil(self.rate_per_sec), 1)

    def symbols(self) -> frozenset[str]:
        """Every symbol that a rule names."""
        named: set[str] = set(self.restricted_symbols)
        for by_pair in (self.max_qty_by_account_symbol, self.max_notional_by_account_symbol):
            named.update(symbol for _, symbol in by_pair)
        named.update(self.min_price_by_symbol, self.max_price_by_symbol)
        named.update(self.allowed_sides_by_symbol, self.allowed_types_by_symbol)
        named.update(*self.allowed_symbols_by_account.values())
        named.update(self.stateful.symbols())
        return frozenset(named)
