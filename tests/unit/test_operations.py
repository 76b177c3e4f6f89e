"""Alerts, dashboards and runbooks use metrics, pages and commands that exist."""

import re
from pathlib import Path

import pytest
import typer

from switchyard.entrypoints.cli.main import app
from tests.support import operations
from tests.support.metric_table import documented_metrics, queryable_names
from tests.support.reference_tables import table_rows

PAGES = [*sorted(operations.PAGES.glob("*.md")), operations.ROOT / "docs" / "zero.md"]
PARTS = ("**You see**", "**It means**", "**Do**", "**Never**")
# Names that Switchyard itself uses as the person who set a kill.
WATCHERS = (["repeated", "executions"], ["sent", "ids"])


def test_every_query_reads_metrics_of_the_table() -> None:
    known = queryable_names() | operations.BUILT_IN
    unknown = {place: operations.metric_names(query) - known for place, query in operations.queries()}
    assert {place: names for place, names in unknown.items() if names} == {}
    assert all(operations.metric_names(query) for _, query in operations.queries())


def test_every_label_that_a_query_selects_has_that_value() -> None:
    documented = documented_metrics()
    for place, query in operations.queries():
        for name, label, value in operations.selected_labels(query):
            metric = documented.get(name) or documented[name.removesuffix("_bucket")]
            assert value in metric.labels[label] or not metric.labels[label], (place, name, label, value)


def test_names_are_found_in_a_query() -> None:
    query = 'sum by (le) (rate(a_bucket{x="nothing"}[5m])) / (max(b_total offset 5m) > 0) and on (instance) c == 1'
    assert operations.metric_names(query) == {"a_bucket", "b_total", "c"}


def test_every_alert_has_a_severity_a_summary_and_a_complete_section_in_a_runbook() -> None:
    for name, rule in operations.alerts().items():
        assert rule["labels"]["severity"] in {"critical", "high", "medium"}, name
        assert rule["annotations"]["summary"], name
        page, _, anchor = rule["annotations"]["runbook_url"].partition("#")
        assert anchor == name.lower()
        section = operations.sections(operations.ROOT / page)[anchor]
        assert [part for part in PARTS if part not in section] == [], name


def test_the_list_of_alerts_is_complete_with_severities() -> None:
    page = (operations.PAGES / "alerts.md").read_text("utf-8")
    listed = {row["alert"].partition("]")[0].strip("["): row["severity"] for row in table_rows(page, "alert")}
    assert listed == {name: rule["labels"]["severity"] for name, rule in operations.alerts().items()}


def test_every_alert_has_a_test_in_which_it_fires_and_one_in_which_it_does_not() -> None:
    names = operations.alerts().keys()
    assert operations.tested_alerts(firing=True) == names
    assert operations.tested_alerts(firing=False) == names


def test_there_are_four_dashboards_with_distinct_panels() -> None:
    found = operations.dashboards()
    assert found.keys() == {"Gateway - Operations", "Exactly once", "Risk", "Back office"}
    for dashboard in found.values():
        titles = [panel["title"] for panel in dashboard["panels"]]
        assert len(set(titles)) == len(titles) > 4
        corners = [(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in dashboard["panels"]]
        assert len(set(corners)) == len(corners)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_commands_of_a_page_exist(page: Path) -> None:
    for target in operations.links(page):
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.is_file(), target
        assert not anchor or anchor in operations.sections(linked), target
    for words in operations.named_commands(page):
        if words not in WATCHERS:
            check_command(words)


def check_command(words: list[str]) -> None:
    """Assert that the command exists and has the options that are given."""
    command: object = typer.main.get_command(app)
    for number, word in enumerate(words):
        inner = getattr(command, "commands", {})
        if not inner:
            break
        assert word in inner or number > 0, f"switchyard {' '.join(words)}"
        if word not in inner:
            break
        command = inner[word]
    options = {name for parameter in getattr(command, "params", ()) for name in parameter.opts}
    given = {word.partition("=")[0].strip("[]") for word in words if word.strip("[").startswith("--")}
    assert {name for each in given for name in each.split("|")} <= options | {"--help"}, f"switchyard {' '.join(words)}"


def test_every_test_that_the_definition_of_zero_names_exists() -> None:
    text = (operations.ROOT / "docs" / "zero.md").read_text("utf-8")
    named = re.findall(r"`(\w+/test_\w+\.py)`", text)
    assert len(named) > 40
    assert [path for path in named if not (operations.ROOT / "tests" / path).is_file()] == []
