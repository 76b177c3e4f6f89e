"""The tracing port: the spans of one request, joined over processes by a W3C `traceparent`.

A part that may be traced holds a `Tracer`, or none where traces are off; `telemetry/traces.py` has the usual forms.
"""

from typing import Literal, Protocol

from switchyard.ports.span import Span

SpanKind = Literal["internal", "server", "client", "consumer"]


class Tracer(Protocol):
    """Starts spans."""

    def entry(self, name: str, traceparent: str | None) -> Span:
        """Start the span of a request that has arrived, in the trace of its header; a malformed header is ignored."""
        ...

    def child(self, name: str, parent: str, kind: SpanKind = "internal") -> Span:
        """Start a span under another one, which may have ended, or be of another process."""
        ...
