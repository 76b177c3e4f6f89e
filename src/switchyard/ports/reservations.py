"""The port of what all open orders reserve together, for people."""

from collections.abc import Mapping
from typing import Protocol

from switchyard.domain.risk.exposure import CurrencyReserve


class Reservations(Protocol):
    """Sums over all accounts; an answer may be some moments old."""

    async def reserved(self) -> Mapping[str, CurrencyReserve]:
        """Return what the open orders of all accounts reserve, by settlement currency; empty where no limit is set."""
        ...
