"""Orders that close a position, before they are sent: by then the position may have been closed in another way.

Reads positions; writes nothing. First attempts are judged as well, because an order may wait for hours for its venue.
"""

from collections.abc import Mapping, Sequence

from switchyard.domain.money import ZERO, plain
from switchyard.domain.outbox import OutboxKey
from switchyard.domain.risk.reasons import Violation
from switchyard.domain.risk.reservations import is_reducing
from switchyard.flow.sending.collars import Guard
from switchyard.ports.journal import Journal
from switchyard.ports.outbox import Due


class Closes:
    """Adds to what another guard finds the closes that would do more than reduce their position."""

    def __init__(self, guard: Guard, journal: Journal) -> None:
        self._guard = guard
        self._journal = journal

    async def breaches(self, page: Sequence[Due]) -> Mapping[OutboxKey, Violation]:
        """The rows of the page that must not be sent now, each with its reason."""
        found = await self._guard.breaches(page)
        closes = [due for due in page if due.row.kind == "new" and due.state.order.reduce_only]
        if not closes:
            return found
        keys = {(due.state.order.account_id, due.state.order.symbol) for due in closes}
        held = await self._journal.load_positions(sorted(keys))
        positions = {key: position.qty for key, position in held.items()}
        gone = {}
        for due in closes:
            order = due.state.order
            position = positions.get((order.account_id, order.symbol), ZERO)
            if not is_reducing(position, ZERO, order.side, order.qty):
                detail = f"the position in {order.symbol} is {plain(position)} by now"
                gone[due.row.key] = Violation("NOT_REDUCING", detail)
        return {**found, **gone}
