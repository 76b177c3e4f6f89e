"""Posts events to a ledger as the reader of a source does."""

from collections.abc import Sequence

from switchyard.domain.journal.lines import BusEvent, Place, SourcePosition
from switchyard.flow.backoffice.check import Differences, LedgerDigest, check_ledger, ledger_digest
from switchyard.ports.books import Ledger, LedgerDump, Posted, SourceClaim

JOURNAL = "journal"


class Posting:
    """One claim of a source, moved by each page."""

    def __init__(self, ledger: Ledger, claim: SourceClaim) -> None:
        self._ledger = ledger
        self.claim = claim

    @classmethod
    async def of(cls, ledger: Ledger, source: str = JOURNAL, start: SourcePosition | None = None) -> "Posting":
        return cls(ledger, await ledger.claim(source, start or Place()))

    async def post(self, events: Sequence[BusEvent], position: SourcePosition | None = None) -> Posted:
        posted = await self._ledger.post(self.claim, events, position or events[-1].place)
        self.claim = posted.claim
        return posted


async def post_all(ledger: Ledger, events: Sequence[BusEvent]) -> Posted:
    """Book the next events of the journal in one page."""
    return await (await Posting.of(ledger)).post(events)


async def differences(dump: LedgerDump) -> list[str]:
    """What a check of the ledger finds."""
    found = Differences()
    await check_ledger(dump, found)
    return found.lines


async def digest(dump: LedgerDump) -> LedgerDigest:
    """The value that compares two ledgers."""
    return await ledger_digest(dump)
