"""How a broker names our accounts and symbols: pure lookups in both directions."""

from collections.abc import Mapping
from types import MappingProxyType

from msgspec.structs import replace

from switchyard.domain.ids import AccountId
from switchyard.domain.orders.order import Order


class VenueNames:
    """The broker's names; a symbol without an entry has the same name there."""

    def __init__(
        self,
        accounts: Mapping[AccountId, str] = MappingProxyType({}),
        symbols: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        assert len(set(symbols.values())) == len(symbols), "two symbols have one name at the broker"
        self._accounts = accounts
        self._symbols = symbols
        self._ours = {theirs: ours for ours, theirs in symbols.items()}
        # Several accounts of ours may trade in one of the broker's: then its name does not tell which.
        there = list(accounts.values())
        self._accounts_here = {theirs: ours for ours, theirs in accounts.items() if there.count(theirs) == 1}

    def as_there(self, order: Order) -> Order:
        """The order with the broker's symbol, as its requests and answers have it."""
        theirs = self._symbols.get(order.symbol)
        return order if theirs is None else replace(order, symbol=theirs)

    def lacks(self, account: AccountId) -> bool:
        """Whether accounts are mapped and this one is not: its orders must not go to another one's account."""
        return bool(self._accounts) and account not in self._accounts

    def account(self, account: AccountId) -> str | None:
        """The broker's name of an account; none where accounts are not mapped."""
        return self._accounts.get(account)

    def symbol_there(self, symbol: str) -> str:
        """The broker's name of our symbol."""
        return self._symbols.get(symbol, symbol)

    def symbol_here(self, symbol: str) -> str:
        """Our name of the broker's symbol."""
        return self._ours.get(symbol, symbol)

    def account_here(self, account: str) -> AccountId | None:
        """Our account that alone has this name at the broker."""
        return self._accounts_here.get(account)
