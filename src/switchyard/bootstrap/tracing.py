"""Traces of a process, where the settings name a collector; the SDK is loaded only then."""

from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from switchyard.settings import Settings
from switchyard.telemetry.metrics import Metrics

if TYPE_CHECKING:
    from switchyard.adapters.otlp.tracer import OtlpTracer


def new_tracer(settings: Settings, role: str, metrics: Metrics) -> "OtlpTracer | None":
    """The tracer of a process, not started yet; none where traces are off."""
    if settings.tracing is None:
        return None
    from switchyard.adapters.otlp.tracer import OtlpTracer

    return OtlpTracer(settings.tracing, role, metrics.traces)


def start_tracer(tracer: "OtlpTracer | None", stack: AsyncExitStack) -> None:
    """Export spans until the stack unwinds, then what is left, for a limited time."""
    if tracer is not None:
        tracer.start()
        stack.push_async_callback(tracer.close)


def open_tracer(settings: Settings, role: str, metrics: Metrics, stack: AsyncExitStack) -> "OtlpTracer | None":
    """The tracer of a process that is not an engine."""
    tracer = new_tracer(settings, role, metrics)
    start_tracer(tracer, stack)
    return tracer
