"""Matches the lines of a venue's statement and the gateway's executions with the ledger's fills, each once.

Reads page by page from the point at which the last pass ended; keeps only what has no counterpart yet.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

import msgspec
from msgspec.structs import replace

from switchyard.domain.accounts.positions import ACCOUNT_TOTAL
from switchyard.domain.books.entries import LedgerEntry, LedgerHead, Unbalanced, parse_entry
from switchyard.domain.books.fold import Fold
from switchyard.domain.ids import AccountId, OrderId, VenueName
from switchyard.domain.journal.lines import link
from switchyard.domain.orders.lifecycle import is_final
from switchyard.domain.orders.order import Order
from switchyard.domain.reconcile.breaks import Difference, Findings, StatementFill, break_id
from switchyard.domain.reconcile.matching import (
    BookedFills,
    broken_chain,
    compare_positions,
    compare_sums,
    compare_tables,
    entry_ids,
    ledger_scope,
    missing_fill,
    order_difference,
    other_figures,
    recorded_ids,
    repeated_fill,
    unexplained,
    unknown_fill,
    void_fill,
)
from switchyard.domain.values import EXACT, ZERO
from switchyard.ports.books import ENTRIES_MAX, DumpedEntry, EntryFilter, Ledger, LedgerDump, LedgerLookup, StoredEntry
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.queries import Accounts, Queries, UnfinishedFilter
from switchyard.ports.venue import VenueStatement, VenueUnavailable

OnEntry = Callable[[LedgerEntry], None]
# Orders that a fold keeps before it asks which of them agree and have ended; more only where more are open.
ORDERS_MAX: Final = 20_000


class AccountFold:
    """One account's entries up to `head`."""

    def __init__(self, account: AccountId) -> None:
        self.account = account
        self.head = LedgerHead()
        self.books = Fold()
        self.chain: list[Difference] = []
        """Entries that do not follow the one before them."""
        self.missing = 0
        """Numbers that the chain leaves out."""
        self.units: dict[str, Decimal] = {}
        """By symbol: what the gateway's orders have bought less sold."""
        self.fills: dict[str, int] = {}
        """By symbol: how many fills that were."""
        self.orders: dict[OrderId, BookedFills | None] = {}
        """The orders that are not yet known to agree and to have ended; none: to be read whole from the ledger."""
        self.orders_max = ORDERS_MAX
        self.taken_back: set[str] = set()
        """Ids of the entries that people have reversed."""

    def take(self, dumped: DumpedEntry) -> LedgerEntry | None:
        """Fold the next entry; returns none where it cannot be read."""
        stored, before = dumped.stored, self.head
        self.head = LedgerHead(stored.number, stored.hash)
        missing = stored.number - before.number - 1
        if missing:
            self._note(stored.number, missing, f"{missing} entries are missing before entry {stored.number}")
        elif link(before.hash, stored.text) != stored.hash:
            self._note(stored.number, 0, f"entry {stored.number} does not have its hash")
        try:
            entry = parse_entry(stored.text)
        except ValueError as error:
            self._note(stored.number, 0, f"entry {stored.number}: {error}")
            return None
        if (entry.number, entry.entry_id, entry.legs) != (stored.number, dumped.entry_id, dumped.legs):
            self._note(stored.number, 0, f"the rows of entry {stored.number} differ from its text")
        try:
            self.books.apply(entry)
        except (Unbalanced, ArithmeticError) as error:
            # After a missing entry, the results of the later ones cannot be what they say.
            if not self.chain:
                self._note(stored.number, 0, f"entry {stored.number}: {error}")
        if is_of_the_journal(entry):
            self._count(entry)
        if is_reversed_by_a_person(entry):
            self.taken_back.add(entry.reverses or "")
        return entry

    def forget_days(self) -> None:
        """Drop what the fold keeps by day, which no comparison needs."""
        books = self.books
        for part in (books.results, books.day_balances, books.day_holdings):
            part.clear()
        for changed in (books.changed_holdings, books.changed_balances, books.changed_accounts):
            changed.clear()

    def _note(self, number: int, missing: int, problem: str) -> None:
        self.missing += missing
        self.chain.append(broken_chain(self.account, number, missing, problem))

    def _count(self, entry: LedgerEntry) -> None:
        order = self.orders.get(entry.order_id)
        if entry.type == "OrderAccepted":
            self.orders[entry.order_id] = BookedFills(entry.symbol, has_memo=True)
        elif order is None:
            # Its first entries were folded and dropped before, or it has no memo.
            self.orders[entry.order_id] = None
        else:
            order.units = EXACT.add(order.units, units_of(entry))
        self.units[entry.symbol] = EXACT.add(self.units.get(entry.symbol, ZERO), units_of(entry))
        if entry.type == "Fill" and entry.qty:
            self.fills[entry.symbol] = self.fills.get(entry.symbol, 0) + 1


