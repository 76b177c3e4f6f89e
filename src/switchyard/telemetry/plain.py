"""Counters and histograms without a lock, for events of every order: the library's cost ten times as much.

They need none because counting and collecting both run in the event loop.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.utils import floatToGoString


class LatencyMax:
    """`<name>_sum`, `<name>_count` and `<name>_max` of a latency in milliseconds."""

    def __init__(self, name: str, text: str, registry: CollectorRegistry) -> None:
        self._name = name
        self._text = text
        self._sum = self._largest = 0.0
        self._count = 0
        registry.register(self)

    def observe(self, milliseconds: float) -> None:
        """Record one latency."""
        self._sum += milliseconds
        self._count += 1
        if milliseconds > self._largest:
            self._largest = milliseconds

    def collect(self) -> Iterator[Metric]:
        """The current values, for the registry."""
        yield SummaryMetricFamily(self._name, self._text, count_value=self._count, sum_value=self._sum)
        yield GaugeMetricFamily(self._name + "_max", self._text + " (largest so far)", value=self._largest)


class PlainHistogram:
    """A histogram with fixed buckets."""

    def __init__(self, name: str, text: str, buckets: Sequence[float], registry: CollectorRegistry) -> None:
        self._name = name
        self._text = text
        self._bounds = list(buckets)
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, value: float) -> None:
        """Record one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterator[Metric]:
        """The current values, for the registry."""
        labels = [*map(floatToGoString, self._bounds), "+Inf"]
        buckets = list(zip(labels, accumulate(self._counts), strict=True))
        yield HistogramMetricFamily(self._name, self._text, buckets=buckets, sum_value=self._sum)


class PlainCounter:
    """A counter without labels."""

    def __init__(self, name: str, text: str, registry: CollectorRegistry) -> None:
        self._name = name
        self._text = text
        self.count = 0
        registry.register(self)

    def inc(self) -> None:
        """Count one."""
        self.count += 1

    def collect(self) -> Iterator[Metric]:
        """The current value, for the registry."""
        yield CounterMetricFamily(self._name, self._text, value=self.count)
