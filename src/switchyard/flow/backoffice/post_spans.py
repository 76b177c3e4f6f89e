"""The spans of postings: one for each fill, or revision of one, that is booked, in the trace of its order."""

from collections.abc import Iterable

from switchyard.domain.books.postings import Reported, Revised, read_events
from switchyard.domain.journal.lines import BusEvent
from switchyard.ports.tracing import Span, Tracer
from switchyard.telemetry.logs import account_hash
from switchyard.telemetry.traces import describe


class PostSpans:
    """The spans of one page, from before its commit."""

    def __init__(self, tracer: Tracer, source: str, events: Iterable[BusEvent]) -> None:
        self._spans: list[Span] = []
        for read in read_events(event for event in events if event.traceparent is not None):
            taken, fact = read.taken, read.fact
            if taken.traceparent is None or not isinstance(fact, Reported | Revised):
                continue
            span = tracer.child("books.post", taken.traceparent, "consumer")
            describe(
                span,
                order_id=fact.order_id,
                account_hash=account_hash(taken.event.account_id),
                event=taken.event.type,
                seq=taken.event.seq,
                source=source,
            )
            self._spans.append(span)

    def end(self, error: BaseException | None = None) -> None:
        """End them: the page is committed, or failed."""
        for span in self._spans:
            if error is not None:
                span.fail(type(error).__name__)
            span.end()
