"""The table of metrics in the reference page."""

import re
from pathlib import Path

import msgspec
from prometheus_client import Metric

from tests.support.reference_tables import table_rows

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
# What a query may name beside the metric itself.
SUFFIXES = {"histogram": ("_bucket", "_sum", "_count"), "summary": ("_sum", "_count")}


class DocumentedMetric(msgspec.Struct):
    """A row of the table; a label without values takes them from the settings or from another page."""

    type: str
    labels: dict[str, frozenset[str]]
    meaning: str


def documented_metrics() -> dict[str, DocumentedMetric]:
    """Every metric of the page, by its name."""
    return {
        row["metric"].strip("`"): DocumentedMetric(row["type"], _labels(row["labels"]), row["meaning"])
        for row in table_rows(PAGE.read_text("utf-8"), "metric")
    }


def queryable_names() -> set[str]:
    """Every name that a query may use."""
    names: set[str] = set()
    for name, metric in documented_metrics().items():
        names |= {name + suffix for suffix in SUFFIXES.get(metric.type, ("",))}
    return names


def served_name(family: Metric) -> str:
    """The name of a family as the page and queries have it."""
    return family.name + ("_total" if family.type == "counter" else "")


def _labels(cell: str) -> dict[str, frozenset[str]]:
    labels: dict[str, frozenset[str]] = {}
    for part in filter(None, cell.split("; ")):
        names, _, values = part.partition(": ")
        known = frozenset(re.findall(r"`([^`]*)`", values)) if values.startswith("one of ") else frozenset[str]()
        labels |= dict.fromkeys(re.findall(r"`([^`]*)`", names), known)
    return labels
