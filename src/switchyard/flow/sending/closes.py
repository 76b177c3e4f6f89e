"""Orders that close a position, before they are sent: by then the position may have been closed in another way.

Reads positions; writes nothing. First attempts are judged as well, because an order may wait for hours for its venue,
and so are amends of their prices: one that brings a resting close to the market would turn the position around.
"""

from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import assert_never

from switchyard.domain.orders.amends import amend_of
from switchyard.domain.orders.outbox import OutboxKey
from switchyard.domain.risk.checks import Violation
from switchyard.domain.risk.claims import is_reducing
from switchyard.domain.values import EXACT, ZERO, plain
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
        closes = [due for due in page if due.state.order.reduce_only and _is_judged(due)]
        if not closes:
            return found
        keys = {(due.state.order.account_id, due.state.order.symbol) for due in closes}
        held = await self._journal.load_positions(sorted(keys))
        positions = {key: position.qty for key, position in held.items()}
        gone = {}
        for due in closes:
            order = due.state.order
            position = positions.get((order.account_id, order.symbol), ZERO)
            if not is_reducing(position, ZERO, order.side, _qty_left(due)):
                detail = f"the position in {order.symbol} is {plain(position)} by now"
                gone[due.row.key] = Violation("NOT_REDUCING", detail)
        return {**found, **gone}


def _is_judged(due: Due) -> bool:
    """Whether the row may bring the close to the market; an amend of its quantity alone can only make it smaller."""
    match due.row.kind:
        case "new":
            return True
        case "amend":
            return amend_of(due.row).price != due.state.order.price
        case "cancel":
            return False
        case unreachable:
            assert_never(unreachable)


def _qty_left(due: Due) -> Decimal:
    """What the close may still fill once the row is carried out."""
    qty = amend_of(due.row).qty if due.row.kind == "amend" else due.state.order.qty
    return EXACT.subtract(qty, due.state.order.filled_qty)
