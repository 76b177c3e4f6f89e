"""The API reference as one HTML page, generated from the OpenAPI document.

The page has no script and no inline style, so it works under a strict Content-Security-Policy.
"""

import json
import shlex
from collections.abc import Iterator
from functools import cache
from http import HTTPStatus
from typing import Any

from switchyard.entrypoints.http.reference import schemas
from switchyard.entrypoints.http.reference.bundle import document
from switchyard.entrypoints.http.reference.markup import (
    Markup,
    element,
    from_markdown,
    from_markdown_line,
    joined,
)
from switchyard.entrypoints.http.reference.routes import STYLE_PATH

Node = dict[str, Any]

VARIABLES = """URL=http://127.0.0.1:8081
BACKOFFICE=http://127.0.0.1:8082
TOKEN=$(switchyard token --account demo)
PDCA_TOKEN=$(switchyard token --aud pdca --aud pdca.gui --scope pdca:read --scope pdca:recheck \\
  --scope pdca:recheck_all --scope pdca:download --scope pdca:strategies)"""
METHODS = frozenset({"get", "post", "put", "patch", "delete"})


@cache
def reference_page() -> bytes:
    """The page in UTF-8."""
    return _Page(document()).render().encode()


class _Page:
    """Renders one document."""

    def __init__(self, openapi: Node) -> None:
        self._openapi = openapi

    def render(self) -> str:
        info = self._openapi["info"]
        head = joined(
            Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
            element("title", info["title"]),
            Markup(f'<link rel="stylesheet" href="{STYLE_PATH}"><link rel="icon" href="data:,">'),
        )
        shown = joined(self._navigation(), element("main", self._introduction(), *self._tags(), self._schemas()))
        return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{shown}</body></html>\n'

    def _navigation(self) -> Markup:
        groups = []
        for tag in self._openapi["tags"]:
            links = [
                _item(operation["operationId"], _method(method), " ", path)
                for path, method, operation in self._operations(tag["name"])
            ]
            groups.append(joined(element("h2", tag["name"]), element("ul", *links)))
        names = [_item(f"schema-{name}", name) for name in self._openapi["components"]["schemas"]]
        every_schema = element("details", element("summary", "all schemas"), element("ul", *names))
        return element("nav", *groups, element("h2", "schemas"), every_schema, aria_label="Contents")

    def _introduction(self) -> Markup:
        info = self._openapi["info"]
        links = element(
            "p",
            "The same contract for tools: ",
            element("a", "openapi.json", href="/openapi.json"),
            ", ",
            element("a", "openapi.yaml", href="/openapi.yaml"),
        )
        return element(
            "header",
            element("h1", info["title"], " ", element("small", info["version"])),
            element("p", info["summary"], class_="lead"),
            links,
            from_markdown(info["description"]),
            self._security_schemes(),
        )

    def _security_schemes(self) -> Markup:
        rows = [
            element(
                "tr",
                element("td", element("code", name)),
                element("td", _scheme(scheme)),
                element("td", from_markdown_line(scheme.get("description", ""))),
            )
            for name, scheme in self._openapi["components"]["securitySchemes"].items()
        ]
        return joined(
            element("h2", "Authentication"),
            schemas.table(("scheme", "sent as", "description"), rows),
            element("p", "The commands on this page use three variables. On the gateway's machine set them with:"),
            element("pre", element("code", VARIABLES)),
        )

    def _tags(self) -> Iterator[Markup]:
        for tag in self._openapi["tags"]:
            yield element("h2", tag["name"], class_="tag")
            yield element("p", tag["description"])
            for path, method, operation in self._operations(tag["name"]):
                yield self._operation(path, method, operation)

    def _operations(self, tag: str) -> Iterator[tuple[str, str, Node]]:
        for path, item in self._openapi["paths"].items():
            for method, operation in item.items():
                if method in METHODS and tag in operation["tags"]:
                    yield path, method, operation

    def _operation(self, path: str, method: str, operation: Node) -> Markup:
        shared = self._openapi["paths"][path].get("parameters", [])
        parameters = [self._resolved(each) for each in [*shared, *operation.get("parameters", ())]]
        request = operation.get("requestBody")
        name = operation["operationId"]
        return element(
            "section",
            element("h3", element("a", _method(method), " ", element("code", path), href=f"#{name}")),
            element("p", operation["summary"], class_="lead"),
            from_markdown(operation.get("description", "")),
            element("p", "Token: ", self._security(operation)),
            _parameters(parameters),
            self._request_body(request) if request else None,
            element("h4", "Request"),
            element("pre", element("code", self._curl(path, method, operation, parameters))),
            element("h4", "Responses"),
            *(self._response(status, self._resolved(each)) for status, each in operation["responses"].items()),
            id=name,
        )

    def _security(self, operation: Node) -> str:
        needs = operation.get("security", self._openapi["security"])
        if not needs:
            return "none"
        return " or ".join(", ".join(each) or "none" for each in needs)

    def _response(self, status: str, response: Node) -> Markup:
        code = element("code", status, class_=f"status status-{status[0]}")
        title = element("summary", code, " ", HTTPStatus(int(status)).phrase)
        shown: list[Markup] = []
        for name, header in response.get("headers", {}).items():
            description = self._resolved(header)["description"]
            shown.append(element("p", "Header ", element("code", name), ": ", from_markdown_line(description)))
        for media_type, content in response["content"].items():
            shown.append(_content(media_type, content))
        return element("details", title, from_markdown(response["description"]), *shown)

    def _request_body(self, request: Node) -> Markup:
        shown = [
            joined(_content(media_type, content), schemas.members(self._resolved(content["schema"])))
            for media_type, content in request["content"].items()
        ]
        return joined(element("h4", "Body"), from_markdown(request.get("description", "")), *shown)

    def _curl(self, path: str, method: str, operation: Node, parameters: list[Node]) -> str:
        """A command with the example values of the contract."""
        filled, headers = path, []
        for parameter in parameters:
            if parameter["in"] == "path":
                filled = filled.replace(f"{{{parameter['name']}}}", str(parameter["example"]))
            elif parameter["in"] == "header" and parameter["name"] == "Idempotency-Key":
                headers.append(f"{parameter['name']}: {parameter['example']}")
        # Paths of another server than the gateway name it.
        servers = [each["url"] for each in self._openapi["paths"][path].get("servers", [{"url": "/"}])]
        server = "URL" if "/" in servers else "BACKOFFICE"
        lines = [f'curl -sS{"N" if filled.endswith("/stream") else ""} "${server}{filled}"']
        if "bearer" in self._security(operation):
            lines.append('-H "Authorization: Bearer $TOKEN"')
        if "pdca" in self._security(operation):
            lines.append('-H "Authorization: Bearer $PDCA_TOKEN"')
        lines += [f"-H {shlex.quote(header)}" for header in headers]
        if "requestBody" in operation:
            [(media_type, content)] = operation["requestBody"]["content"].items()
            value = next(iter(content["examples"].values()))["value"]
            lines += [f"-H 'Content-Type: {media_type}'", f"-d {shlex.quote(json.dumps(value))}"]
        if method in ("patch", "put", "delete") or (method == "post" and "requestBody" not in operation):
            lines.append(f"-X {method.upper()}")
        return " \\\n  ".join(lines)

    def _schemas(self) -> Markup:
        every = self._openapi["components"]["schemas"].items()
        return joined(
            element("h2", "Schemas", class_="tag"), *(schemas.component(name, schema) for name, schema in every)
        )

    def _resolved(self, node: Node) -> Node:
        """The node, or the component that it refers to."""
        if "$ref" not in node:
            return node
        found: Any = self._openapi
        for step in node["$ref"].removeprefix("#/").split("/"):
            found = found[step]
        return dict(found)


