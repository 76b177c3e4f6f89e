"""Percentiles of measured times."""

from collections.abc import Collection


def percentile(values: Collection[float], percent: int) -> float:
    """The smallest value that at least this percentage of the values does not exceed (nearest rank)."""
    return sorted(values)[max(0, -(-len(values) * percent // 100) - 1)]
