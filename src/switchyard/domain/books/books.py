"""The books: entries as a fold over the bus's events; `fold.py` has the fold over entries.

Pure. A `Books` holds the rows that a page of events touches; what changed is written in one transaction.
"""

from collections.abc import Iterable
from copy import copy
from datetime import datetime
from decimal import Decimal, DecimalException
from typing import assert_never

import msgspec
from msgspec.structs import replace

from switchyard.domain.books.entries import (
    MOVES_POSITIONS,
    Adoption,
    BookedAccount,
    ChainedEntry,
    LedgerEntry,
    LedgerHead,
    ReversalReason,
    Unbookable,
    chained,
    check_continues,
    is_held,
    is_repeat,
)
from switchyard.domain.books.fold import Fold, change_of, later
from switchyard.domain.books.holdings import (
    ALREADY_REVERSED,
    CAME_BEFORE,
    NOT_APPLIED,
    UNKNOWN_EXECUTION,
    Reversed,
    Target,
    keys_of,
)
from switchyard.domain.books.manual import (
    ManualEntry,
    check_manual,
    digest_of_manual,
    entry_id_of_manual,
    manual_entry,
    too_precise,
)
from switchyard.domain.books.postings import (
    Bookable,
    BookedOrder,
    NewOrder,
    PositionChanges,
    ReadEvent,
    Reported,
    Rerouted,
    Revised,
    booked_order,
    entry_id_of,
    fill,
    late_entry_id,
    memo,
    noted_revision,
    order_of_memo,
    reason_of,
    reversal_of,
    revised_fill,
    revision_entry_id,
    waiting_report,
)
from switchyard.domain.errors import InvalidField
from switchyard.domain.ids import OrderId
from switchyard.domain.journal.facts import ReportFact
from switchyard.domain.values import EXACT, ZERO, canonical


class NewEntry(msgspec.Struct, frozen=True):
    """An entry that was added to its account's chain."""

    line: ChainedEntry
    reached_at: datetime
    """The latest time of an entry of the account up to this one: unlike `at` it never decreases with the number."""

    @property
    def entry(self) -> LedgerEntry:
        """The entry itself."""
        return self.line.entry


