"""The trace that the current task works for, and the forms in which parts of the flow add spans to it.

Holds the span in a context variable; exports nothing itself (`ports/tracing.py`).
"""

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import NamedTuple, ParamSpec

from switchyard.ports.tracing import AttributeValue, Span, SpanKind, Tracer

PREFIX = "switchyard."
_Arguments = ParamSpec("_Arguments")
# W3C Trace Context: version, trace id, span id, flags. Version 00 ends there; a later one may have more parts.
_TRACEPARENT = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_NO_TRACE = nullcontext()
_here: ContextVar[Span | None] = ContextVar("span", default=None)


class Traceparent(NamedTuple):
    """The parts of a `traceparent`."""

    trace_id: str
    span_id: str
    sampled: bool


def parse_traceparent(text: str) -> Traceparent | None:
    """The parts; none where the text is malformed."""
    match = _TRACEPARENT.fullmatch(text)
    if match is None or (match[1] == "00" and match[5] is not None):
        return None
    trace_id, span_id = match[2], match[3]
    if trace_id == "0" * 32 or span_id == "0" * 16:
        return None
    return Traceparent(trace_id, span_id, bool(int(match[4], 16) & 1))


def current_traceparent() -> str | None:
    """The trace of the current task, as the parent of further spans; none without one."""
    span = _here.get()
    return None if span is None else span.traceparent


def annotate(**attributes: AttributeValue | None) -> None:
    """Set attributes of the current span, each under our prefix; one without a value is left out."""
    span = _here.get()
    if span is not None:
        describe(span, **attributes)


def describe(span: Span, **attributes: AttributeValue | None) -> None:
    """Set attributes of a span, each under our prefix; one without a value is left out."""
    for name, value in attributes.items():
        if value is not None:
            span.set(PREFIX + name, value)


@contextmanager
def entered(span: Span) -> Iterator[None]:
    """Make it the span of the current task."""
    token = _here.set(span)
    try:
        yield
    finally:
        _here.reset(token)


@contextmanager
def child_span(
    tracer: Tracer | None, name: str, kind: SpanKind = "internal", *, parent: str | None = None
) -> Iterator[Span | None]:
    """Wrap a span around a block, under `parent` or the current span; none where there is no trace.

    An error that leaves the block marks the span as failed.
    """
    above = parent or current_traceparent()
    if tracer is None or above is None:
        yield None
        return
    span = tracer.child(name, above, kind)
    try:
        with entered(span):
            yield span
    except BaseException as error:
        span.fail(type(error).__name__)
        raise
    finally:
        span.end()


def resumed(traceparent: str | None) -> AbstractContextManager[None]:
    """Do the work of a block for a stored trace, if there is one: its log lines name that trace."""
    return _NO_TRACE if traceparent is None else entered(_Stored(traceparent))


def call_for(
    traceparent: str | None, call: Callable[_Arguments, None], *args: _Arguments.args, **kwargs: _Arguments.kwargs
) -> None:
    """Make a call for a stored trace, as `resumed` does; without one it costs next to nothing."""
    if traceparent is None:
        call(*args, **kwargs)
        return
    with resumed(traceparent):
        call(*args, **kwargs)


class _Stored:
    """A span of which only the context is known."""

    def __init__(self, traceparent: str) -> None:
        self._traceparent = traceparent

    @property
    def traceparent(self) -> str | None:
        return self._traceparent

    def set(self, name: str, value: AttributeValue) -> None:
        pass

    def fail(self, reason: str) -> None:
        pass

    def end(self) -> None:
        pass
