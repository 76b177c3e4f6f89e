"""The pages of the reference say what the code has; the index of decisions is whole; files that pages name exist."""

import re
from pathlib import Path

import pytest

import switchyard.venue as interface
from switchyard.entrypoints.cli.venue_interface import interface_page
from switchyard.telemetry.metrics import Metrics
from tests.support.log_events import events_in_source, events_on_page
from tests.support.metric_table import documented_metrics, served_name

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs" / "adr"
# Dots as underscores, counters with `_total`.
SPECIFIED = """
order_requests_total order_idempotency_conflicts_total order_broker_latency_ms
gateway_accept_to_sent_latency_ms gateway_accept_to_sent_latency_ms_max
gateway_accept_to_execution_report_latency_ms gateway_accept_to_execution_report_latency_ms_max
outbox_dequeue_total outbox_send_total outbox_inflight outbox_lag_seconds outbox_retry_count
idempotency_key_generation_duration_ms idempotency_cache_hits_total idempotency_cache_misses_total
idempotency_duplicate_orders_prevented_total idempotency_cache_size idempotency_cache_errors_total orders_placed_total
"""


def test_the_table_of_metrics_has_every_metric_with_its_type_and_help_and_no_other() -> None:
    families = {served_name(family): family for family in Metrics().registry.collect()}
    documented = documented_metrics()
    assert documented.keys() == families.keys()
    for name, family in families.items():
        assert documented[name].type == family.type, name
        assert documented[name].meaning.startswith(family.documentation.rstrip(".")), name


def test_every_metric_of_the_specifications_is_there() -> None:
    assert set(SPECIFIED.split()) <= documented_metrics().keys()


def test_the_page_of_log_events_has_those_of_the_source_with_their_fields_and_no_other() -> None:
    assert events_on_page() == events_in_source()


def test_the_index_of_decisions_has_each_one_with_its_title_and_status() -> None:
    rows = re.findall(r"^\| \[(\d+)\]\((.+)\) \| (.+) \| (.+) \|$", (DECISIONS / "README.md").read_text(), re.MULTILINE)
    assert [row[1] for row in rows] == sorted(path.name for path in DECISIONS.glob("0*.md"))
    for number, name, title, status in rows:
        text = (DECISIONS / name).read_text()
        assert text.startswith(f"# {number}. {title}\n"), name
        stated = re.search(r"^Status: (.+)\.$", text, re.MULTILINE)
        assert status == (stated[1] if stated else "accepted"), name


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "docs/reference/components.md", "docs/reference/risk-limits.md"])
def test_every_file_and_folder_that_a_page_names_exists(page: str) -> None:
    folders = ("src", "tests", "docs", "contracts", "ops")
    existing = {path.as_posix() for folder in folders for path in (ROOT / folder).rglob("*")}
    existing.update(path.as_posix() for path in ROOT.iterdir())
    named = re.findall(r"`([\w/.-]+(?:\.(?:py|sql|md|toml|yaml|json)|/))`", (ROOT / page).read_text())
    assert named
    assert [name for name in named if not any(path.endswith("/" + name.rstrip("/")) for path in existing)] == []


def test_the_page_of_the_venue_interface_is_that_of_its_source() -> None:
    page = (ROOT / "docs/reference/venue-interface.md").read_text("utf-8")
    assert page == interface_page(), "run `switchyard venues interface > docs/reference/venue-interface.md`"
    assert all(f"### {name}\n" in page or f"| `{name}` |" in page for name in interface.__all__)