class Books(Fold):
    """The rows that the next events touch, and what became of them."""

    def __init__(
        self,
        accounts: Iterable[BookedAccount] = (),
        orders: Iterable[BookedOrder] = (),
        adoptions: Iterable[Adoption] = (),
    ) -> None:
        super().__init__(accounts)
        self.orders: dict[OrderId, BookedOrder] = {order.order_id: order for order in orders}
        self.booked: set[str] = set()
        """Ids of entries that exist."""
        self.entries: list[NewEntry] = []
        """The new entries."""
        self.changed_orders: set[OrderId] = set()
        self.reversed: list[Reversed] = []
        """Entries that the new ones take back."""
        self.confirmed: set[str] = set()
        """Ids of entries that an event repeated: an orphan of a lost history is none any more."""
        self.repeats = 0
        """Events that were read before, or whose entry exists."""
        self.skipped = 0
        """Events that made no entry."""
        self.halted = 0
        """Accounts that have halted, or that go on, at one of the events."""
        self._adoptions = tuple(adoptions)

    def read(self, event: ReadEvent, target: Target | None = None) -> None:
        """Take the next event of its account: book it, drop it, or halt the account.

        `target` is the entry that a revision refers to.
        """
        taken, before = event.taken, len(self.entries)
        account_id, seq = taken.event.account_id, taken.event.seq
        account = self.account(account_id)
        if is_repeat(account, taken):
            self.repeats += 1
        elif not is_held(account, taken):
            try:
                check_continues(account, taken, self._adoptions)
                if event.problem is not None:
                    raise Unbookable(seq, event.problem)
                if event.fact is not None:
                    self._take(event.fact, target or Target())
                if account.halted_seq is not None:
                    self.halted += 1
                self.set_account(
                    replace(self.account(account_id), epoch=taken.epoch, seq=seq, halted_seq=None, halted=None)
                )
            except Unbookable as error:
                self.halted += 1
                self.set_account(replace(account, halted_seq=seq, halted=str(error)))
        if len(self.entries) == before:
            self.skipped += 1

    @property
    def fills(self) -> list[LedgerEntry]:
        """The new fills."""
        return [new.entry for new in self.entries if new.entry.type == "Fill"]

    def enter(self, wanted: ManualEntry, at: datetime, target: Target | None = None) -> NewEntry:
        """Book an entry by a person, posted at this time; raises InvalidField. The key is not checked here."""
        account = self.account(wanted.account_id)
        if wanted.type != "Reversal":
            try:
                return self._add(manual_entry(wanted, seq=account.seq, at=at))
            except DecimalException:
                raise too_precise(wanted) from None
        check_manual(wanted)
        entry = None if target is None else target.entry
        if entry is None or entry.account_id != wanted.account_id or not entry.legs or entry.type == "Reversal":
            raise InvalidField("reverses", f"the account has no entry {wanted.reverses} that can be reversed")
        assert target is not None
        if target.is_reversed:
            raise InvalidField("reverses", f"entry {wanted.reverses} is reversed already")
        made = self._reverse(
            entry, target, entry_id_of_manual(wanted), "OPERATOR", seq=account.seq, at=at, effective_at=None
        )
        new = self._add(
            replace(made, by=wanted.by, reason=wanted.reason, key=wanted.key, digest=digest_of_manual(wanted))
        )
        self._count(new.entry)
        return new

    def carry(self, entry: LedgerEntry, target: Target | None = None) -> None:
        """Book an entry of other books that the journal does not give, such as a person's."""
        if entry.type == "OrderAccepted":
            self._keep(order_of_memo(entry))
        if entry.type == "Reversal" and target is not None and target.entry is not None:
            code = entry.reason_code or "OPERATOR"
            made = self._reverse(
                target.entry, target, entry.entry_id, code, seq=entry.seq, at=entry.at, effective_at=entry.effective_at
            )
            entry = replace(made, by=entry.by, reason=entry.reason, key=entry.key, digest=entry.digest)
        self._count(self._add(entry).entry)

    def _take(self, fact: Bookable, target: Target) -> None:
        """Book an event, or drop it where its entry exists; raises Unbookable, with nothing changed."""
        try:
            match fact:
                case NewOrder():
                    self._take_order(fact)
                case Rerouted():
                    self._keep(replace(self._order(fact), venue=fact.venue))
                case Reported():
                    self._take_report(fact)
                case Revised():
                    self._take_revision(fact, target)
                case unreachable:
                    assert_never(unreachable)
        except DecimalException as error:
            raise Unbookable(fact.event.seq, f"an amount is beyond all precision ({error!r})") from error

    def _take_order(self, fact: NewOrder) -> None:
        event = fact.event
        order = booked_order(fact.order_id, event.account_id, fact.order, event.seq)
        if fact.order_id in self.orders:
            self._repeat(fact.order_id)
            return
        if fact.is_accepted:
            self._add(memo(order, fact.order, seq=event.seq, at=event.at))
        self._keep(order)

    def _take_report(self, fact: Reported) -> None:
        event, report = fact.event, fact.report
        order = self._order(fact)
        entry_id = entry_id_of(order, report)
        if entry_id in self.booked:
            self._repeat(entry_id)
            return
        order = _counted(order, report.last_qty)
        self._add(fill(order, report, seq=event.seq, at=event.at))
        self._keep(order)

    def _take_revision(self, fact: Revised, target: Target) -> None:
        event, report = fact.event, fact.report
        order = self._order(fact)
        entry_id = revision_entry_id(order, report)
        if entry_id in self.booked:
            self._repeat(entry_id)
            return
        note, waits = None, False
        if target.entry is None or target.entry.account_id != order.account_id or not target.entry.legs:
            note = f"{UNKNOWN_EXECUTION}: the books have no execution {report.ref_exec_id}"
            waits = target.entry is None
        elif target.is_reversed:
            note = f"{ALREADY_REVERSED}: the execution {report.ref_exec_id} was taken back before"
        if note is not None:
            self._add(noted_revision(order, report, note, seq=event.seq, at=event.at, waits=waits))
            return
        self._revise(order, report, target, entry_id, seq=event.seq, at=event.at)

    def settle(self, memo: LedgerEntry, booked: LedgerEntry, target: Target) -> None:
        """Carry out a revision that came before the execution `booked`; `target` is its newest fill.

        The entries are of the event that brought the execution. Nothing is done where it was taken back meanwhile.
        """
        order = self.orders[memo.order_id]
        if target.entry is None or target.is_reversed:
            return
        entry_id, seq, at = late_entry_id(memo), booked.seq, booked.at
        report = waiting_report(memo)
        try:
            self._revise(
                order, report, target, entry_id, seq=seq, at=at, note=f"{CAME_BEFORE}: the entry {memo.entry_id}"
            )
        except (DecimalException, Unbookable) as error:
            note = f"{NOT_APPLIED}: the revision of the entry {memo.entry_id} ({error!r})"
            self._add(replace(noted_revision(order, report, note, seq=seq, at=at), entry_id=entry_id))

    def _revise(
        self,
        order: BookedOrder,
        report: ReportFact,
        target: Target,
        entry_id: str,
        *,
        seq: int,
        at: datetime,
        note: str | None = None,
    ) -> None:
        """Book the reversal and, of a correction, the new fill; or raise, with nothing changed."""
        assert target.entry is not None, "the caller has looked"
        entry = target.entry
        reversal = self._reverse(entry, target, entry_id, reason_of(report), seq=seq, at=at, effective_at=report.at)
        if note is not None:
            reversal = replace(reversal, notes=(note,))
        order = _counted(order, entry.qty or ZERO, reverses=True)
        if report.exec_type == "CANCEL":
            self._add(reversal)
            self._keep(order)
            return
        if report.fee is None and entry.fee is not None:
            # The venue says nothing about the fee: it stays as it was.
            report = replace(report, fee=entry.fee, fee_currency=entry.fee_currency)
        order = _counted(order, report.last_qty)
        corrected = revised_fill(order, report, seq=seq, at=at)
        if corrected.entry_id in self.booked:
            raise Unbookable(seq, f"its own execution id {report.exec_id} is booked already")
        before = {name: copy(value) for name, value in vars(self).items()}
        try:
            self._add(reversal)
            self._add(corrected)
        except DecimalException:
            vars(self).update(before)  # not one without the other
            raise
        self.reversed[-1] = replace(self.reversed[-1], replacement_id=corrected.entry_id)
        self._keep(order)

    def _reverse(
        self,
        entry: LedgerEntry,
        target: Target,
        entry_id: str,
        reason_code: ReversalReason,
        *,
        seq: int,
        at: datetime,
        effective_at: datetime | None,
    ) -> LedgerEntry:
        """The entry that takes another back, with what that changes of the positions."""
        changes = PositionChanges()
        if entry.type in MOVES_POSITIONS and entry.qty:
            whole, strategy = (change_of(self.holdings.get(key), target.without.get(key)) for key in keys_of(entry))
            changes = PositionChanges(
                cost=whole[0], realised=whole[1], strategy_cost=strategy[0], strategy_realised=strategy[1]
            )
        return reversal_of(
            entry,
            entry_id=entry_id,
            reason_code=reason_code,
            seq=seq,
            at=at,
            effective_at=effective_at,
            changes=changes,
        )

    def _repeat(self, entry_id: str) -> None:
        self.repeats += 1
        self.confirmed.add(entry_id)

    def _order(self, fact: Rerouted | Reported | Revised) -> BookedOrder:
        order = self.orders.get(fact.order_id)
        if order is None or order.account_id != fact.event.account_id:
            raise Unbookable(fact.event.seq, f"the books have not read the acceptance of its order {fact.order_id}")
        return order

    def _count(self, entry: LedgerEntry) -> None:
        """Count an entry that no event makes in the quantity of its order."""
        order = self.orders.get(entry.order_id)
        if order is not None and entry.type in ("Fill", "Reversal"):
            self._keep(_counted(order, entry.qty or ZERO, entry.type == "Reversal"))

    def _keep(self, order: BookedOrder) -> None:
        self.orders[order.order_id] = order
        self.changed_orders.add(order.order_id)

    def _add(self, entry: LedgerEntry) -> NewEntry:
        """Add the entry to its account's chain; where an amount is beyond all precision, nothing is changed."""
        account = self.account(entry.account_id)
        moved, number = self.moved(entry), account.head.number + 1
        if entry.type in MOVES_POSITIONS:
            realised = {"realised_pnl": moved.realised, "strategy_pnl": moved.strategy_realised}
            entry = replace(entry, number=number, **realised)
        else:
            entry = replace(entry, number=number)
        line = chained(entry, account.head.hash)
        reached_at = later(account.reached_at, entry.at)
        self.accept(entry, moved, reached_at)
        self.set_account(replace(account, head=LedgerHead(entry.number, line.hash), reached_at=reached_at))
        self.booked.add(entry.entry_id)
        self.entries.append(NewEntry(line, reached_at))
        if entry.type == "Reversal" and entry.reverses is not None:
            self.reversed.append(Reversed(entry.reverses, entry.entry_id))
        return self.entries[-1]


def _counted(order: BookedOrder, qty: Decimal, reverses: bool = False) -> BookedOrder:
    """The order with a fill counted, or taken back."""
    signed = EXACT.minus(qty) if reverses else qty
    return replace(order, booked_qty=canonical(EXACT.add(order.booked_qty, signed)))
