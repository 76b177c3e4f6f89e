"""The names of the files in `contracts/`, and iteration over the OpenAPI document."""

from collections.abc import Iterator
from typing import Any

from tests.support.contract import METHODS, OPENAPI, documents, registry

REQUEST = "order_request_v1.schema.json"
SNAPSHOT = "order_snapshot_v1.schema.json"
REPORT = "execution_report_v1.schema.json"
EVENT = "bus_event_v1.schema.json"
DO_REQUEST = "order_request_v1_1.schema.json"
RESULT = "exec_result_v1.schema.json"
CANARY = "canary_result_v1.schema.json"


def openapi() -> Any:
    return documents()[OPENAPI]


def walk(node: Any, pointer: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every node with its JSON pointer, without the contents of examples."""
    yield pointer, node
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, child in children:
        if name not in ("example", "examples"):
            step = str(name).replace("~", "~0").replace("/", "~1").replace(" ", "%20")
            yield from walk(child, f"{pointer}/{step}")


def operations() -> Iterator[tuple[str, Any, str, Any]]:
    for path, item in openapi()["paths"].items():
        for method, operation in item.items():
            if method in METHODS:
                yield path, item, method, operation


def resolved(node: Any) -> Any:
    return registry().resolver(OPENAPI).lookup(node["$ref"]).contents if "$ref" in node else node
