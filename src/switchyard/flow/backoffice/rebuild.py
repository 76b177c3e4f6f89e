"""Builds a ledger again from the journal, with the entries of the former one that the journal does not give.

Reads the journal and the former ledger; writes only the new ledger that it is given.
"""

from collections import deque
from collections.abc import Awaitable, Mapping, Sequence

from switchyard.domain.books.entries import LedgerEntry, parse_entry
from switchyard.domain.ids import AccountId
from switchyard.domain.journal.lines import BusEvent
from switchyard.flow.backoffice.check import Progress, pages
from switchyard.ports.books import ENTRIES_MAX, Ledger, LedgerDump, ManualLedger, StoredEntry
from switchyard.ports.bus import Source


async def rebuild(
    source: Source,
    ledger: Ledger,
    up_to: Mapping[AccountId, int] | None = None,
    progress: Progress | None = None,
    carried: "Carried | None" = None,
) -> None:
    """Book all events of the journal into an empty ledger, to the end or, in each account, up to the event given.

    Entries that the journal does not give are carried over to the same places of their accounts' chains.
    """
    claim = await ledger.claim(source.name, source.start)
    last = None if up_to is None else max(up_to.values(), default=0)
    total, done = await source.lag(source.start), 0
    while True:
        page = await source.page(claim.position, ENTRIES_MAX)
        if not page.events or (last is not None and page.events[0].event.seq > last):
            break
        done += len(page.events)
        part: list[BusEvent] = []
        for taken in page.events:
            event = taken.event
            if up_to is not None and event.seq > up_to.get(event.account_id, 0):
                continue
            if carried is not None and carried.is_before(event.account_id, event.seq):
                if part:
                    claim = (await ledger.post(claim, part, part[-1].place)).claim
                    part = []
                await carried.carry(event.account_id, event.seq)
            part.append(taken)
        if part or page.position != claim.position:
            claim = (await ledger.post(claim, part, page.position)).claim
        if progress is not None:
            progress(done, total)
    if carried is not None:
        await carried.carry_rest()


class Carried:
    """The entries of former books that the journal does not give: people's, and orphans of an adopted epoch."""

    def __init__(self, ledger: ManualLedger, entries: Mapping[AccountId, Sequence[LedgerEntry]]) -> None:
        self._ledger = ledger
        self._waiting = {account: deque(found) for account, found in entries.items() if found}

    @classmethod
    async def from_books(cls, old: ManualLedger, dump: LedgerDump, new: ManualLedger, source: Source) -> "Carried":
        """Read them all, and have the new ledger follow the same epochs."""
        for adoption in await old.adoptions():
            await new.adopt(adoption, source.name, source.start)
        found: dict[AccountId, list[LedgerEntry]] = {}
        async for row in pages(dump.dumped_accounts, AccountId(""), lambda row: row.account_id):
            account = row.account_id

            def carried_of(after: int, limit: int, owner: AccountId = account) -> Awaitable[Sequence[StoredEntry]]:
                return old.carried(owner, after, limit)

            found[account] = [parse_entry(each.text) async for each in pages(carried_of, 0, lambda each: each.number)]
        return cls(new, found)

    @property
    def count(self) -> int:
        """How many are not carried over yet."""
        return sum(map(len, self._waiting.values()))

    def is_before(self, account: AccountId, seq: int) -> bool:
        """Whether one of the account's has its place before this event."""
        waiting = self._waiting.get(account)
        return bool(waiting) and waiting[0].seq < seq  # type: ignore[index]

    async def carry(self, account: AccountId, before_seq: int) -> None:
        """Carry over those that have their places before this event."""
        while self.is_before(account, before_seq):
            await self._ledger.carry(self._waiting[account].popleft())

    async def carry_rest(self) -> None:
        """Carry over those after the last event."""
        for waiting in self._waiting.values():
            while waiting:
                await self._ledger.carry(waiting.popleft())
