"""Holds answers against `contracts/`: what the gateway says must be what the contract says.

    contract = Contract()
    contract.check("GET", "/orders/ord_…?x=y", response.status_code, response.headers, response.content)

Every failure is an AssertionError that names the operation and the place in the body.
"""

import json
import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from email.message import Message
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from jsonschema import Draft202012Validator
from referencing import Registry
from referencing.jsonschema import DRAFT202012

FOLDER = Path(__file__).parents[2] / "contracts"
OPENAPI = "openapi.yaml"
METHODS = frozenset({"get", "put", "post", "delete", "options", "head", "patch", "trace"})


@cache
def documents() -> dict[str, Any]:
    """Every file of the folder under its own name, which is also how they refer to each other."""
    loaded = {path.name: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.schema.json"))}
    loaded[OPENAPI] = yaml.safe_load((FOLDER / OPENAPI).read_text())
    return loaded


@cache
def registry() -> "Registry[Any]":
    """The files, for resolving references, with every object closed.

    The published schemas leave answers open, so that a later version may add members; a test must notice
    a member that nobody documented.
    """
    resources = [(name, DRAFT202012.create_resource(_closed(content))) for name, content in documents().items()]
    return Registry().with_resources(resources)


def problems(reference: str, value: object) -> list[str]:
    """What is wrong with the value by the schema at `file#/json/pointer`, each with its place."""
    validator = Draft202012Validator(
        {"$ref": reference}, registry=registry(), format_checker=Draft202012Validator.FORMAT_CHECKER
    )
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]


def decoded(body: bytes | str) -> Any:
    """JSON with decimals kept exact."""
    return json.loads(body, parse_float=Decimal)


def messages(stream: str) -> Iterator[tuple[str, str]]:
    """Name and data of every complete message of an event stream.

    Not the client's parser: a mistake that server and client share must still show here.
    """
    *frames, _unfinished = re.split(r"\r?\n\r?\n", stream)
    for frame in frames:
        pairs = [line.partition(": ") for line in frame.splitlines() if not line.startswith(":")]
        data = [value for name, _, value in pairs if name == "data"]
        names = [value for name, _, value in pairs if name == "event"]
        if data:
            yield (names or ["message"])[-1], "\n".join(data)


class Contract:
    """The OpenAPI document as something to hold answers against."""

    def __init__(self) -> None:
        paths = documents()[OPENAPI]["paths"]
        # Fixed segments win over templated ones, as OpenAPI has it.
        self._paths: list[str] = sorted(paths, key=lambda path: path.count("{"))
        self._operations = {
            (method.upper(), path) for path, item in paths.items() for method in item if method in METHODS
        }

    def operations(self) -> set[tuple[str, str]]:
        """Every documented (METHOD, templated path)."""
        return set(self._operations)

    def check(self, method: str, path: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Assert that this operation may answer like this: status, headers, content type and body.

        Of an event stream every complete message is checked.
        """
        template = self._template(method, path)
        place = f"{method.upper()} {template} {status}"
        response = self._response(method, template, status)
        documented = _at(response)
        by_name = {name.lower(): value for name, value in headers.items()}
        for name in documented.get("headers", {}):
            self._check_header(place, name, f"{response}/headers/{_escaped(name)}", by_name.get(name.lower()))
        content_type = by_name.get("content-type", "")
        offered = documented.get("content", {})
        media_type = next((key for key in offered if _is_media_type(content_type, key)), None)
        assert media_type is not None, f"{place}: content type {content_type!r}, documented {sorted(offered)}"
        self._check_body(place, f"{response}/content/{_escaped(media_type)}", media_type, body)

    def _template(self, method: str, path: str) -> str:
        bare = path.partition("?")[0]
        matching = [template for template in self._paths if _matches(template, bare)]
        assert matching, f"{bare} is not in the contract"
        template = matching[0]
        assert (method.upper(), template) in self._operations, f"{method.upper()} {template} is not in the contract"
        return template

    def _response(self, method: str, template: str, status: int) -> str:
        responses = f"/paths/{_escaped(template)}/{method.lower()}/responses"
        assert str(status) in _at(responses), f"{method.upper()} {template}: status {status} is not documented"
        return _followed(f"{responses}/{status}")

    def _check_header(self, place: str, name: str, pointer: str, text: str | None) -> None:
        target = _followed(pointer)
        header = _at(target)
        if text is None:
            assert not header.get("required"), f"{place}: no {name} header"
            return
        value = int(text) if header["schema"].get("type") == "integer" and text.isdecimal() else text
        found = problems(f"{OPENAPI}#{target}/schema", value)
        assert not found, f"{place}: {name} header: {'; '.join(found)}"

    def _check_body(self, place: str, pointer: str, media_type: str, body: bytes) -> None:
        if media_type == "application/json":
            found = problems(f"{OPENAPI}#{pointer}/schema", decoded(body))
            assert not found, f"{place}: {'; '.join(found)}\n{body.decode()}"
            return
        text = body.decode()
        if media_type != "text/event-stream":
            return
        for name, data in messages(text):
            assert name in _at(pointer)["x-messages"], f"{place}: message {name!r} is not documented"
            found = problems(f"{OPENAPI}#{pointer}/x-messages/{name}", decoded(data))
            assert not found, f"{place}: {name}: {'; '.join(found)}\n{data}"


def _matches(template: str, path: str) -> bool:
    return re.fullmatch(re.sub(r"\\{[^/]+?\\}", "[^/]+", re.escape(template)), path) is not None


def _is_media_type(actual: str, documented: str) -> bool:
    """Whether the type is the same and every documented parameter is there; the answer may have more (charset)."""
    found, wanted = _media_type(actual), _media_type(documented)
    return found[0] == wanted[0] and wanted[1].items() <= found[1].items()


def _media_type(text: str) -> tuple[str, dict[str, str]]:
    message = Message()
    message["content-type"] = text
    (name, _), *parameters = message.get_params(failobj=[("", "")])
    return name.lower(), dict(parameters)


def _at(pointer: str) -> Any:
    return registry().resolver().lookup(f"{OPENAPI}#{pointer}").contents


def _followed(pointer: str) -> str:
    """The pointer, or where its reference leads: responses and headers may stand under components."""
    reference = _at(pointer).get("$ref")
    return pointer if reference is None else str(reference).removeprefix("#")


def _escaped(name: str) -> str:
    """The name as one step of a JSON pointer within a URI."""
    return name.replace("~", "~0").replace("/", "~1").replace(" ", "%20").replace("{", "%7B").replace("}", "%7D")


def _closed(node: Any) -> Any:
    """A copy in which a schema that declares an object with members allows no others."""
    if isinstance(node, list):
        return [_closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    copy = {name: _closed(value) for name, value in node.items()}
    if copy.get("type") == "object" and "properties" in copy:
        copy.setdefault("additionalProperties", False)
    return copy
