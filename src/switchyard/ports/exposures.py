"""The exposure port: what open orders reserve, and the positions, as the append checks limits against them."""

from typing import Protocol

from switchyard.domain.ids import AccountId, OrderId
from switchyard.domain.risk.exposure import AccountExposure, SymbolExposure


class Exposures(Protocol):
    """Reads of the totals; an answer may be older than the next commit, which checks its claims itself."""

    async def symbol_exposure(self, account: AccountId, symbol: str, *, fresh: bool = False) -> SymbolExposure:
        """Return an account in one symbol, all zero without a position; exact from the first claim of a limit on.

        Unless it has to be fresh, it may be some milliseconds older than the call.
        """
        ...

    async def account_exposure(self, account: AccountId, since: OrderId | None = None) -> AccountExposure:
        """Return all totals and positions of an account, with the number of its orders from the id `since` on."""
        ...
