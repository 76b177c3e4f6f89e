"""The log events in the source, and the page that lists them."""

import ast
from pathlib import Path

import msgspec

from tests.support.reference_tables import table_rows

SOURCE = Path(__file__).parents[2] / "src" / "switchyard"
PAGE = Path(__file__).parents[2] / "docs" / "reference" / "logs.md"
LEVELS = {"debug", "info", "warning", "error", "critical", "exception"}
# Added by the processors: to every line, or in the place of the account.
COMMON = {"event", "level", "timestamp"}
HASHED = {"account_id": "account_hash"}


class LogEvent(msgspec.Struct):
    """An event with the fields of all places that log it; `exception` is a traceback."""

    levels: set[str]
    fields: set[str]


def events_in_source() -> dict[str, LogEvent]:
    """Every event that the source logs, by its name."""
    found: dict[str, LogEvent] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and (logged := _logged(node)) is not None:
                name, levels, fields = logged
                event = found.setdefault(name, LogEvent(set(), set()))
                event.levels |= levels
                event.fields |= fields
    return found


def events_on_page() -> dict[str, LogEvent]:
    """Every event of the reference page."""
    return {
        row["event"].strip("`"): LogEvent(
            set(row["level"].split(", ")), {field.strip("`") for field in row["fields"].split(", ") if field}
        )
        for row in table_rows(PAGE.read_text("utf-8"), "event")
    }


def _logged(call: ast.Call) -> tuple[str, set[str], set[str]] | None:
    """The event, levels and fields of a call that logs; none for any other call."""
    match call.func:
        case ast.Attribute(ast.Name("log"), method) if method in LEVELS:
            name, levels = call.args[0], {"error" if method == "exception" else method}
        case ast.Attribute(ast.Name("log") | ast.Call(), "log") if len(call.args) == 2:
            name, levels = call.args[1], _levels(call.args[0])
        case ast.Name("say"):  # an event where logs are JSON, else a line for people
            name, levels = call.args[2], {"info"}
        case _:
            return None
    if isinstance(name, ast.Name):  # the body of `say`
        return None
    assert isinstance(name, ast.Constant) and isinstance(name.value, str), ast.unparse(call)
    fields = {field for keyword in call.keywords for field in _fields(keyword)}
    if "exc_info" in fields or (isinstance(call.func, ast.Attribute) and call.func.attr == "exception"):
        fields = fields - {"exc_info"} | {"exception"}
    return name.value, levels, {HASHED.get(field, field) for field in fields}


def _fields(keyword: ast.keyword) -> set[str]:
    """The name of a field, or the names in the literals of `**{…}`."""
    if keyword.arg is not None:
        return {keyword.arg}
    literals = [node for node in ast.walk(keyword.value) if isinstance(node, ast.Dict)]
    assert literals, f"the fields cannot be told: {ast.unparse(keyword.value)}"
    return {ast.literal_eval(key) for literal in literals for key in literal.keys if key is not None}


def _levels(node: ast.expr) -> set[str]:
    """The levels that an expression can have; `any` where a library decides."""
    named = {each.attr.lower() for each in ast.walk(node) if isinstance(each, ast.Attribute) and each.attr.isupper()}
    return named or {"any"}
