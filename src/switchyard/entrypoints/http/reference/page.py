"""The API reference as one HTML page: each operation with a command to try, and the contract's YAML below it.

The page has no script and no inline style, so it works under a strict Content-Security-Policy.
"""

import json
import re
import shlex
from collections.abc import Iterator
from functools import cache
from html import escape
from http import HTTPStatus
from typing import Any

from markdown_it import MarkdownIt

from switchyard.entrypoints.http.reference.bundle import as_text, document
from switchyard.entrypoints.http.reference.routes import STYLE_PATH

Node = dict[str, Any]

VARIABLES = """URL=http://127.0.0.1:8081
BACKOFFICE=http://127.0.0.1:8082
TOKEN=$(switchyard token --account demo)
PDCA_TOKEN=$(switchyard token --aud pdca --aud pdca.gui --scope pdca:read --scope pdca:recheck \\
  --scope pdca:recheck_all --scope pdca:download --scope pdca:strategies)"""
METHODS = frozenset({"get", "post", "put", "patch", "delete"})
SCHEMA = "#/components/schemas/"
# Raw HTML in a description is shown as text.
_markdown = MarkdownIt("commonmark", {"html": False})


@cache
def reference_page() -> bytes:
    """The page in UTF-8."""
    openapi = document()
    return _page(_without_references(openapi, openapi)).encode()


def _without_references(node: Any, openapi: Node) -> Any:
    """A copy with the node itself for each reference, except to schemas: they have a section of their own."""
    if isinstance(node, list):
        return [_without_references(each, openapi) for each in node]
    if not isinstance(node, dict):
        return node
    reference = node.get("$ref", SCHEMA)
    if not reference.startswith(SCHEMA):
        node = openapi
        for step in reference.removeprefix("#/").split("/"):
            node = node[step]
    return {key: _without_references(value, openapi) for key, value in node.items()}


def _page(openapi: Node) -> str:
    info, schemas = openapi["info"], openapi["components"]["schemas"]
    parts = [f"<nav aria-label='Contents'>{_navigation(openapi)}</nav><main><header>"]
    parts += [f"<h1>{_text(info['title'])} <small>{info['version']}</small></h1>{_lead(info['summary'])}"]
    parts += ['<p>The same contract for tools: <a href="/openapi.json">openapi.json</a>, ']
    parts += ['<a href="/openapi.yaml">openapi.yaml</a></p>', _markdown.render(info["description"])]
    parts += ["<h2>Authentication</h2>", _yaml(openapi["components"]["securitySchemes"])]
    parts += ["<p>The commands on this page use these variables. On the gateway's machine set them with:</p>"]
    parts += [f"<pre><code>{_text(VARIABLES)}</code></pre></header>"]
    for tag in openapi["tags"]:
        parts += [f'<h2 class="tag">{_text(tag["name"])}</h2><p>{_text(tag["description"])}</p>']
        parts += [_operation(openapi, *found) for found in _operations(openapi, tag["name"])]
    parts += ['<h2 class="tag">Schemas</h2>', *(_schema(name, schema) for name, schema in schemas.items())]
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    head += f'<title>{_text(info["title"])}</title><link rel="stylesheet" href="{STYLE_PATH}">'
    head += '<link rel="icon" href="data:,">'
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{"".join(parts)}</main></body></html>\n'


def _navigation(openapi: Node) -> str:
    shown = ""
    for tag in openapi["tags"]:
        found = _operations(openapi, tag["name"])
        links = [_item(operation["operationId"], _title(method, path)) for path, method, operation in found]
        shown += f"<h2>{_text(tag['name'])}</h2><ul>{''.join(links)}</ul>"
    names = "".join(_item(f"schema-{name}", name) for name in openapi["components"]["schemas"])
    return f"{shown}<h2>schemas</h2><details><summary>all schemas</summary><ul>{names}</ul></details>"


def _operations(openapi: Node, tag: str) -> Iterator[tuple[str, str, Node]]:
    for path, item in openapi["paths"].items():
        for method, operation in item.items():
            if method in METHODS and tag in operation["tags"]:
                yield path, method, operation