def _item(anchor: str, *content: str) -> Markup:
    return element("li", element("a", *content, href=f"#{anchor}"))


def _method(method: str) -> Markup:
    return element("span", method.upper(), class_=f"method method-{method}")


def _scheme(scheme: Node) -> Markup:
    sent = f"{scheme['name']}: …" if scheme["type"] == "apiKey" else "Authorization: Bearer …"
    return element("code", sent)


def _parameters(parameters: list[Node]) -> Markup | None:
    if not parameters:
        return None
    rows = [
        element(
            "tr",
            element(
                "td",
                element("code", each["name"]),
                element("span", "required", class_="required") if each.get("required") else None,
            ),
            element("td", each["in"]),
            element("td", schemas.type_of(each["schema"]), schemas.limits_of(each["schema"])),
            element("td", from_markdown_line(each.get("description", ""))),
        )
        for each in parameters
    ]
    return joined(element("h4", "Parameters"), schemas.table(("name", "in", "type", "description"), rows))


def _content(media_type: str, content: Node) -> Markup:
    messages = content.get("x-messages", {})
    rows = [
        element("tr", element("td", element("code", name)), element("td", schemas.type_of(schema)))
        for name, schema in messages.items()
    ]
    return joined(
        element("p", element("code", media_type)),
        schemas.table(("message", "data"), rows) if rows else schemas.body(content["schema"]),
        *(schemas.example(each["value"], each.get("summary", "")) for each in content.get("examples", {}).values()),
    )
