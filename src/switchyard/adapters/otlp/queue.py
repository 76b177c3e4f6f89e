"""Spans on their way to the collector: a bounded queue and the thread that empties it.

The SDK's own batch processor drops spans without a count and ends as late as its exporter; so this one takes its place.
A caller never waits: a span that finds the queue full is dropped.
"""

import logging
import threading
from collections import deque
from datetime import timedelta

import structlog
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, Span, SpanProcessor
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from switchyard.telemetry.metrics import TraceMetrics

log = structlog.get_logger()

# The SDK's default: as many waiting spans are exported before their time, and at most as many in one request.
BATCH_MAX = 512
# How long the end of a process may wait for the collector.
STOP_SECONDS_MAX = 2.0
_EXPORTER_LOGGER = "opentelemetry.exporter.otlp.proto.http.trace_exporter"


class SpanQueue(SpanProcessor):
    """Takes ended spans and exports them in batches."""

    def __init__(self, exporter: SpanExporter, *, capacity: int, delay: timedelta, metrics: TraceMetrics) -> None:
        self._exporter = exporter
        self._capacity = capacity
        self._delay_seconds = delay.total_seconds()
        self._metrics = metrics
        self._waiting: deque[ReadableSpan] = deque()
        """Appended to by the event loop and emptied by the thread; both are atomic."""
        self._wanted = threading.Event()
        self._is_closing = False
        self._is_failing = False
        self._heard = _LastMessage()
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)

    def start(self) -> None:
        """Begin to export."""
        logger = logging.getLogger(_EXPORTER_LOGGER)
        logger.addHandler(self._heard)
        logger.propagate = False  # told once by `_note`, not for every batch
        self._thread.start()

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing: a span is taken at its end."""

    def on_end(self, span: ReadableSpan) -> None:
        """Take an ended span, or drop it."""
        if self._is_closing:
            self._metrics.dropped.labels("stopped").inc()
        elif len(self._waiting) >= self._capacity:
            self._metrics.dropped.labels("queue_full").inc()
        else:
            self._waiting.append(span)
            if len(self._waiting) >= BATCH_MAX:
                self._wanted.set()

    def shutdown(self) -> None:
        """Export what waits, within STOP_SECONDS_MAX; the rest is dropped. The thread does not keep the process."""
        self._is_closing = True
        self._wanted.set()
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS_MAX)
        if self._thread.is_alive():
            log.warning("traces_left_behind", spans=len(self._waiting))
        self._exporter.shutdown()
        self._metrics.dropped.labels("stopped").inc(len(self._waiting))
        self._waiting.clear()
        logging.getLogger(_EXPORTER_LOGGER).removeHandler(self._heard)

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Not used: `shutdown` exports what waits."""
        return True

    def _run(self) -> None:
        is_last = False
        while not is_last:
            self._wanted.wait(self._delay_seconds)
            self._wanted.clear()
            is_last = self._is_closing  # read before the queue is emptied: nothing is added from then on
            while self._waiting:
                self._export([self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))])

    def _export(self, batch: list[ReadableSpan]) -> None:
        try:
            result = self._exporter.export(batch)
        except Exception as error:  # the next batch may succeed
            result, self._heard.text = SpanExportResult.FAILURE, repr(error)
        if result is SpanExportResult.SUCCESS:
            self._metrics.exported.inc(len(batch))
        else:
            self._metrics.dropped.labels("export_failed").inc(len(batch))
        self._note(result is not SpanExportResult.SUCCESS)

    def _note(self, is_failing: bool) -> None:
        """Log the first failure and the first success after it."""
        if is_failing and not self._is_failing:
            log.warning("traces_not_exported", error=self._heard.text)
        elif self._is_failing and not is_failing:
            log.info("traces_exported_again")
        self._is_failing = is_failing


class _LastMessage(logging.Handler):
    """Keeps what the exporter last said."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()
