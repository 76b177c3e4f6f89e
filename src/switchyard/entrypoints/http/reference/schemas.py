"""Renders the schemas of the OpenAPI document: types, tables of members, and the section of all schemas."""

import json
from typing import Any

from switchyard.entrypoints.http.reference.markup import Markup, element, from_markdown, from_markdown_line, joined

Schema = dict[str, Any]

COMPONENT = "#/components/schemas/"
# Keywords that limit a value, and how the page shows them.
_LIMITS = {
    "minimum": "≥ {}",
    "exclusiveMinimum": "> {}",
    "maximum": "≤ {}",
    "exclusiveMaximum": "< {}",
    "minLength": "length ≥ {}",
    "maxLength": "length ≤ {}",
    "minItems": "items ≥ {}",
    "maxItems": "items ≤ {}",
    "format": "format {}",
    "pattern": "pattern {}",
    "default": "default {}",
}


def type_of(schema: Schema) -> Markup:
    """The type in words, with links to other schemas."""
    if "$ref" in schema:
        name = schema["$ref"].removeprefix(COMPONENT)
        return element("a", name, href=f"#schema-{name}")
    if "const" in schema:
        return _values([schema["const"]])
    if "enum" in schema:
        return _values(schema["enum"])
    for keyword in ("anyOf", "oneOf"):
        if keyword in schema:
            return _alternatives([type_of(each) for each in schema[keyword]])
    if schema.get("type") == "array":
        return joined("array of ", type_of(schema["items"]))
    kinds = schema.get("type", "any")
    return _alternatives([Markup(each) for each in ([kinds] if isinstance(kinds, str) else kinds)])


def limits_of(schema: Schema) -> Markup | None:
    """The limits of a value, such as its least length."""
    shown = [shape.format(_text(schema[keyword])) for keyword, shape in _LIMITS.items() if keyword in schema]
    return element("span", "; ".join(shown), class_="limits") if shown else None


def members(schema: Schema) -> Markup | None:
    """A table of an object's members; none if the schema has no members of its own."""
    properties = schema.get("properties")
    if not properties:
        return None
    required = set(schema.get("required", ()))
    rows = [
        element(
            "tr",
            element("td", element("code", name), _required() if name in required else None),
            element("td", type_of(member), limits_of(member)),
            element("td", from_markdown_line(member.get("description", ""))),
        )
        for name, member in ((name, {} if member is True else member) for name, member in properties.items())
    ]
    return table(("member", "type", "description"), rows)


def table(columns: tuple[str, ...], rows: list[Markup]) -> Markup:
    """A table with a head; it scrolls on a narrow screen."""
    head = element("thead", element("tr", *(element("th", name, scope="col") for name in columns)))
    return element("div", element("table", head, element("tbody", *rows)), class_="table")


def body(schema: Schema) -> Markup:
    """The schema of a request or response: its type, and its members where they are not those of a component."""
    items = schema.get("items", {})
    return joined(
        element("p", "Type: ", type_of(schema), limits_of(schema)),
        members(schema),
        members(items) if "$ref" not in items else None,
        *(members(each) for each in schema.get("oneOf", ())),
    )


def component(name: str, schema: Schema) -> Markup:
    """One schema of the section of all schemas."""
    return element(
        "section",
        element("h3", element("a", name, href=f"#schema-{name}")),
        from_markdown(schema.get("description", "")),
        body(schema),
        *(example(each) for each in schema.get("examples", ())),
        id=f"schema-{name}",
    )


def example(value: Any, summary: str = "") -> Markup:
    """An example value: text as it is, everything else as indented JSON."""
    shown = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    caption = element("figcaption", "Example", f": {summary}" if summary else "")
    return element("figure", caption, element("pre", element("code", shown)))


def _required() -> Markup:
    return element("span", "required", class_="required")


def _values(values: list[Any]) -> Markup:
    return _alternatives([element("code", _text(each)) for each in values])


def _alternatives(shown: list[Markup]) -> Markup:
    return Markup(" | ".join(shown))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
