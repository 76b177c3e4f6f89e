"""ports.tracing.Tracer on the OpenTelemetry SDK, exporting to a collector by OTLP over HTTP."""

import asyncio
import os
import socket

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider, sampling
from opentelemetry.trace import (
    INVALID_SPAN,
    NonRecordingSpan,
    SpanContext,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from opentelemetry.trace import Span as SdkSpan
from opentelemetry.trace import SpanKind as SdkKind

from switchyard import __version__
from switchyard.adapters.otlp.queue import SpanQueue
from switchyard.ports.tracing import AttributeValue, Span, SpanKind
from switchyard.settings.tracing import TracingSettings
from switchyard.telemetry.metrics import TraceMetrics
from switchyard.telemetry.traces import Traceparent, parse_traceparent

_KINDS: dict[SpanKind, SdkKind] = {
    "internal": SdkKind.INTERNAL,
    "server": SdkKind.SERVER,
    "client": SdkKind.CLIENT,
    "consumer": SdkKind.CONSUMER,
}


class OtlpTracer:
    """The spans of one process."""

    def __init__(self, settings: TracingSettings, role: str, metrics: TraceMetrics) -> None:
        exporter = OTLPSpanExporter(
            endpoint=settings.url,
            headers={name: str(value) for name, value in settings.headers},
            timeout=settings.timeout.total_seconds(),
        )
        self._queue = SpanQueue(exporter, capacity=settings.queue_capacity, delay=settings.delay, metrics=metrics)
        provider = TracerProvider(
            sampler=_sampler(settings), resource=_resource(settings, role), shutdown_on_exit=False
        )
        provider.add_span_processor(self._queue)
        self._tracer = provider.get_tracer("switchyard", __version__)

    def start(self) -> None:
        """Begin to export."""
        self._queue.start()

    async def close(self) -> None:
        """Export what waits, for a limited time."""
        await asyncio.to_thread(self._queue.shutdown)

    def entry(self, name: str, traceparent: str | None) -> Span:
        """The span of a request, in the trace of its header."""
        parent = None if traceparent is None else parse_traceparent(traceparent)
        context = Context() if parent is None else _context(parent)
        return OtlpSpan(self._tracer.start_span(name, context, SdkKind.SERVER))

    def child(self, name: str, parent: str, kind: SpanKind = "internal") -> Span:
        """A span under another one."""
        above = parse_traceparent(parent)
        if above is None:  # a row or a message that this product did not write
            return OtlpSpan(INVALID_SPAN)
        return OtlpSpan(self._tracer.start_span(name, _context(above), _KINDS[kind]))


class OtlpSpan:
    """ports.tracing.Span on a span of the SDK."""

    __slots__ = ("_span", "traceparent")

    def __init__(self, span: SdkSpan) -> None:
        self._span = span
        context = span.get_span_context()
        self.traceparent = (
            f"00-{context.trace_id:032x}-{context.span_id:016x}-01" if context.trace_flags.sampled else None
        )

    def set(self, name: str, value: AttributeValue) -> None:
        """Set an attribute."""
        self._span.set_attribute(name, value)

    def fail(self, reason: str) -> None:
        """Mark the step as failed."""
        self._span.set_status(Status(StatusCode.ERROR, reason))
        self._span.set_attribute("error.type", reason)

    def end(self) -> None:
        """End the step."""
        self._span.end()


def _context(parent: Traceparent) -> Context:
    flags = TraceFlags(TraceFlags.SAMPLED if parent.sampled else TraceFlags.DEFAULT)
    context = SpanContext(int(parent.trace_id, 16), int(parent.span_id, 16), is_remote=True, trace_flags=flags)
    return set_span_in_context(NonRecordingSpan(context), Context())


def _sampler(settings: TracingSettings) -> sampling.Sampler:
    name = settings.sampler.removeprefix("parentbased_")
    root: sampling.Sampler
    if name == "traceidratio":
        root = sampling.TraceIdRatioBased(settings.ratio)
    else:
        root = sampling.ALWAYS_ON if name == "always_on" else sampling.ALWAYS_OFF
    return sampling.ParentBased(root) if settings.sampler.startswith("parentbased_") else root


def _resource(settings: TracingSettings, role: str) -> Resource:
    return Resource(
        {
            "service.version": __version__,
            "service.instance.id": f"{socket.gethostname()}:{os.getpid()}",
            **dict(settings.attributes),
            "service.name": settings.service_name,
            "switchyard.role": role,
            "telemetry.sdk.language": "python",
            "telemetry.sdk.name": "opentelemetry",
        }
    )
