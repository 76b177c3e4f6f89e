"""The spans of attempts: one for each message to a venue, in the trace of the request that made it."""

from collections.abc import Sequence

from switchyard.domain.orders.outbox import OrderState, OutboxRow
from switchyard.flow.traced import traceparent_of
from switchyard.ports.tracing import Span, Tracer
from switchyard.ports.venue import Accepted, Ambiguous, SendOutcome, Unsent
from switchyard.telemetry.logs import account_hash
from switchyard.telemetry.traces import describe

_NAMES = {"new": "venue.send", "cancel": "venue.cancel", "amend": "venue.amend"}


class SendSpans:
    """The spans of one batch; an attempt without a trace has none."""

    def __init__(self, tracer: Tracer, sends: Sequence[tuple[OutboxRow, OrderState]]) -> None:
        self._spans = [_begin(tracer, row, state) for row, state in sends]

    def end(self, outcomes: Sequence[SendOutcome]) -> None:
        """End them with the outcomes, given in the same order."""
        for span, outcome in zip(self._spans, outcomes, strict=True):
            if span is None:
                continue
            describe(span, outcome=type(outcome).__name__)
            match outcome:
                case Accepted(venue_order_id):
                    describe(span, venue_order_id=venue_order_id or None)
                case Unsent(code) | Ambiguous(code):
                    span.fail(code)
                case _:
                    span.fail(type(outcome).__name__)
            span.end()


def _begin(tracer: Tracer, row: OutboxRow, state: OrderState) -> Span | None:
    # A cancel that no request has made, of a kill for example, belongs to the trace of its order.
    traceparent = row.traceparent or traceparent_of(state)
    if traceparent is None:
        return None
    span, order = tracer.child(_NAMES[row.kind], traceparent, "client"), state.order
    describe(
        span,
        order_id=order.order_id,
        account_hash=account_hash(order.account_id),
        trace_id=order.trace_id,
        venue=row.venue,
        outbox_id=row.outbox_id,
        attempt=row.attempt,
        client_order_id=row.venue_client_order_id,
    )
    return span
