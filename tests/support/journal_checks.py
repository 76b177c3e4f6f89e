"""Appends to a journal, and checks of its hash chain."""

from itertools import count

from switchyard.domain.journal.changes import Change, Committed
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.journal.lines import GENESIS, head_text, link, stamp
from switchyard.ports.journal import PAGE_MAX, Journal
from tests.support.memory.clock import START

_groups = count(1)


async def commit(journal: Journal, *changes: Change) -> list[int]:
    """Append one group without conflicts and return the first seq of each change."""
    outcomes = await journal.append(0, f"group-{next(_groups)}", changes, START)
    assert all(isinstance(outcome, Committed) for outcome in outcomes), outcomes
    return [outcome.first_seq for outcome in outcomes if isinstance(outcome, Committed)]


async def verified(journal: Journal) -> list[JournalEvent]:
    """Return all events after checking their numbers, times, lines and hashes against each other and the head."""
    events: list[JournalEvent] = []
    while page := await journal.read(0, len(events), PAGE_MAX):
        events += page
    head = await journal.head(0)
    previous = GENESIS
    for seq, event in enumerate(events, 1):
        assert event.seq == seq
        assert event.text.startswith(head_text(head.epoch, 0, seq, stamp(event.at)))
        assert event.hash == link(previous, event.text)
        previous = event.hash
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert (head.seq, head.hash) == (len(events), previous)
    return events
