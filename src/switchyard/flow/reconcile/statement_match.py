"""Matches the lines of one venue's statement with the ledger's fills, by execution id, each once.

Reads the statement page by page from where the last pass ended, the gateway's orders and executions, and the ledger;
keeps only what is unmatched. Writes nothing.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec.structs import replace

from switchyard.domain.books.entries import LedgerEntry
from switchyard.domain.ids import AccountId, OrderId, VenueName
from switchyard.domain.orders.order import Order
from switchyard.domain.reconcile.breaks import Difference, StatementFill
from switchyard.domain.reconcile.matching import (
    entry_ids,
    missing_fill,
    other_figures,
    recorded_ids,
    repeated_fill,
    unknown_fill,
    void_fill,
)
from switchyard.flow.reconcile.ledger_fold import LedgerFold, is_reversed_by_a_person, readable
from switchyard.ports.books import LedgerLookup
from switchyard.ports.journal import Journal
from switchyard.ports.queries import Queries
from switchyard.ports.venue import VenueStatement, VenueUnavailable

PAGE: Final = 500
# A venue with more unmatched fills has another problem than single fills: it is named as not compared.
UNMATCHED_MAX: Final = 20_000
BEGINNING: Final = datetime.min.replace(tzinfo=UTC)

LineKey = tuple[str, str]
"""Client order id and execution id."""
AccountsOf = Callable[[VenueName, Sequence[StatementFill]], Awaitable[list[AccountId | None]]]
"""The accounts to which fills of orders that the gateway does not have are booked."""


class TooMany(Exception):
    """More fills are unmatched than a pass keeps."""


class Line(msgspec.Struct):
    """A line whose fill is not in the books, or is there with other figures."""

    fill: StatementFill
    order: Order | None = None
    account: AccountId | None = None
    is_recorded: bool = False
    entry: LedgerEntry | None = None


class StatementMatch:
    """One venue."""

    def __init__(
        self, venue: VenueStatement, *, journal: Journal, queries: Queries, lookup: LedgerLookup, fold: LedgerFold
    ) -> None:
        self.venue = venue
        self._journal = journal
        self._queries = queries
        self._lookup = lookup
        self._fold = fold
        self._after = 0
        self._longest = 0
        """Of the pages so far."""
        self._ours: dict[str, LedgerEntry] = {}
        """Folded fills without a line, by entry id."""
        self._theirs: set[str] = set()
        """Entry ids of matched lines whose entries are not folded yet."""
        self._lines: dict[LineKey, Line] = {}
        self._repeated: dict[LineKey, tuple[StatementFill, LedgerEntry]] = {}
        self._taken_back: dict[str, LedgerEntry] = {}
        """People's reversals of fills, by the fill's entry id."""
        self._listed: set[str] = set()
        """Those of these fills that the statement has."""
        self.at_end = False
        """Whether this pass has reached the end of the statement."""
        self.reached_at = BEGINNING
        """The time of the last line."""
        self.lost = False
        """Whether the statement must be matched again from its start: too many fills waited for a venue that did not
        answer, or its numbers have started again."""

    @property
    def name(self) -> VenueName:
        """The venue's name."""
        return self.venue.name

    def note_entry(self, entry: LedgerEntry) -> None:
        """Take a folded entry."""
        if is_reversed_by_a_person(entry) and entry.venue == self.name and entry.reverses is not None and entry.qty:
            self._taken_back[entry.reverses] = entry
            if self._ours.pop(entry.reverses, None) is None:
                self._listed.add(entry.reverses)  # its line was matched before
            return
        if entry.type != "Fill" or entry.venue != self.name or entry.exec_id is None or not entry.qty or self.lost:
            return
        if entry.entry_id in self._theirs:
            self._theirs.discard(entry.entry_id)
            return
        self._ours[entry.entry_id] = entry
        if len(self._ours) > UNMATCHED_MAX:
            self._ours.clear()
            self._theirs.clear()
            self.lost = True

    async def read_page(self, accounts_of: AccountsOf) -> set[AccountId]:
        """Match the next lines and return their accounts; raises VenueUnavailable and TooMany.

        A page that is shorter than another one was has all lines that there were, so that a pass ends while the venue
        keeps trading. Its own limit may be lower than ours.
        """
        if len(self._lines) + len(self._theirs) > UNMATCHED_MAX:
            raise TooMany
        page = await self.venue.statement(self._after, PAGE)
        if page.last_number < self._after:
            self.lost = True
            raise VenueUnavailable("the statement's numbers have started again: the next pass reads it from there")
        self.at_end = not page.fills
        if self.at_end:
            return set()
        accounts = await self._match([Line(fill) for fill in page.fills], accounts_of)
        self._after = page.last_number
        self.reached_at = max(fill.at for fill in page.fills)
        self.at_end = len(page.fills) < self._longest
        self._longest = max(self._longest, len(page.fills))
        return accounts

    async def answers(self) -> bool:
        """Whether the venue can be asked again."""
        try:
            await self.venue.statement(0, 1)
        except VenueUnavailable:
            return False
        return True

    async def recheck(self, accounts_of: AccountsOf) -> None:
        """Look again for the lines that had no entry, or other figures."""
        waiting = list(self._lines.values())
        self._lines.clear()
        for start in range(0, len(waiting), PAGE):
            await self._match(waiting[start : start + PAGE], accounts_of, again=True)

    def differences(self, quiet_since: datetime) -> Iterator[tuple[Difference | None, str]]:
        """All present differences with their break ids; none for one that was active just now."""
        for line in self._lines.values():
            if line.entry is not None:
                found = other_figures(self.name, line.fill, line.entry)
                assert found is not None, "a line with equal figures is dropped"
            else:
                found = missing_fill(self.name, line.fill, line.order, line.account, is_recorded=line.is_recorded)
            is_active = line.order is not None and line.order.updated_at > quiet_since
            yield None if is_active or line.fill.at > quiet_since else found, found.break_id
        for fill, entry in self._repeated.values():
            again = repeated_fill(self.name, fill, entry)
            yield again, again.break_id
        for entry_id in self._listed:
            reversal = self._taken_back[entry_id]
            void = void_fill(self.name, reversal)
            yield None if reversal.at > quiet_since else void, void.break_id
        for entry in self._ours.values():
            unknown = unknown_fill(self.name, entry)
            yield None if entry.at > quiet_since else unknown, unknown.break_id

    def recorded_differences(self) -> Iterator[tuple[OrderId, Difference, bool]]:
        """The differences of fills whose order is known, with whether the gateway has recorded the fill."""
        for line in self._lines.values():
            if line.order is None:
                continue
            found = (
                missing_fill(self.name, line.fill, line.order, line.account, is_recorded=line.is_recorded)
                if line.entry is None
                else other_figures(self.name, line.fill, line.entry)
            )
            if found is not None:
                yield line.order.order_id, found, line.is_recorded

    async def unknown_there(self) -> list[tuple[OrderId, Difference, bool]]:
        """The fills that only the books have, with whether the gateway has recorded them."""
        found = []
        entries = list(self._ours.values())
        for start in range(0, len(entries), PAGE):
            page = entries[start : start + PAGE]
            recorded = await self._queries.executions(self.name, [str(entry.exec_id) for entry in page])
            found += [
                (entry.order_id, unknown_fill(self.name, entry), str(entry.exec_id) in recorded) for entry in page
            ]
        return found

    async def _match(self, lines: Sequence[Line], accounts_of: AccountsOf, *, again: bool = False) -> set[AccountId]:
        """Match these lines; returns the accounts that they belong to."""
        ids = list({line.fill.venue_client_order_id for line in lines})
        states = await self._journal.load_by_client_order_id(ids)
        scope = self.venue.capabilities.execution_ids
        recorded_as: list[list[str]] = []
        for line in lines:
            state = states.get(line.fill.venue_client_order_id)
            line.order = None if state is None else state.order
            line.account = line.fill.account_id if line.order is None else line.order.account_id
            recorded_as.append(recorded_ids(self.name, line.fill, scope, line.order))
        if foreign := [line for line in lines if line.order is None]:
            booked_to = await accounts_of(self.name, [line.fill for line in foreign])
            for line, account in zip(foreign, booked_to, strict=True):
                line.account = account or line.account
        await self._find_entries(lines, recorded_as)
        unbooked = [
            exec_id
            for line, names in zip(lines, recorded_as, strict=True)
            if line.entry is None and line.order is not None
            for exec_id in names
        ]
        recorded = await self._queries.executions(self.name, unbooked) if unbooked else {}
        for line, names in zip(lines, recorded_as, strict=True):
            order_id = None if line.order is None else line.order.order_id
            found = (recorded.get(name) for name in names)
            line.is_recorded = line.entry is not None or any(
                execution is not None and execution.order_id == order_id for execution in found
            )
            self._place(line, again=again)
        return {line.account for line in lines if line.account is not None}

    async def _find_entries(self, lines: Sequence[Line], recorded_as: Sequence[Sequence[str]]) -> None:
        """Find each line's entry."""
        wanted: dict[str, list[Line]] = {}
        for line, names in zip(lines, recorded_as, strict=True):
            line.entry = None
            if line.account is not None:
                for entry_id in entry_ids(self.name, line.account, line.fill, names):
                    wanted.setdefault(entry_id, []).append(line)
        ids = list(wanted)
        of_others: dict[OrderId, list[tuple[Line, LedgerEntry]]] = {}
        for start in range(0, len(ids), PAGE):
            for stored in await self._lookup.find_entries(ids[start : start + PAGE]):
                entry = readable(stored)
                for line in () if entry is None else wanted[entry.entry_id]:
                    if entry is None:
                        continue
                    if line.order is None or entry.order_id == line.order.order_id:
                        line.entry = entry
                    else:
                        of_others.setdefault(entry.order_id, []).append((line, entry))
        # Booked before a restore, under an order that the journal has lost: a repeat of its key is another order here
        # and the same one at the venue. Where the journal has both orders, the venue used the id for two executions.
        known = await self._journal.load(list(of_others)) if of_others else {}
        for order_id, found in of_others.items():
            for line, entry in () if order_id in known else found:
                line.entry = line.entry or entry

    def _place(self, line: Line, *, again: bool) -> None:
        """File the line by what was found."""
        key = line.fill.venue_client_order_id, line.fill.exec_id
        entry = line.entry
        if entry is None:
            self._lines[key] = line
            return
        if line.fill.exec_type == "CANCEL":
            self._void(line)
            return
        if entry.entry_id in self._taken_back:
            self._listed.add(entry.entry_id)
            return
        is_folded = entry.number <= self._fold.account(entry.account_id).head.number
        if self._ours.pop(entry.entry_id, None) is None and not self.lost:
            if is_folded and not again:
                self._repeated[key] = line.fill, entry
                return
            if not is_folded:
                if entry.entry_id in self._theirs and not again:
                    self._repeated[key] = line.fill, entry
                    return
                self._theirs.add(entry.entry_id)
        if other_figures(self.name, line.fill, entry) is not None:
            self._lines[key] = line

    def _void(self, line: Line) -> None:
        """The venue has voided an execution: a person's reversal of it is right."""
        fill, entry = line.fill, line.entry
        if not self._listed or fill.ref_exec_id is None or entry is None:
            return
        voided = replace(fill, exec_id=fill.ref_exec_id, exec_type=None)
        names = recorded_ids(self.name, voided, self.venue.capabilities.execution_ids, line.order)
        self._listed.difference_update(entry_ids(self.name, entry.account_id, voided, names))