class LedgerFold:
    """All accounts."""

    def __init__(self, dump: LedgerDump, drop_agreeing: Callable[[AccountFold], Awaitable[None]]) -> None:
        self._dump = dump
        self._drop_agreeing = drop_agreeing
        self.accounts: dict[AccountId, AccountFold] = {}

    def account(self, account: AccountId) -> AccountFold:
        """The fold of an account, new ones included."""
        return self.accounts.setdefault(account, AccountFold(account))

    async def advance(
        self, account: AccountId, on_entry: OnEntry, *, up_to: int | None = None, until: datetime | None = None
    ) -> AccountFold:
        """Fold the account's next entries: up to a number, or about until one is later than a time."""
        fold = self.account(account)
        while True:
            limit = ENTRIES_MAX if up_to is None else min(ENTRIES_MAX, up_to - fold.head.number)
            page = await self._dump.dumped_entries(account, fold.head.number, limit) if limit > 0 else []
            if up_to is not None:
                # Where numbers are missing, a page reaches further than its length.
                page = [dumped for dumped in page if dumped.stored.number <= up_to]
            if not page:
                return fold
            last: LedgerEntry | None = None
            for dumped in page:
                last = fold.take(dumped)
                if last is not None:
                    on_entry(last)
            fold.forget_days()
            if len(fold.orders) > fold.orders_max:
                await self._drop_agreeing(fold)
                fold.orders_max = max(ORDERS_MAX, 2 * len(fold.orders))
            if until is not None and (len(page) < limit or (last is not None and last.at > until)):
                return fold


def readable(stored: StoredEntry) -> LedgerEntry | None:
    """The entry, or none where its text cannot be read: the fold reports it, and it books nothing."""
    try:
        return parse_entry(stored.text)
    except ValueError:
        return None


def is_of_the_journal(entry: LedgerEntry) -> bool:
    """Whether the gateway has a counterpart of the entry: people's entries have none."""
    return bool(entry.order_id) and entry.by is None


def is_reversed_by_a_person(entry: LedgerEntry) -> bool:
    """Whether the entry takes another one back because a person said so, not the venue."""
    return entry.type == "Reversal" and entry.by is not None


def units_of(entry: LedgerEntry) -> Decimal:
    """The units that the entry adds to the position."""
    total = ZERO
    for leg in entry.legs:
        if leg.account == "position":
            total = EXACT.add(total, leg.amount)
    return total


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
        self._after: str | None = None
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
        if page.restarted:
            self.lost = True
            raise VenueUnavailable("the statement's numbers have started again: the next pass reads it from there")
        self.at_end = not page.fills
        if self.at_end:
            return set()
        accounts = await self._match([Line(fill) for fill in page.fills], accounts_of)
        self._after = page.cursor
        self.reached_at = max(fill.at for fill in page.fills)
        self.at_end = len(page.fills) < self._longest
        self._longest = max(self._longest, len(page.fills))
        return accounts

    async def answers(self) -> bool:
        """Whether the venue can be asked again."""
        try:
            await self.venue.statement(None, 1)
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
            void = void_fill(reversal)
            yield None if reversal.at > quiet_since else void, void.break_id
        for entry in self._ours.values():
            unknown = unknown_fill(entry)
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
            found += [(entry.order_id, unknown_fill(entry), str(entry.exec_id) in recorded) for entry in page]
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


