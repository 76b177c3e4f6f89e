"""What the books keep of an account: the head of its chain of entries, and the last of its events that was read.

Pure. Decides what becomes of the account's next event: it is booked, dropped as a repeat, or it halts the account.
"""

import hashlib
from collections.abc import Iterable
from datetime import datetime

import msgspec

from switchyard.domain.bus import BusEvent
from switchyard.domain.errors import SwitchyardError
from switchyard.domain.ids import AccountId
from switchyard.domain.ledger.entries import LedgerHead


class Unbookable(SwitchyardError):
    """An event that the books cannot take: its account halts before it, because later entries may depend on it."""

    def __init__(self, seq: int, why: str) -> None:
        super().__init__(f"event {seq} cannot be booked: {why}")
        self.seq = seq


class BookedAccount(msgspec.Struct, frozen=True, kw_only=True):
    """One account of the books."""

    account_id: AccountId
    head: LedgerHead = LedgerHead()
    """Its last entry."""
    reached_at: datetime | None = None
    """The latest time of an entry up to the last."""
    epoch: int = 0
    """With `seq`: the last of its events that was read; 0 before the first."""
    seq: int = 0
    halted_seq: int | None = None
    """The event at which the account has halted: it and those after it are not booked."""
    halted: str | None = None
    """Why."""


class HaltedAccount(msgspec.Struct, frozen=True):
    """An account whose events are not booked any more."""

    account_id: AccountId
    seq: int
    reason: str


class Adoption(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A person's statement that the journal of a new epoch is to be followed, though it lost booked events."""

    epoch: int
    after_seq: int
    """The last event of the former epoch that the journal still has."""
    first_seq: int
    """The first event of the new epoch."""
    by: str
    reason: str
    at: datetime


def is_repeat(account: BookedAccount, taken: BusEvent) -> bool:
    """Whether the event was read before: an account's events come in the order of their numbers."""
    return taken.event.seq <= account.seq


def is_held(account: BookedAccount, taken: BusEvent) -> bool:
    """Whether the event is after the one at which the account has halted."""
    return account.halted_seq is not None and taken.event.seq > account.halted_seq


def check_continues(account: BookedAccount, taken: BusEvent, adoptions: Iterable[Adoption] = ()) -> None:
    """Raise Unbookable unless the event is the account's next one, as far as its bus can tell."""
    previous = taken.previous_seq
    if previous is None or previous == account.seq:
        return
    seq = taken.event.seq
    if previous > account.seq:
        raise Unbookable(
            seq,
            f"it follows event {previous} of its account, and the books have read event {account.seq}: events are "
            "missing. Run `switchyard backoffice reset` to read them again, if the bus still has them, or "
            "`switchyard backoffice rebuild`",
        )
    if not any(previous <= each.after_seq and each.first_seq <= seq for each in adoptions):
        raise Unbookable(
            seq,
            f"it follows event {previous} of its account, and the books have read event {account.seq}: it is of "
            "another history. If the journal was restored, run `switchyard backoffice adopt-epoch`",
        )


class HeadsDigest:
    """One hash over the heads of all accounts: equal for two ledgers with the same chains."""

    def __init__(self) -> None:
        self.entries = 0
        self._digest = hashlib.sha256()

    def add(self, account_id: AccountId, head: LedgerHead) -> None:
        """Add the next account, in order of the ids; one without entries does not count."""
        if head.number:
            self.entries += head.number
            self._digest.update(msgspec.json.encode([account_id, head.number, head.hash]) + b"\n")

    @property
    def hash(self) -> str:
        """Over the accounts so far."""
        return self._digest.hexdigest()