def _operation(openapi: Node, path: str, method: str, operation: Node) -> str:
    name = operation["operationId"]
    item: Node = openapi["paths"][path]
    parameters = [*item.get("parameters", ()), *operation.get("parameters", ())]
    needs: list[Node] = operation["security"] if "security" in operation else openapi["security"]
    token = " or ".join(", ".join(each) or "none" for each in needs) or "none"
    shown = f'<section id="{name}"><h3><a href="#{name}">{_title(method, path)}</a></h3>{_lead(operation["summary"])}'
    shown += f"{_markdown.render(operation.get('description', ''))}<p>Token: {token}</p><h4>Request</h4>"
    # Paths of another server than the gateway name it.
    servers = [each["url"] for each in item.get("servers", [{"url": "/"}])]
    command = _curl("URL" if "/" in servers else "BACKOFFICE", path, method, operation, parameters, token)
    shown += f"<pre><code>{_text(command)}</code></pre>"
    if parameters:
        shown += f"<h4>Parameters</h4>{_yaml(parameters)}"
    if "requestBody" in operation:
        body = operation["requestBody"]
        shown += f"<h4>Body</h4>{_markdown.render(body.get('description', ''))}{_content(body['content'])}"
    return f"{shown}<h4>Responses</h4>{''.join(_response(*each) for each in operation['responses'].items())}</section>"


def _response(status: str, response: Node) -> str:
    title = f'<code class="status status-{status[0]}">{status}</code> {HTTPStatus(int(status)).phrase}'
    headers = f"<p>Headers:</p>{_yaml(response['headers'])}" if "headers" in response else ""
    shown = f"{_markdown.render(response['description'])}{headers}{_content(response['content'])}"
    return f"<details><summary>{title}</summary>{shown}</details>"


def _content(content: Node) -> str:
    """The bodies by media type."""
    shown = ""
    for media_type, body in content.items():
        shown += f"<p><code>{media_type}</code></p>{_yaml({**body, 'examples': None})}"
        examples = body.get("examples", {}).values()
        shown += "".join(_example(each["value"], each.get("summary", "")) for each in examples)
    return shown


def _schema(name: str, schema: Node) -> str:
    shown = _markdown.render(schema.get("description", "")) + _yaml({**schema, "description": None, "examples": None})
    examples = "".join(map(_example, schema.get("examples", ())))
    title = f'<h3><a href="#schema-{name}">{name}</a></h3>'
    return f'<section id="schema-{name}">{title}{shown}{examples}</section>'


def _example(value: Any, summary: str = "") -> str:
    """An example value: text as it is, everything else as indented JSON."""
    shown = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
    caption = f"Example: {_text(summary)}" if summary else "Example"
    return f"<figure><figcaption>{caption}</figcaption><pre><code>{_text(shown)}</code></pre></figure>"


def _yaml(node: Any) -> str:
    """A part of the contract, with links to the schemas that it names; members that are None are left out."""
    if isinstance(node, dict):
        node = {key: value for key, value in node.items() if value is not None}
    shown = re.sub(rf"'{SCHEMA}(\w+)'", r'<a href="#schema-\1">\1</a>', _text(as_text(node).rstrip()))
    return f"<pre><code>{shown}</code></pre>"


def _curl(server: str, path: str, method: str, operation: Node, parameters: list[Node], token: str) -> str:
    """A command with the example values of the contract."""
    headers = []
    for parameter in parameters:
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", str(parameter["example"]))
        elif parameter["in"] == "header" and parameter["name"] == "Idempotency-Key":
            headers.append(f"{parameter['name']}: {parameter['example']}")
    lines = [f'curl -sS{"N" if path.endswith("/stream") else ""} "${server}{path}"']
    if "bearer" in token:
        lines.append('-H "Authorization: Bearer $TOKEN"')
    if "pdca" in token:
        lines.append('-H "Authorization: Bearer $PDCA_TOKEN"')
    lines += [f"-H {shlex.quote(header)}" for header in headers]
    if "requestBody" in operation:
        [(media_type, content)] = operation["requestBody"]["content"].items()
        value = next(iter(content["examples"].values()))["value"]
        lines += [f"-H 'Content-Type: {media_type}'", f"-d {shlex.quote(json.dumps(value))}"]
    if method in ("patch", "put", "delete") or (method == "post" and "requestBody" not in operation):
        lines.append(f"-X {method.upper()}")
    return " \\\n  ".join(lines)


def _item(anchor: str, content: str) -> str:
    return f'<li><a href="#{anchor}">{content}</a></li>'


def _title(method: str, path: str) -> str:
    return f'<span class="method method-{method}">{method.upper()}</span> <code>{_text(path)}</code>'


def _lead(text: str) -> str:
    return f'<p class="lead">{_text(text)}</p>'


def _text(text: str) -> str:
    return escape(text, quote=False)
