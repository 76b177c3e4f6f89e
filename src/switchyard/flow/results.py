"""Adds the answer of an ended `/do/order` request to the change that ends its order; counts the rows that moved.

Reads the order's fills; writes nothing. The answer is in the commit that ends the order, so it is stored whether or not
a request is waiting for it.
"""

from collections.abc import Mapping, Sequence
from itertools import chain

from switchyard.domain import decisions
from switchyard.domain.journal.changes import Change, merged
from switchyard.domain.journal.events import encode
from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.orders.do_order import ExecFailure, exec_failure, exec_result, result_digest
from switchyard.domain.orders.keys import DO_ORDER
from switchyard.domain.orders.lifecycle import FINAL
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OutboxStatus
from switchyard.ports.queries import Queries
from switchyard.telemetry.metrics import Metrics

# A fill is two events; of an order with more than this the newest are shown.
EVENTS_MAX = 1_000
# The label of `outbox_send_total` by the status that a row moved to.
_OUTCOMES: Mapping[OutboxStatus, str] = {
    "sent": "success",
    "failed": "retry",
    "dead": "dead",
    "uncertain": "uncertain",
}
_REPEAT = "conflict_processed"


class OrderResults:
    """The completion of every change that the sequencer commits."""

    def __init__(self, *, queries: Queries, catalogue: Catalogue, metrics: Metrics) -> None:
        self._queries = queries
        self._catalogue = catalogue
        self._sends = {label: metrics.sends.labels(label) for label in (*_OUTCOMES.values(), _REPEAT)}

    def is_needed(self, change: Change) -> bool:
        """Whether the change ends the order of a `/do/order` request."""
        return DO_ORDER in [order.operation for order in change.orders if order.status in FINAL]

    async def complete(self, change: Change) -> Change:
        """The change together with the results of the requests whose orders it ends."""
        ended = [order for _, order in change.order_updates if order.operation == DO_ORDER and order.status in FINAL]
        return merged([change, *[await self._result(order, change) for order in ended]])

    def count(self, changes: Sequence[Change]) -> None:
        """Count the outbox rows that committed changes moved."""
        counts: dict[str, int] = {}
        for change in changes:
            for row in change.outbox:
                outcome = _OUTCOMES.get(row.status)
                if outcome is not None:
                    outcome = _REPEAT if row.last_error == "CONFLICT_PROCESSED" else outcome
                    counts[outcome] = counts.get(outcome, 0) + 1
        for outcome, count in counts.items():
            self._sends[outcome].inc(count)

    async def _result(self, order: Order, change: Change) -> Change:
        """The answer that every repeat of the order's request gets once the change is committed."""
        result = exec_failure(order, is_first=False)
        if isinstance(result, ExecFailure):
            return decisions.record_result(order, result.http_status, encode(result).decode(), result_digest(result))
        earlier = await self._queries.last_events(order_id=order.order_id, limit=EVENTS_MAX) if order.filled_qty else ()
        # The change expects the order's version, so nothing can be committed between these events and its own.
        own = [event for event in change.events if event.order_id == order.order_id]
        shown = exec_result(order, chain(earlier, own), self._catalogue.find(order.symbol))
        return decisions.record_result(order, 200, encode(shown).decode(), result_digest(shown))
