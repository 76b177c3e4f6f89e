"""Positions without one entry: the fold that a reversal needs.

Pure. A fill that is taken back counts as if it had never been booked: the average cost of the rest is that of the other
fills, in the order of their entries.
"""

from switchyard.domain.ledger.entries import MOVES_POSITIONS, LedgerEntry
from switchyard.domain.ledger.holdings import Holding, HoldingKey, after_fill, keys_of
from switchyard.domain.ledger.revisions import Target


class Refold:
    """Folds the entries of an account that were not reversed, in order, into the positions that one of them moved."""

    def __init__(self, target: LedgerEntry) -> None:
        self._target = target
        self._keys = frozenset(keys_of(target))
        self._holdings: dict[HoldingKey, Holding] = {}

    @property
    def is_needed(self) -> bool:
        """Whether the target moved a position at all."""
        return self._target.type in MOVES_POSITIONS and bool(self._target.qty)

    def add(self, entry: LedgerEntry) -> None:
        """Fold the next entry."""
        if entry.entry_id == self._target.entry_id or not entry.qty:
            return
        for key in keys_of(entry):
            if key in self._keys:
                self._holdings[key] = after_fill(key, self._holdings.get(key), entry)

    def target(self) -> Target:
        """The entry, with the positions without it."""
        return Target(self._target, False, self._holdings)
