"""Iteration over an OpenAPI document without references to other files."""

from collections.abc import Iterator
from typing import Any

from tests.support.contract_files import walk


def references(document: Any) -> Iterator[str]:
    for _, node in walk(document):
        if isinstance(node, dict) and isinstance(node.get("$ref"), str):
            yield node["$ref"]


def body_examples(document: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the pointer, the schema and the value of every example of a body, parameter, header or schema."""
    for pointer, node in walk(document):
        if not isinstance(node, dict):
            continue
        if isinstance(node.get("schema"), dict):
            examples = [node["example"]] if "example" in node else [each["value"] for each in node["examples"].values()]
            for example in examples:
                yield pointer, node["schema"], example
        elif isinstance(node.get("examples"), list):
            for example in node["examples"]:
                yield pointer, node, example
