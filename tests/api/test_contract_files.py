"""The contract files: valid schemas, valid examples, resolvable references."""

import json
import re

import pytest
from jsonschema import Draft202012Validator

from switchyard.domain.journal.lines import GENESIS, link
from tests.support.contract import OPENAPI, Contract, documents, problems, registry
from tests.support.contract_files import (
    CANARY,
    DO_REQUEST,
    EVENT,
    REPORT,
    REQUEST,
    RESULT,
    SNAPSHOT,
    openapi,
    operations,
    resolved,
    walk,
)
from tests.support.openapi_structure import STRUCTURE

HEALTH_PATHS = ("/health", "/health/live", "/health/ready")
SCHEMAS = [REQUEST, SNAPSHOT, REPORT, EVENT, DO_REQUEST, RESULT, CANARY]


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_file_is_valid_and_its_id_is_its_name(name: str) -> None:
    schema = documents()[name]
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] == name


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_examples_of_a_schema_file_are_valid(name: str) -> None:
    examples = documents()[name]["examples"]
    assert examples
    for example in examples:
        assert problems(name, example) == []


@pytest.mark.parametrize("name", SCHEMAS)
def test_a_schema_file_validates_alone(name: str) -> None:
    """A reader of the bus copies one file: it must not need another one beside it."""
    schema = documents()[name]
    for example in schema["examples"]:
        Draft202012Validator(schema).validate(example)
    references = [node["$ref"] for _, node in walk(schema) if isinstance(node, dict) and "$ref" in node]
    assert [each for each in references if not each.startswith("#")] == []


def test_a_definition_that_several_files_have_is_the_same_in_all() -> None:
    seen: dict[str, object] = {}
    for name in SCHEMAS:
        for definition, schema in documents()[name].get("$defs", {}).items():
            assert seen.setdefault(definition, schema) == schema, f"{name}: {definition}"


def test_the_example_events_form_a_hash_chain() -> None:
    previous = GENESIS
    for example in documents()[EVENT]["examples"]:
        text, _, _ = json.dumps(example, separators=(",", ":")).rpartition(',"hash"')
        previous = link(previous, text)
        assert example["hash"] == previous


@pytest.mark.parametrize("name", [*SCHEMAS, OPENAPI])
def test_every_reference_resolves(name: str) -> None:
    for _, node in walk(documents()[name]):
        if isinstance(node, dict) and isinstance(node.get("$ref"), str):
            registry().resolver(name).lookup(node["$ref"])


def test_the_openapi_document_is_plain_json() -> None:
    # YAML turns an unquoted time into a date and an unquoted 202 into a number; neither is OpenAPI.
    document = documents()[OPENAPI]
    assert json.loads(json.dumps(document)) == document


def test_the_openapi_document_has_the_structure_of_openapi() -> None:
    found = [f"{error.json_path}: {error.message}" for error in Draft202012Validator(STRUCTURE).iter_errors(openapi())]
    assert found == []


def test_every_schema_in_the_openapi_document_is_valid() -> None:
    for _, node in walk(openapi()):
        if isinstance(node, dict) and isinstance(node.get("schema"), dict):
            Draft202012Validator.check_schema(node["schema"])
    for schema in openapi()["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_every_component_is_used() -> None:
    used = {node["$ref"] for _, node in walk(openapi()) if isinstance(node, dict) and "$ref" in node}
    for kind, components in openapi()["components"].items():
        if kind != "securitySchemes":
            assert {f"#/components/{kind}/{name}" for name in components} <= used


def test_operations_have_distinct_ids_and_declare_their_path_parameters() -> None:
    ids = []
    for path, item, _, operation in operations():
        ids.append(operation["operationId"])
        declared = [resolved(parameter) for parameter in item.get("parameters", []) + operation.get("parameters", [])]
        assert re.findall(r"{(\w+)}", path) == [each["name"] for each in declared if each["in"] == "path"]
    assert len(set(ids)) == len(ids)


def test_only_health_metrics_pages_and_do_order_are_open_to_everyone() -> None:
    pages = {"/", "/docs", "/docs/reference.css", "/openapi.json", "/openapi.yaml", "/dashboard", "/dashboard/{file}"}
    open_paths = {path for path, _, _, operation in operations() if operation.get("security") in ([], [{}])}
    signed = "/pdca/artifacts/{request_id}/{strategy_id}/{name}"
    partly = {path for path, _, _, operation in operations() if {} in operation.get("security", [])}
    assert open_paths | partly == {*HEALTH_PATHS, "/metrics", "/do/order", signed, *pages}
    for path, _, _, operation in operations():
        assert ("401" in operation["responses"]) == (path not in {*HEALTH_PATHS, *pages})


def test_every_body_parameter_and_header_has_a_valid_example() -> None:
    for pointer, node in walk(openapi()):
        if not isinstance(node, dict) or not isinstance(node.get("schema"), dict):
            continue
        examples = [node["example"]] if "example" in node else [each["value"] for each in node["examples"].values()]
        assert examples, pointer
        for example in examples:
            assert problems(f"{OPENAPI}#{pointer}/schema", example) == [], pointer


def test_the_example_answers_pass_the_contract_check() -> None:
    contract = Contract()
    for path, _, method, operation in operations():
        for status, response in operation["responses"].items():
            documented = resolved(response)
            headers = {name: resolved(header)["example"] for name, header in documented.get("headers", {}).items()}
            for media_type, content in documented["content"].items():
                for example in content["examples"].values():
                    value = example["value"]
                    body = value if isinstance(value, str) else json.dumps(value)
                    # The check skips an unfinished message, so each example must end with a blank line.
                    assert media_type != "text/event-stream" or body.endswith("\n\n")
                    sent = {**{name: str(value) for name, value in headers.items()}, "content-type": media_type}
                    contract.check(method, path, int(status), sent, body.encode())
