"""Combines the files in `contracts/` into one OpenAPI document.

Client generators and documentation tools do not follow references to other files. Each schema file, and each of its
`$defs`, becomes a component schema; every reference points to it. Reads the files once.
"""

import json
import re
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

OPENAPI = "openapi.yaml"
# A link to the folder in the repository; a built package contains a copy of its files.
_FOLDER = files("switchyard.entrypoints.http.reference") / "contracts"
# Keywords of a schema that is a file of its own; a component must not have them.
_FILE_KEYWORDS = frozenset({"$schema", "$id", "$defs"})


@cache
def document() -> dict[str, Any]:
    """The whole contract without references to files; callers must not change it."""
    openapi = yaml.safe_load((_FOLDER / OPENAPI).read_text(encoding="utf-8"))
    schemas = {
        each.name: json.loads(each.read_text(encoding="utf-8"))
        for each in sorted(_FOLDER.iterdir(), key=lambda each: each.name)
        if each.name.endswith(".schema.json")
    }
    return _bundled(openapi, schemas)


@cache
def as_json() -> bytes:
    """The document as JSON."""
    return json.dumps(document(), ensure_ascii=False, separators=(",", ":")).encode()


@cache
def as_yaml() -> bytes:
    """The document as YAML."""
    return _yaml(document()).encode()


def _bundled(openapi: dict[str, Any], schemas: dict[str, Any]) -> dict[str, Any]:
    names = _component_names(schemas)
    bundled: dict[str, Any] = _rewritten(openapi, OPENAPI, names)
    components = bundled["components"]["schemas"]
    for (file, pointer), name in names.items():
        if name in components:
            raise ValueError(f"{file}{pointer}: the contract has two schemas with the name {name}")
        schema = schemas[file]["$defs"][pointer.removeprefix("#/$defs/")] if pointer else schemas[file]
        component = _rewritten(schema, file, names)
        components[name] = {key: value for key, value in component.items() if key not in _FILE_KEYWORDS}
    return bundled


def _component_names(schemas: dict[str, Any]) -> dict[tuple[str, str], str]:
    """The component's name of each file and of each of its definitions, by file and pointer."""
    names: dict[tuple[str, str], str] = {}
    for file, schema in schemas.items():
        title = _identifier(schema["title"])
        names[file, ""] = title
        for definition in schema.get("$defs", {}):
            names[file, f"#/$defs/{definition}"] = title + definition[0].upper() + definition[1:]
    return names


def _identifier(title: str) -> str:
    """A title as a component's name: `OrderRequest v1.1` becomes `OrderRequestV1_1`."""
    return "".join(word[0].upper() + re.sub(r"\W", "_", word[1:]) for word in title.split())


def _rewritten(node: Any, file: str, names: dict[tuple[str, str], str]) -> Any:
    """A copy of the node in which references to files are references to components."""
    if isinstance(node, list):
        return [_rewritten(each, file, names) for each in node]
    if not isinstance(node, dict):
        return node
    copy = {key: _rewritten(value, file, names) for key, value in node.items()}
    reference = copy.get("$ref")
    if isinstance(reference, str):
        target, separator, pointer = reference.partition("#")
        name = names.get((target or file, separator + pointer))
        if name is not None:
            copy["$ref"] = f"#/components/schemas/{name}"
        elif target:
            raise ValueError(f"{file}: the reference {reference} points to no schema of the contract")
    return copy


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as blocks, and shares no nodes by anchors."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Dumper.add_representer(str, _represent_text)


def _yaml(value: Any) -> str:
    return yaml.dump(value, Dumper=_Dumper, allow_unicode=True, sort_keys=False, width=120)
