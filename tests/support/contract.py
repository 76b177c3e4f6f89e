"""Checks answers against the files in `contracts/`.

    contract = Contract()
    contract.check("GET", "/orders/ord_…?x=y", response.status_code, response.headers, response.content)

Every violation is an AssertionError that names the operation and the position in the body.
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
ROOT_SERVER = ({"url": "/"},)
METHODS = frozenset({"get", "put", "post", "delete", "options", "head", "patch", "trace"})


@cache
def documents() -> dict[str, Any]:
    """Return every file of the folder by its name; references between the files use these names."""
    loaded = {path.name: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.schema.json"))}
    loaded[OPENAPI] = yaml.safe_load((FOLDER / OPENAPI).read_text())
    return loaded


@cache
def registry() -> "Registry[Any]":
    """Return the files for resolving references, with every object closed.

    The published schemas allow additional members in answers, so that a later version can add some. A test must fail
    on an undocumented member.
    """
    resources = [(name, DRAFT202012.create_resource(_closed(content))) for name, content in documents().items()]
    return Registry().with_resources(resources)


def problems(reference: str, value: object) -> list[str]:
    """Validate a value against the schema at `file#/json/pointer`; returns each problem with its position."""
    validator = Draft202012Validator(
        {"$ref": reference}, registry=registry(), format_checker=Draft202012Validator.FORMAT_CHECKER
    )
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]


def decoded(body: bytes | str) -> Any:
    """Parse JSON with exact decimals."""
    return json.loads(body, parse_float=Decimal)


def messages(stream: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the data of every complete message of an event stream.

    This is not the client's parser: a defect that server and client share must fail here.
    """
    *frames, _unfinished = re.split(r"\r?\n\r?\n", stream)
    for frame in frames:
        pairs = [line.partition(": ") for line in frame.splitlines() if not line.startswith(":")]
        data = [value for name, _, value in pairs if name == "data"]
        names = [value for name, _, value in pairs if name == "event"]
        if data:
            yield (names or ["message"])[-1], "\n".join(data)


class Contract:
    """The OpenAPI document, to check answers against."""

    def __init__(self) -> None:
        paths = documents()[OPENAPI]["paths"]
        # Paths with fewer template segments take precedence, as in OpenAPI.
        self._paths: list[str] = sorted(paths, key=lambda path: path.count("{"))
        self._operations = {
            (method.upper(), path) for path, item in paths.items() for method in item if method in METHODS
        }
        # A path that names no server is one of the gateway's.
        self._servers = {
            path: [each["url"] for each in item.get("servers", ROOT_SERVER)] for path, item in paths.items()
        }

    def operations(self, *, of_backoffice: bool | None = None) -> set[tuple[str, str]]:
        """Return every documented (METHOD, path template), or only those of one of the two servers."""
        return {
            (method, path)
            for method, path in self._operations
            if of_backoffice is None or any((url != "/") == of_backoffice for url in self._servers[path])
        }

    def check(self, method: str, path: str, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Assert that the operation documents this answer: status, headers, content type and body.

        In an event stream every complete message is checked.
        """
        template = self._template(method, path)
        operation = f"{method.upper()} {template} {status}"
        response = self._response(method, template, status)
        documented = _at(response)
        by_name = {name.lower(): value for name, value in headers.items()}
        for name in documented.get("headers", {}):
            self._check_header(operation, name, f"{response}/headers/{_escaped(name)}", by_name.get(name.lower()))
        content_type = by_name.get("content-type", "")
        offered = documented.get("content", {})
        media_type = next((key for key in offered if _is_media_type(content_type, key)), None)
        assert media_type is not None, f"{operation}: content type {content_type!r}, documented {sorted(offered)}"
        self._check_body(operation, f"{response}/content/{_escaped(media_type)}", media_type, body)

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

    def _check_header(self, operation: str, name: str, pointer: str, text: str | None) -> None:
        target = _followed(pointer)
        header = _at(target)
        if text is None:
            assert not header.get("required"), f"{operation}: no {name} header"
            return
        value = int(text) if header["schema"].get("type") == "integer" and text.isdecimal() else text
        violations = problems(f"{OPENAPI}#{target}/schema", value)
        assert not violations, f"{operation}: {name} header: {'; '.join(violations)}"

    def _check_body(self, operation: str, pointer: str, media_type: str, body: bytes) -> None:
        if media_type == "application/json":
            violations = problems(f"{OPENAPI}#{pointer}/schema", decoded(body))
            assert not violations, f"{operation}: {'; '.join(violations)}\n{body.decode()}"
            return
        text = body.decode()
        if media_type != "text/event-stream":
            return
        for name, data in messages(text):
            assert name in _at(pointer)["x-messages"], f"{operation}: message {name!r} is not documented"
            violations = problems(f"{OPENAPI}#{pointer}/x-messages/{name}", decoded(data))
            assert not violations, f"{operation}: {name}: {'; '.join(violations)}\n{data}"


def _matches(template: str, path: str) -> bool:
    return re.fullmatch(re.sub(r"\\{[^/]+?\\}", "[^/]+", re.escape(template)), path) is not None


def _is_media_type(actual: str, documented: str) -> bool:
    """Whether the type is the same with every documented parameter; the answer may have more, such as charset."""
    actual_type, documented_type = _media_type(actual), _media_type(documented)
    return actual_type[0] == documented_type[0] and documented_type[1].items() <= actual_type[1].items()


def _media_type(text: str) -> tuple[str, dict[str, str]]:
    message = Message()
    message["content-type"] = text
    (name, _), *parameters = message.get_params(failobj=[("", "")])
    return name.lower(), dict(parameters)


def _at(pointer: str) -> Any:
    return registry().resolver().lookup(f"{OPENAPI}#{pointer}").contents


def _followed(pointer: str) -> str:
    """Return the pointer, or the target of its reference: responses and headers may be under components."""
    reference = _at(pointer).get("$ref")
    return pointer if reference is None else str(reference).removeprefix("#")


def _escaped(name: str) -> str:
    """Escape a name as one step of a JSON pointer within a URI."""
    return name.replace("~", "~0").replace("/", "~1").replace(" ", "%20").replace("{", "%7B").replace("}", "%7D")


def _closed(node: Any) -> Any:
    """Copy a schema so that objects with declared members allow no others."""
    if isinstance(node, list):
        return [_closed(item) for item in node]
    if not isinstance(node, dict):
        return node
    copy = {name: _closed(value) for name, value in node.items()}
    if copy.get("type") == "object" and "properties" in copy:
        copy.setdefault("additionalProperties", False)
    return copy