class Orphans:
    """By account, and by venue and execution id."""

    def __init__(self, entries: Iterable[LedgerEntry]) -> None:
        self._by_account: dict[AccountId, list[LedgerEntry]] = {}
        self._accounts: dict[tuple[str, str], AccountId] = {}
        for entry in entries:
            self._by_account.setdefault(entry.account_id, []).append(entry)
            if entry.exec_id is not None:
                self._accounts[entry.venue, entry.exec_id] = entry.account_id

    def of(self, account: AccountId) -> Sequence[LedgerEntry]:
        """The account's orphans."""
        return self._by_account.get(account, ())

    def order_ids(self, account: AccountId) -> set[OrderId]:
        """The orders that they belong to."""
        return {entry.order_id for entry in self.of(account)}

    def account_of(self, venue: VenueName, fill: StatementFill) -> AccountId | None:
        """The account of the orphan that books this fill."""
        return self._accounts.get((venue, fill.exec_id))


FillsByOrder = Mapping[OrderId, list[tuple[Difference, bool]]]
"""The differences of an order's fills at its venue, with whether the gateway has recorded the fill."""


class GatewaySide:
    """Orders and positions of accounts, as the gateway has them."""

    def __init__(self, *, journal: Journal, queries: Queries, accounts: Accounts, ledger: Ledger, clock: Clock) -> None:
        self._journal = journal
        self._queries = queries
        self._accounts = accounts
        self._ledger = ledger
        self._clock = clock

    async def compare(
        self, fold: AccountFold, quiet_since: datetime, fills: FillsByOrder, orphans: Orphans
    ) -> tuple[list[Difference], set[str]]:
        """The differences of an account that was folded to its end, and the ids of what was active just now.

        Orders that agree and have ended are dropped from the fold: their next entry brings them back.
        """
        orders, left = await self._orders(fold, quiet_since)
        lost = orphans.order_ids(fold.account)
        orders = [one for one in orders if one.order_id not in lost]
        shown = [one for order in orders if (one := unexplained(order, fills.get(OrderId(order.subject[0]), ())))]
        positions, active = await self._positions(fold, quiet_since, orders, orphans)
        return shown + positions, left | active

    async def drop_agreeing(self, fold: AccountFold) -> None:
        """Drop the orders that agree and have ended from a fold that grows."""
        await self._compare_orders(fold, list(fold.orders), self._clock.now())

    async def last_seq(self, account: AccountId) -> int:
        """The number of the account's last event."""
        events = await self._queries.last_events(account_id=account, limit=1)
        return events[-1].seq if events else 0

    async def _orders(self, fold: AccountFold, quiet_since: datetime) -> tuple[list[Difference], set[str]]:
        await self._add_unfinished(fold)
        return await self._compare_orders(fold, list(fold.orders), quiet_since)

    async def _compare_orders(
        self, fold: AccountFold, ids: list[OrderId], quiet_since: datetime
    ) -> tuple[list[Difference], set[str]]:
        found: list[Difference] = []
        left: set[str] = set()
        for start in range(0, len(ids), PAGE):
            page = ids[start : start + PAGE]
            states = await self._journal.load(page)
            for order_id in page:
                state = states.get(order_id)
                order = None if state is None else state.order
                booked = fold.orders[order_id]
                if booked is None:
                    booked = fold.orders[order_id] = await self._booked(fold.account, order_id)
                one = order_difference(order_id, fold.account, order, booked)
                if order is not None and order.updated_at > quiet_since:
                    left.add(break_id("order", (order_id,)))
                elif one is not None:
                    found.append(one)
                elif order is not None and is_final(order.status):
                    del fold.orders[order_id]
        return found, left

    async def _add_unfinished(self, fold: AccountFold) -> None:
        """Expect entries of the orders that the gateway has open."""
        after: OrderId | None = None
        while page := await self._accounts.unfinished_orders(
            UnfinishedFilter(account_id=fold.account, after=after, limit=PAGE)
        ):
            for order in page:
                fold.orders.setdefault(order.order_id, None)
            after = page[-1].order_id

    async def _booked(self, account: AccountId, order_id: OrderId) -> BookedFills | None:
        """What the ledger has of an order, read whole."""
        booked: BookedFills | None = None
        after = 0
        while stored := await self._ledger.entries(EntryFilter(account_id=account, order_id=order_id, after=after)):
            for one in stored:
                entry = readable(one)
                if entry is None:
                    continue
                booked = booked or BookedFills(entry.symbol)
                booked.has_memo = booked.has_memo or entry.type == "OrderAccepted"
                booked.units = EXACT.add(booked.units, units_of(entry))
            after = stored[-1].number
        return booked

    async def _positions(
        self, fold: AccountFold, quiet_since: datetime, orders: list[Difference], orphans: Orphans
    ) -> tuple[list[Difference], set[str]]:
        """Positions with as many fills on both sides, or without activity, are compared."""
        there: dict[str, Decimal] = {}
        left: set[str] = set()
        after = ACCOUNT_TOTAL
        while page := await self._queries.positions(fold.account, after=after, limit=PAGE):
            for position in page:
                there[position.symbol] = position.qty
                same_fills = fold.fills.get(position.symbol) == position.version
                if position.updated_at > quiet_since and not same_fills:
                    left.add(break_id("position", (fold.account, position.symbol)))
            after = page[-1].symbol
        here = dict(fold.units)
        for entry in orphans.of(fold.account):
            # The gateway does not have them either; each is a break of its own.
            here[entry.symbol] = EXACT.subtract(here.get(entry.symbol, ZERO), units_of(entry))
        found = compare_positions(fold.account, there, here, orders)
        return [one for one in found if one.break_id not in left], left


