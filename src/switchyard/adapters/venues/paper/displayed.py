"""The quantity that the simulated market displays on each side; orders of one market step share it."""

from decimal import Decimal

from switchyard.domain.orders.order import Side
from switchyard.domain.values import EXACT, ZERO


class Displayed:
    """What is left of the displayed quantities in the present market step. Without a quantity, any order is filled.

    It is not stored: a restart begins a step anew.
    """

    def __init__(self, qty: Decimal | None = None) -> None:
        self._qty = qty
        self._step = -1
        self._taken: dict[tuple[str, Side], Decimal] = {}

    def begin(self, step: int, qty: Decimal | None) -> None:
        """Go on to a market step; with a new one, each side displays the quantity again."""
        if step != self._step or qty != self._qty:
            self._step, self._qty = step, qty
            self._taken.clear()

    def take(self, symbol: str, side: Side, wanted: Decimal, step: Decimal, *, whole: bool = False) -> Decimal:
        """Take up to the wanted quantity for an order of this side, in whole steps; with `whole` all of it or nothing.

        Returns what was taken.
        """
        if self._qty is None:
            return wanted
        taken = self._taken.get((symbol, side), ZERO)
        left = EXACT.subtract(self._qty, taken)
        left = EXACT.subtract(left, EXACT.remainder(left, step))
        if left < wanted and (whole or left <= 0):
            return ZERO
        qty = min(left, wanted)
        self._taken[symbol, side] = EXACT.add(taken, qty)
        return qty


ANY_QTY = Displayed()
"""A market that displays enough for every order."""
