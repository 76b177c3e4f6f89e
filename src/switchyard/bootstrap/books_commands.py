"""What people do to the books from the command line: entries of their own, a reset, the adoption of an epoch."""

import msgspec

from switchyard.adapters.files.private import prepare_data_folder
from switchyard.adapters.system_clock import SystemClock
from switchyard.bootstrap.books import existing_books, open_books
from switchyard.bootstrap.rebuild_books import open_journal, read_place
from switchyard.domain.books.entries import Adoption, shown
from switchyard.domain.books.manual import ManualEntry, check_has_happened
from switchyard.domain.errors import CannotStart, HistoryMismatch
from switchyard.domain.ids import AccountId
from switchyard.domain.journal.lines import Place
from switchyard.flow.backoffice.check import read_events_of
from switchyard.flow.backoffice.source import JOURNAL, fork_of
from switchyard.ports.books import ENTRIES_MAX
from switchyard.settings import Settings


class EnteredLine(msgspec.Struct, frozen=True):
    """An entry by a person as the API shows it, and whether it was there before."""

    line: str
    repeated: bool


async def enter_in_books(settings: Settings, wanted: ManualEntry) -> EnteredLine:
    """Book an entry by a person; where the books are a file, no other process may keep them meanwhile."""
    prepare_data_folder(settings.data_dir)
    async with open_books(settings) as books:
        now = SystemClock().now()
        check_has_happened(wanted, now)
        entered = await books.ledger.enter(wanted, now)
    return EnteredLine(shown(entered.entry.text, entered.entry.hash), entered.repeated)


async def reset_books(settings: Settings, only: str | None) -> list[str]:
    """Have the sources, or one of them, read again from their start; returns their names."""
    async with existing_books(settings) as books:
        states = await books.ledger.sources()
        chosen = [state for state in states if only in (None, state.source)]
        if not chosen:
            known = ", ".join(state.source for state in states) or "none"
            raise CannotStart(f"the books have no source {only or 'yet'}: they have {known}")
        for state in chosen:
            await books.ledger.reset(state.source, type(state.position)())
        return [state.source for state in chosen]


async def adopt_epoch(settings: Settings, by: str, reason: str) -> tuple[Adoption, int]:
    """Have the books follow the restored journal; returns the adoption and the number of orphans."""
    async with open_journal(settings) as journal, existing_books(settings) as books:
        place = await read_place(books.ledger)
        read = max((await read_events_of(books.dump)).values(), default=0)
        try:
            await journal.check(place)
            is_whole = place.seq >= read
        except HistoryMismatch:
            is_whole = False
        if is_whole:
            raise CannotStart("the journal has every event that the books have read: there is nothing to adopt")
        fork = await fork_of(journal, place, read)
        adoption = Adoption(
            epoch=fork.epoch,
            after_seq=fork.after.seq,
            first_seq=fork.first_seq,
            by=by,
            reason=reason,
            at=SystemClock().now(),
        )
        orphans = await books.ledger.adopt(adoption, JOURNAL, fork.after)
        for state in await books.ledger.sources():
            if not isinstance(state.position, Place):
                # Events of the new epoch may have passed while their accounts were halted.
                await books.ledger.reset(state.source, type(state.position)())
        return adoption, orphans


async def orphans_of_books(settings: Settings) -> list[str]:
    """The first entries that an adopted journal does not have, as the API shows entries."""
    async with existing_books(settings) as books:
        found = await books.ledger.orphans((AccountId(""), 0), ENTRIES_MAX)
    return [shown(entry.text, entry.hash) for entry in found]
