"""Tracing: the spans of one request, joined over processes by a W3C `traceparent`.

A part that may be traced holds a `Tracer`, or None if traces are off; `telemetry/traces.py` has the usual forms.
"""

from typing import Literal, Protocol

AttributeValue = str | int | float | bool


class Span(Protocol):
    """One step of a request; no call of it waits or raises."""

    @property
    def traceparent(self) -> str | None:
        """The span as the parent of others, in W3C form; none where its trace is not recorded."""

    def set(self, name: str, value: AttributeValue) -> None:
        """Set an attribute; `name` is whole, such as `switchyard.order_id`."""

    def fail(self, reason: str) -> None:
        """Mark the step as failed; the reason is a code, never a text that may hold personal data."""

    def end(self) -> None:
        """End the step; it is exported later, or dropped."""


SpanKind = Literal["internal", "server", "client", "consumer"]


class Tracer(Protocol):
    """Starts spans."""

    def entry(self, name: str, traceparent: str | None) -> Span:
        """Start the span of a request that has arrived, in the trace of its header; a malformed header is ignored."""

    def child(self, name: str, parent: str, kind: SpanKind = "internal") -> Span:
        """Start a span under another one, which may have ended, or be of another process."""
