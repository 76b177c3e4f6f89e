"""The number of the event before an event, of the same account: keyed partitions hide gaps, this number shows them.

Reads the journal's queries for accounts that it has not seen lately; writes nothing.
"""

from collections import OrderedDict
from collections.abc import Sequence

from msgspec.structs import replace

from switchyard.domain.ids import AccountId
from switchyard.domain.journal.lines import BusEvent
from switchyard.ports.queries import Queries

# About 150 bytes each. An account that was dropped is looked up again with its next event.
ACCOUNTS_MAX = 10_000


class PreviousEvents:
    """The last event of each account, up to where the relay has read."""

    def __init__(self, queries: Queries, accounts_max: int = ACCOUNTS_MAX) -> None:
        self._queries = queries
        self._accounts_max = accounts_max
        self._last: OrderedDict[AccountId, int] = OrderedDict()
        """The one that was not used for the longest time comes first."""

    async def linked(self, events: Sequence[BusEvent]) -> list[BusEvent]:
        """The next events, each with the number of the one before it; the caller leaves none out."""
        linked = []
        for each in events:
            account = each.event.account_id
            previous = self._last.get(account)
            if previous is None:
                previous = await self._look_up(account, each.event.seq)
            assert previous < each.event.seq, "the events are not those after the last"
            linked.append(replace(each, previous_seq=previous))
            self._last[account] = each.event.seq
            self._last.move_to_end(account)
        while len(self._last) > self._accounts_max:
            self._last.popitem(last=False)
        return linked

    def clear(self) -> None:
        """Forget all accounts, because the next events are not those after the last."""
        self._last.clear()

    async def _look_up(self, account: AccountId, before: int) -> int:
        found = await self._queries.last_events(account_id=account, before=before, limit=1)
        return found[0].seq if found else 0
