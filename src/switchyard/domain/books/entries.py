"""Entries of the books: their text, number and hash, and the accounts that they are posted to. Pure."""

import hashlib
from collections.abc import Iterable
from datetime import datetime
from decimal import Decimal
from functools import lru_cache
from typing import Final, Literal

import msgspec

from switchyard.domain.errors import SwitchyardError
from switchyard.domain.ids import AccountId, OrderId, VenueName
from switchyard.domain.journal.events import encode
from switchyard.domain.journal.lines import GENESIS, BusEvent, link
from switchyard.domain.orders.order import Side
from switchyard.domain.values import EXACT, ONE, ZERO

EntryType = Literal[
    "OrderAccepted",  # a memo: it moves nothing
    "Fill",  # an execution; entered by a person where the journal has none
    "Reversal",  # takes back another entry
    "RevisionNoted",  # a memo: a venue revised an execution that cannot be reversed, or not yet
    "Deposit",
    "Withdrawal",
    "OpeningBalance",
    "OpeningPosition",
    "Adjustment",
    "Fee",
    "Conversion",
]
LedgerAccount = Literal[
    "cash",  # money of the account; below zero where more was paid than received
    "trading",  # the other side of the cash that fills move
    "fees",  # the other side of the cash that fees move
    "capital",  # the other side of deposits, withdrawals and what an account began with
    "adjustments",  # the other side of the cash that people adjust
    "conversion",  # the other side, in each of the two currencies, of money that was converted
    "rounding",  # what is left of a conversion after its result was rounded
    "position",  # units of an instrument; below zero when short
    "position_clearing",  # the other side of these units
]
ReversalReason = Literal["BUST", "CORRECTION", "OPERATOR"]
MOVES_POSITIONS: Final[frozenset[EntryType]] = frozenset({"Fill", "OpeningPosition"})
"""The entries that positions at average cost are a fold of, without the reversed ones."""
IN_UNITS: Final[frozenset[LedgerAccount]] = frozenset({"position", "position_clearing"})
"""The ledger accounts that count units of an instrument; the others count money."""

# ISO 4217: no currency. For instruments whose settlement currency the catalogue does not name.
NO_CURRENCY = "XXX"


class Leg(msgspec.Struct, frozen=True):
    """One line of an entry: above zero is a debit, below zero a credit."""

    account: LedgerAccount
    unit: str
    """A currency or, on the two position accounts, a symbol."""
    amount: Decimal


class LedgerEntry(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One entry; a memo has no legs."""

    number: int
    """From 1, without a gap; each account has its own chain."""
    entry_id: str
    """Derived from what happened, so that nothing is booked twice: see `docs/reference/backoffice.md`."""
    type: EntryType
    account_id: AccountId
    order_id: OrderId = OrderId("")
    """Empty where a person entered it."""
    seq: int
    """The journal's event that it books; of an entry by a person, the account's last event before it."""
    at: datetime
    """When it was posted: the time of that event, or when the person entered it."""
    venue: VenueName = VenueName("")
    symbol: str = ""
    side: Side | None = None
    qty: Decimal | None = None
    """Of the order, or of the fill."""
    price: Decimal | None = None
    currency: str
    """The settlement currency; of a conversion, the currency that was given away."""
    multiplier: Decimal = ONE
    strategy: str | None = None
    client_order_id: str | None = None
    exec_id: str | None = None
    effective_at: datetime | None = None
    """When it happened: by the venue's clock, or as a person stated."""
    filled_qty_total: Decimal | None = None
    """What the venue says is filled of the order; a cross-check only."""
    fee: Decimal | None = None
    """Below zero for a rebate."""
    fee_currency: str | None = None
    realised_pnl: Decimal = ZERO
    """What it changed of the realised P&L of the account's position."""
    strategy_pnl: Decimal = ZERO
    """What it changed of the realised P&L of the strategy's own position."""
    cost_change: Decimal = ZERO
    """Of a reversal: what it changed of the cost basis of the account's position."""
    strategy_cost_change: Decimal = ZERO
    reverses: str | None = None
    """The id of the entry that a reversal takes back."""
    waits_for: str | None = None
    """Of the memo of a revision: the execution that it revises and that has not come yet, by its id at the venue."""
    reason_code: ReversalReason | None = None
    by: str | None = None
    """The person who entered it."""
    reason: str | None = None
    key: str | None = None
    """The idempotency key of an entry by a person."""
    digest: str | None = None
    """Of what the person asked for: the same key with another digest is rejected."""
    notes: tuple[str, ...] = ()
    """What a person should look at; the booking is not changed by it."""
    legs: tuple[Leg, ...] = ()


class ChainedEntry(msgspec.Struct, frozen=True):
    """An entry with its text and the hash of the chain up to it."""

    entry: LedgerEntry
    text: str
    """The entry as JSON: exactly the hashed bytes."""
    hash: str


class LedgerHead(msgspec.Struct, frozen=True):
    """An account's last entry: number and hash."""

    number: int = 0
    hash: str = GENESIS


class Unbalanced(Exception):
    """A defect: an entry whose legs do not sum to zero in each currency and each symbol."""


_entry = msgspec.json.Decoder(LedgerEntry)


@lru_cache(maxsize=4_096)  # asked for several times for each execution of a page
def fill_entry_id(venue: str, account: str, exec_id: str) -> str:
    """The id of an execution's entry: the same whatever order, report or event names the execution."""
    # A JSON array, so that no two triples have the same text.
    text = msgspec.json.encode([venue, account, exec_id])
    return f"fill_{hashlib.sha256(text).hexdigest()[:32]}"


def reversal_entry_id(*names: str) -> str:
    """The id of a reversal: by venue, account and execution id of the revision, or by account and key."""
    return f"rev_{hashlib.sha256(msgspec.json.encode(names)).hexdigest()[:32]}"


def manual_entry_id(account: str, key: str) -> str:
    """The id of an entry by a person: the same for a repeat with the same key."""
    return f"man_{hashlib.sha256(msgspec.json.encode([account, key])).hexdigest()[:32]}"


def chained(entry: LedgerEntry, previous_hash: str) -> ChainedEntry:
    """The entry as the next of the chain."""
    check_balanced(entry.legs)
    text = encode(entry).decode()
    return ChainedEntry(entry, text, link(previous_hash, text))


def parse_entry(text: str) -> LedgerEntry:
    """The entry of a stored text; ValueError where it is none."""
    try:
        return _entry.decode(text)
    except msgspec.DecodeError as error:
        raise ValueError(f"not a ledger entry ({error})") from None


def shown(text: str, hash_: str) -> str:
    """A stored entry as the API shows it, with its hash."""
    return f'{text[:-1]},"hash":"{hash_}"}}'


def check_balanced(legs: Iterable[Leg]) -> None:
    """Raise Unbalanced unless debits equal credits in each currency and in each symbol."""
    sums: dict[tuple[bool, str], Decimal] = {}
    for leg in legs:
        # A symbol such as BTC can be a currency too: each is summed alone.
        key = leg.account in IN_UNITS, leg.unit
        sums[key] = EXACT.add(sums.get(key, ZERO), leg.amount)
    for (_, unit), total in sums.items():
        if total:
            raise Unbalanced(f"the legs in {unit} sum to {total}")


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
