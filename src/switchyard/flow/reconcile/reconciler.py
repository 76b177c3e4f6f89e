"""One pass: compares the books with their own entries, with the gateway and with the venues, and settles the breaks.

Reads the ledger, the gateway's rows and the venues; writes only breaks. It repairs nothing.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final

import structlog

from switchyard.domain.books.entries import BookedAccount, LedgerEntry, parse_entry
from switchyard.domain.errors import CannotStart, OutcomeUnknown, Unavailable
from switchyard.domain.ids import AccountId, OrderId, VenueClientOrderId, VenueName
from switchyard.domain.market.health import Check
from switchyard.domain.orders.amends import current_id
from switchyard.domain.orders.order import Order
from switchyard.domain.reconcile.breaks import (
    BREAK_CLASSES,
    BREAK_STATES,
    CURRENT_STATES,
    Break,
    Difference,
    Findings,
    PassView,
    StatementFill,
    break_id,
    needed_former,
    settled,
    told,
)
from switchyard.domain.reconcile.matching import (
    OpenThere,
    fills_scope,
    gateway_scope,
    open_order_difference,
    open_orders_scope,
    orphan,
    recorded_ids,
)
from switchyard.flow.reconcile.matching import (
    AccountFold,
    AccountsOf,
    Collected,
    GatewaySide,
    LedgerFold,
    Orphans,
    StatementMatch,
    TooMany,
    compare_tables_of,
)
from switchyard.ports.books import (
    BREAKS_MAX,
    ENTRIES_MAX,
    BreakFilter,
    BreakStore,
    LedgerDump,
    LedgerLookup,
    ManualLedger,
)
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Journal
from switchyard.ports.queries import Queries
from switchyard.ports.venue import VenueStatement, VenueUnavailable
from switchyard.telemetry.metrics import ReconcileMetrics

log = structlog.get_logger()


async def current_breaks(breaks: BreakStore) -> dict[str, Break]:
    """All breaks that are not closed."""
    found: dict[str, Break] = {}
    after = ""
    while page := await breaks.page(BreakFilter(states=CURRENT_STATES, after=after)):
        found |= {one.break_id: one for one in page}
        after = page[-1].break_id
    return found


async def settle(
    breaks: BreakStore, known: Mapping[str, Break], findings: Findings, now: datetime, confirm_after: timedelta
) -> None:
    """Write what becomes of the breaks; `known` are those that are not closed."""
    new = needed_former(known.values(), findings)
    former: dict[str, Break] = {}
    for start in range(0, len(new), BREAKS_MAX):
        former |= await breaks.find(new[start : start + BREAKS_MAX])
    after = settled(list(known.values()), former.values(), findings, now, confirm_after)
    for start in range(0, len(after), BREAKS_MAX):
        await breaks.save(after[start : start + BREAKS_MAX])
    for one in after:
        before = known.get(one.break_id)
        if one.state == "open" and (before is None or before.state != "open"):
            log.error(
                "break_open",
                break_id=one.break_id,
                kind=one.kind,
                break_class=one.class_,
                account_id=one.account_id,
                venue=one.venue,
                amount=str(one.amount),
                unit=one.unit,
            )


PAGE: Final = 500


async def compare_open_orders(
    venue: VenueStatement, journal: Journal, queries: Queries, quiet_since: datetime
) -> list[tuple[Difference, bool]]:
    """The differences, each with whether its order was active just now; raises VenueUnavailable."""
    shown: dict[VenueClientOrderId, OpenThere] = {}
    times: Counter[VenueClientOrderId] = Counter()
    async for page in venue.open_orders():
        for order in page:
            shown[order.venue_client_order_id] = order.qty, order.filled_qty, order.symbol
            times[order.venue_client_order_id] += 1
    found: list[tuple[Difference, bool]] = []
    listed = list(shown)
    for start in range(0, len(listed), PAGE):
        ids = listed[start : start + PAGE]
        # Ours after theirs: a change since then shows as activity.
        states = await journal.load_by_client_order_id(ids)
        for client_id in ids:
            state = states.get(client_id)
            ours = None if state is None else state.order
            one = open_order_difference(venue.name, client_id, ours, shown[client_id], times=times[client_id])
            if one is not None:
                found.append((one, ours is not None and ours.updated_at > quiet_since))
    after = None
    while orders := await queries.open_orders(venue.name, after=after, limit=PAGE):
        found += _absent(venue, orders, shown, quiet_since)
        after = orders[-1].order_id
    return found


def _absent(
    venue: VenueStatement, orders: list[Order], shown: dict[VenueClientOrderId, OpenThere], quiet_since: datetime
) -> Iterator[tuple[Difference, bool]]:
    for order in orders:
        # A cancel may be requested before the order itself is sent.
        if current_id(order) in shown or order.venue_client_order_id in shown or order.venue_order_id is None:
            continue
        one = open_order_difference(venue.name, current_id(order), order, None)
        if one is not None:
            yield one, order.updated_at > quiet_since


# How long a pass waits for the books to read what the gateway had when the pass began.
BEHIND_SECONDS_MAX: Final = 10.0
POLL_SECONDS: Final = 0.1
# A pass reads what is new; once a day everything is read again, because folded entries may be changed afterwards.
FULL_SECONDS: Final = 24 * 3600.0
ORPHANS_MAX: Final = 10_000


class Reconciler:
    """Compares again and again; `last` is the last pass."""

    def __init__(
        self,
        *,
        dump: LedgerDump,
        lookup: LedgerLookup,
        manual: ManualLedger,
        gateway: GatewaySide,
        journal: Journal,
        queries: Queries,
        venues: Mapping[VenueName, VenueStatement | str],
        breaks: BreakStore,
        clock: Clock,
        metrics: ReconcileMetrics,
        quiet: timedelta,
        interval: timedelta,
    ) -> None:
        """`venues`: every configured venue, or why it cannot be asked."""
        self._dump = dump
        self._lookup = lookup
        self._manual = manual
        self._gateway = gateway
        self._journal = journal
        self._queries = queries
        self._venues = venues
        self.breaks = breaks
        self._clock = clock
        self._metrics = metrics
        self._quiet = quiet
        self.interval_seconds = interval.total_seconds()
        self._passing = asyncio.Lock()
        self.last: PassView | None = None
        self._began_at = clock.monotonic()
        self._compared_at: float | None = None
        self._restart()
        metrics.age.set_function(self.age_seconds)
        metrics.interval.set(self.interval_seconds)

    async def run(self) -> None:
        """Make a pass at every interval, for as long as the process lives."""
        while True:
            try:
                await self.run_once()
            except Unavailable as error:
                log.warning("reconcile_interrupted", error=str(error))
            except (CannotStart, OutcomeUnknown):
                raise  # the process must not go on
            except Exception:
                # Not at once again, as the supervisor would: a pass from the start is long.
                log.exception("reconcile_failed", retry_seconds=self.interval_seconds)
            await asyncio.sleep(self.interval_seconds)

    async def run_once(self, *, full: bool = False) -> PassView:
        """Make one pass; with `full` everything is read again."""
        async with self._passing:
            if full or self._clock.monotonic() - self._read_from > FULL_SECONDS:
                self._restart()
            try:
                findings = await self._compare()
            except BaseException:
                # What was read and not settled would be skipped by the next pass.
                self._restart()
                raise
            await settle(self.breaks, await current_breaks(self.breaks), findings, self._clock.now(), self._quiet)
            return await self._note(findings)

    def recorded_id(self, venue: VenueName, fill: StatementFill) -> str | None:
        """The execution id under which the fill is booked; none where the venue is not configured."""
        match = self._matches.get(venue)
        return None if match is None else recorded_ids(venue, fill, match.venue.capabilities.execution_ids, None)[0]

    def _restart(self) -> None:
        self._read_from = self._clock.monotonic()
        self._fold = LedgerFold(self._dump, self._gateway.drop_agreeing)
        self._matches = {
            name: StatementMatch(
                venue, journal=self._journal, queries=self._queries, lookup=self._lookup, fold=self._fold
            )
            for name, venue in self._venues.items()
            if not isinstance(venue, str)
        }

    async def _compare(self) -> Findings:
        started_at = self._clock.now()
        quiet_since = started_at - self._quiet
        known = await current_breaks(self.breaks)
        findings = Collected()

        orphans = Orphans(await self._orphans())

        async def accounts_of(venue: VenueName, fills: Sequence[StatementFill]) -> list[AccountId | None]:
            ids = [break_id("fill", (venue, fill.venue_client_order_id, fill.exec_id)) for fill in fills]
            # An adoption closes its break, and a pass from the start meets its fill again.
            former = await self.breaks.find([each for each in ids if each not in known])
            return [
                known[each].adopted_account
                if each in known
                else (former[each].adopted_account if each in former else None) or orphans.account_of(venue, fill)
                for each, fill in zip(ids, fills, strict=True)
            ]

        for name, why in self._venues.items():
            if isinstance(why, str):
                findings.skip(fills_scope(name), why)
                findings.skip(open_orders_scope(name), why)
        # The venues first: what they have, the gateway and the books have soon after.
        open_orders = [await self._open_orders(match, quiet_since, findings) for match in self._matches.values()]
        await self._read_statements(accounts_of, findings)
        behind = await self._fold_all(findings)
        fills = await self._match_fills(accounts_of, behind, quiet_since, findings)
        for found in open_orders:
            for one, is_active in found:
                # Another quantity is the sum of fills that are reported one by one.
                if one.class_ == "amount" and one.order_id in fills:
                    continue
                findings.add(one, is_active=is_active)
        for fold in list(self._fold.accounts.values()):
            if fold.account not in behind:
                await self._compare_account(fold, quiet_since, fills, orphans, findings)
        return findings.result()

    async def _open_orders(
        self, match: StatementMatch, quiet_since: datetime, findings: Collected
    ) -> list[tuple[Difference, bool]]:
        scope = open_orders_scope(match.name)
        try:
            found = await compare_open_orders(match.venue, self._journal, self._queries, quiet_since)
        except VenueUnavailable as error:
            findings.skip(scope, str(error))
            return []
        findings.compared.add(scope)
        return found

    async def _read_statements(self, accounts_of: AccountsOf, findings: Collected) -> None:
        """Read every statement to its end: always the one that is furthest behind, and the ledger as far as all are.

        So neither side gets far ahead of the other, however long their histories are.
        """
        if any([match.lost and await match.answers() for match in self._matches.values()]):
            self._restart()
        reading = dict(self._matches)
        while reading:
            match = min(reading.values(), key=lambda each: each.reached_at)
            try:
                accounts = await match.read_page(accounts_of)
            except VenueUnavailable as error:
                findings.skip(fills_scope(match.name), str(error))
                del reading[match.name]
                continue
            except TooMany:
                findings.skip(fills_scope(match.name), "too many of its fills are not in the books to list them")
                del reading[match.name]
                continue
            if match.at_end:
                del reading[match.name]
            if reading:
                until = min(each.reached_at for each in reading.values())
                for account in accounts:
                    await self._fold.advance(account, self._note_entry, until=until)

    async def _fold_all(self, findings: Collected) -> set[AccountId]:
        """Fold every account, once the books have read it, as far as it is then; returns those behind or halted.

        What is booked during the pass is left for the next one, so that a pass ends under any load.
        """
        behind: set[AccountId] = set()
        deadline = self._clock.monotonic() + BEHIND_SECONDS_MAX
        before = AccountId("")
        while page := await self._dump.dumped_accounts(before, ENTRIES_MAX):
            for row in page:
                wanted = await self._gateway.last_seq(row.account_id)
                account = await self._read_to(row, wanted, deadline)
                if account.seq < wanted:
                    behind.add(account.account_id)
                    why = account.halted or f"the books have read event {account.seq} of {wanted}"
                    findings.skip(gateway_scope(account.account_id), why)
                await self._advance(account.account_id, account.head.number)
            before = page[-1].account_id
        return behind

    async def _read_to(self, account: BookedAccount, wanted: int, deadline: float) -> BookedAccount:
        """Wait until the books have read the account's event; returns the account's row as it is then."""
        while account.seq < wanted and account.halted is None and self._clock.monotonic() < deadline:
            await asyncio.sleep(POLL_SECONDS)
            account = await self._lookup.find_account(account.account_id) or account
        return account

    async def _match_fills(
        self, accounts_of: AccountsOf, behind: set[AccountId], quiet_since: datetime, findings: Collected
    ) -> dict[OrderId, list[tuple[Difference, bool]]]:
        """Compare the statements with the folded entries; returns the differences by order.

        What is known of a venue that does not answer still explains differences of its orders.
        """
        by_order: dict[OrderId, list[tuple[Difference, bool]]] = {}
        for match in self._matches.values():
            scope = fills_scope(match.name)
            await match.recheck(accounts_of)
            if scope not in findings.skipped:
                findings.compared.add(scope)
                for one, found_id in match.differences(quiet_since):
                    if one is None or one.account_id in behind:
                        findings.left.add(found_id)
                    else:
                        findings.add(one)
            for order_id, one, is_recorded in (*match.recorded_differences(), *await match.unknown_there()):
                by_order.setdefault(order_id, []).append((one, is_recorded))
        return by_order

    async def _compare_account(
        self,
        fold: AccountFold,
        quiet_since: datetime,
        fills: Mapping[OrderId, list[tuple[Difference, bool]]],
        orphans: Orphans,
        findings: Collected,
    ) -> None:
        found, left = await self._gateway.compare(fold, quiet_since, fills, orphans)
        findings.left |= left
        findings.compared.add(gateway_scope(fold.account))
        for one in found:
            findings.add(one)
        findings.add_all(
            orphan(entry) for entry in orphans.of(fold.account) if entry.legs and entry.entry_id not in fold.taken_back
        )
        await compare_tables_of(fold, self._lookup, findings, self._advance)

    async def _advance(self, account: AccountId, up_to: int) -> None:
        await self._fold.advance(account, self._note_entry, up_to=up_to)

    def _note_entry(self, entry: LedgerEntry) -> None:
        for match in self._matches.values():
            match.note_entry(entry)

    async def _orphans(self) -> list[LedgerEntry]:
        """The entries that an adopted journal does not have."""
        found: list[LedgerEntry] = []
        after = AccountId(""), 0
        while len(found) < ORPHANS_MAX and (page := await self._manual.orphans(after, ENTRIES_MAX)):
            entries = [parse_entry(each.text) for each in page]
            found += entries
            after = entries[-1].account_id, entries[-1].number
        return found

    async def show_counts(self) -> None:
        """Set the gauges of breaks."""
        counts = await self.breaks.counts()
        for class_ in BREAK_CLASSES:
            for state in BREAK_STATES:
                if state != "closed":
                    self._metrics.breaks.labels(class_, state).set(counts.get((class_, state), 0))

    async def _note(self, findings: Findings) -> PassView:
        await self.show_counts()
        self._metrics.not_compared.set(len(findings.not_compared.keys() - self._without_lookup()))
        self._compared_at = self._clock.monotonic()
        self.last = PassView(
            compared_at=self._clock.now(),
            differences=len(findings.differences),
            accounts=sum(bool(account) for account in self._fold.accounts),
            not_compared=told(findings.not_compared),
        )
        return self.last

    def _without_lookup(self) -> set[str]:
        """The comparisons that a setting rules out (`VENUE_LOOKUP_` is none): they are told, and are no alarm."""
        matches = self._matches.values()
        return {open_orders_scope(each.name) for each in matches if each.venue.capabilities.lookup == "none"}

    def age_seconds(self) -> float:
        """Since the last pass, or since the start where there was none."""
        since = self._began_at if self._compared_at is None else self._compared_at
        return self._clock.monotonic() - since


# A pass over large books takes minutes, and one that fails is tried again after the interval. The alert
# ReconcileStale has the same limit.
STALE_INTERVALS: Final = 5
STALE_SECONDS: Final = 600.0


async def check_reconciliation(reconciler: Reconciler) -> Check:
    """Degraded while a break is open, or if no pass has been completed for long."""
    age_seconds = reconciler.age_seconds()
    if age_seconds > STALE_INTERVALS * reconciler.interval_seconds + STALE_SECONDS:
        return Check("reconcile", "degraded", f"no pass was completed for {age_seconds:.0f} s")
    if reconciler.last is None:
        return Check("reconcile", "ok", "the first pass is under way")
    counts = await reconciler.breaks.counts()
    open_breaks = sum(count for (_, state), count in counts.items() if state == "open")
    detail = f"compared {age_seconds:.0f} s ago: {open_breaks} open breaks"
    if reconciler.last.not_compared:
        detail += f", {len(reconciler.last.not_compared)} comparisons could not be made"
    return Check("reconcile", "degraded" if open_breaks else "ok", detail)
