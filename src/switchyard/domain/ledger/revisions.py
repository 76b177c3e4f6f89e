"""What the books need to take an entry back: the entry as the store finds it, and what became of it.

Pure.
"""

from collections.abc import Mapping

import msgspec

from switchyard.domain.ledger.entries import LedgerEntry
from switchyard.domain.ledger.holdings import Holding, HoldingKey

# Notes on revisions, each followed by what a person needs to look at it: on memos
UNKNOWN_EXECUTION = "UNKNOWN_EXECUTION"
ALREADY_REVERSED = "ALREADY_REVERSED"
# On the reversal by a revision that came before its execution, or on the memo of one that cannot be carried out.
CAME_BEFORE = "CAME_BEFORE_ITS_EXECUTION"
NOT_APPLIED = "NOT_APPLIED"


class Target(msgspec.Struct, frozen=True):
    """The entry that a reversal takes back, as the store finds it."""

    entry: LedgerEntry | None = None
    """None where there is no such entry. The newest fill of an execution that was corrected before."""
    is_reversed: bool = False
    without: Mapping[HoldingKey, Holding] = {}
    """The positions that its account's other entries give, without it; missing where there are none."""


class Reversed(msgspec.Struct, frozen=True):
    """A row that says what became of an entry."""

    entry_id: str
    reversal_id: str
    replacement_id: str | None = None
    """The fill that a correction booked instead."""


def waits_for(memo: LedgerEntry, fill: LedgerEntry) -> bool:
    """Whether the memo is of a revision of this fill that came before it; accounts and ids are compared already."""
    return (memo.venue, memo.order_id) == (fill.venue, fill.order_id)
