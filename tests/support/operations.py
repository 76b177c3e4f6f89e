"""What `ops/` and `docs/operate/` contain: alerts, their tests, dashboards, queries and commands."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
PROMETHEUS = ROOT / "ops" / "prometheus"
DASHBOARDS = ROOT / "ops" / "grafana" / "dashboards"
PAGES = ROOT / "docs" / "operate"
# Of Prometheus itself.
BUILT_IN = {"up"}
KEYWORDS = {"by", "without", "on", "ignoring", "and", "or", "unless", "offset", "bool", "group_left", "group_right"}


def alerts() -> dict[str, Any]:
    """Every alert by its name."""
    return {
        rule["alert"]: rule
        for path in sorted((PROMETHEUS / "rules").glob("*.yml"))
        for group in yaml.safe_load(path.read_text("utf-8"))["groups"]
        for rule in group["rules"]
    }


def tested_alerts(*, firing: bool) -> set[str]:
    """The alerts that a test of promtool expects to fire, or to stay quiet."""
    return {
        case["alertname"]
        for path in sorted((PROMETHEUS / "tests").glob("*.yml"))
        for test in yaml.safe_load(path.read_text("utf-8"))["tests"]
        for case in test["alert_rule_test"]
        if bool(case["exp_alerts"]) == firing
    }


def dashboards() -> dict[str, Any]:
    """Every dashboard by its title."""
    found = [json.loads(path.read_text("utf-8")) for path in sorted(DASHBOARDS.glob("*.json"))]
    return {dashboard["title"]: dashboard for dashboard in found}


def queries() -> Iterator[tuple[str, str]]:
    """Every query, with the alert or panel that makes it."""
    for name, rule in alerts().items():
        yield name, rule["expr"]
    for title, dashboard in dashboards().items():
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                yield f"{title}: {panel['title']}", target["expr"]


def metric_names(query: str) -> set[str]:
    """The metrics that a query reads: names that are neither functions nor labels."""
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\"[^\"]*\"", " ", query)
    bare = re.sub(r"\b(by|without|on|ignoring)\s*\([^)]*\)", " ", bare)
    return set(re.findall(r"\b[a-z_:][a-z0-9_:]*\b(?!\s*\()", bare)) - KEYWORDS


def selected_labels(query: str) -> Iterator[tuple[str, str, str]]:
    """Each (metric, label, value) that a query selects by equality."""
    for name, selector in re.findall(r"([a-z_][a-z0-9_]*)\{([^}]*)\}", query):
        for label, value in re.findall(r'(\w+)="([^"]*)"', selector):
            yield name, label, value


def sections(page: Path) -> dict[str, str]:
    """The text of each section of a page, by its anchor."""
    parts = re.split(r"^#{2,3} (.+)$", page.read_text("utf-8"), flags=re.MULTILINE)
    return {_anchor(title): text for title, text in zip(parts[1::2], parts[2::2], strict=True)}


def links(page: Path) -> Iterator[str]:
    """The targets of the links of a page within the repository."""
    for target in re.findall(r"\]\(([^)]+)\)", page.read_text("utf-8")):
        if "://" not in target:
            yield target


def named_commands(page: Path) -> Iterator[list[str]]:
    """The words of each `switchyard …` command of a page."""
    text = page.read_text("utf-8")
    spans: list[str] = re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    blocks = [line for block in re.findall(r"```\w*\n(.*?)```", text, flags=re.DOTALL) for line in block.splitlines()]
    for command in spans + blocks:
        words = command.split("#")[0].split()
        if words[:1] == ["$"]:
            words = words[1:]
        if words[:1] == ["switchyard"] and len(words) > 1:
            yield words[1:]


def _anchor(title: str) -> str:
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