# More differences than people can look at; the scope of a further one counts as not compared.
DIFFERENCES_MAX: Final = 10_000


class Collected:
    """Differences, and which scopes were compared."""

    def __init__(self) -> None:
        self.differences: dict[str, Difference] = {}
        self.compared: set[str] = set()
        self.left: set[str] = set()
        self.skipped: dict[str, str] = {}

    def add(self, one: Difference, *, is_active: bool = False) -> None:
        """Note a difference; one that was active just now is left for the next pass."""
        if is_active:
            self.left.add(one.break_id)
        elif len(self.differences) < DIFFERENCES_MAX:
            self.differences[one.break_id] = one
        else:
            self.left.add(one.break_id)
            self.skip(one.scope, f"more than {DIFFERENCES_MAX} differences: the rest is not listed")

    def add_all(self, differences: Iterable[Difference]) -> None:
        """Note several."""
        for one in differences:
            self.add(one)

    def skip(self, scope: str, why: str) -> None:
        """Note that the scope cannot be compared."""
        self.compared.discard(scope)
        self.skipped[scope] = why

    def missing_here(self, account: AccountId) -> int:
        """How many fills or orders of the account the books lack."""
        return sum(
            one.account_id == account and one.kind in ("fill", "order") and one.class_ == "missing_here"
            for one in self.differences.values()
        )

    def result(self) -> Findings:
        """What the pass found."""
        return Findings(
            differences=self.differences,
            compared=frozenset(self.compared - self.skipped.keys()),
            left=frozenset(self.left),
            not_compared=dict(sorted(self.skipped.items())),
        )


async def compare_tables_of(
    fold: AccountFold,
    lookup: LedgerLookup,
    findings: Collected,
    advance: Callable[[AccountId, int], Awaitable[None]],
) -> None:
    """Add what differs; `advance` folds the account up to an entry."""
    account = fold.account
    tables = await lookup.tables(account)
    await advance(account, tables.head.number)
    scope = ledger_scope(account)
    if fold.chain or fold.head != tables.head:
        _add_chain(fold, tables.head, findings)
        # Breaks of the tables must not close because of it.
        findings.skip(scope, "the chain of its entries is broken, so its tables cannot be compared with them")
        return
    findings.compared.add(scope)
    entries = fold.books.holdings, fold.books.balances
    findings.add_all(compare_tables(account, entries, (tables.holdings, tables.balances)))
    findings.add_all(compare_sums(account, fold.books.balances))


def _add_chain(fold: AccountFold, stored: LedgerHead, findings: Collected) -> None:
    """Add what is wrong with the chain, except for entries that other breaks name.

    Entries that are gone and fills that the books lack are the same, as far as their numbers agree.
    """
    chain, missing = list(fold.chain), fold.missing
    if stored != fold.head:
        cut = max(stored.number - fold.head.number, 0)
        missing += cut
        problem = f"the last entry is {fold.head.number}, the account's row says {stored.number}"
        chain.append(broken_chain(fold.account, stored.number, cut, problem))
    lacking = findings.missing_here(fold.account)
    findings.add_all(one for one in chain if one.class_ != "missing_here" or missing > lacking)
