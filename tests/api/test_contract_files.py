"""The contracts are sound by themselves, and say what the domain does."""

import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, get_args

import msgspec
import pytest
from jsonschema import Draft202012Validator

from switchyard.domain import decisions, errors, events, orders
from switchyard.domain.canonical import digest
from switchyard.domain.chain import GENESIS, head_text, link, stamp
from switchyard.domain.changes import Change
from switchyard.domain.idempotency import KEY_LENGTH_MAX, PLACE_ORDER, LedgerEntry
from switchyard.domain.ids import AccountId, VenueName, WorkerId, order_id, venue_client_id
from switchyard.domain.instruments import Catalogue
from switchyard.domain.lifecycle import Status
from switchyard.domain.outbox import OrderState, OutboxKind, OutboxStatus
from switchyard.domain.reports import ExecutionReport, ReportStatus
from tests.support.contract import OPENAPI, Contract, decoded, documents, problems, registry

REQUEST = "order_request_v1.schema.json"
SNAPSHOT = "order_snapshot_v1.schema.json"
REPORT = "execution_report_v1.schema.json"
EVENT = "bus_event_v1.schema.json"

ACCOUNT = AccountId("acct-1")
VENUE = VenueName("sim")
NOW = datetime(2025, 3, 4, 9, 30, 0, 125, tzinfo=UTC)
ORDER_ID = order_id(1_741_080_600_000, 7)
LIMIT = {"symbol": "BTC", "side": "BUY", "type": "LIMIT", "qty": 2, "price": 64000}
MARKET = {"symbol": "BTC", "side": "SELL", "type": "MARKET", "qty": 2}


# --- the files by themselves


@pytest.mark.parametrize("name", [REQUEST, SNAPSHOT, REPORT, EVENT])
def test_a_schema_file_is_valid_and_goes_by_its_own_name(name: str) -> None:
    schema = documents()[name]
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] == name


@pytest.mark.parametrize("name", [REQUEST, SNAPSHOT, REPORT, EVENT])
def test_the_examples_of_a_schema_file_are_valid(name: str) -> None:
    examples = documents()[name]["examples"]
    assert examples
    for example in examples:
        assert problems(name, example) == []


def test_the_example_events_are_a_real_chain() -> None:
    previous = GENESIS
    for example in documents()[EVENT]["examples"]:
        text, _, _ = json.dumps(example, separators=(",", ":")).rpartition(',"hash"')
        previous = link(previous, text)
        assert example["hash"] == previous


@pytest.mark.parametrize("name", [REQUEST, SNAPSHOT, REPORT, EVENT, OPENAPI])
def test_every_reference_leads_somewhere(name: str) -> None:
    for _, node in _walk(documents()[name]):
        if isinstance(node, dict) and isinstance(node.get("$ref"), str):
            registry().resolver(name).lookup(node["$ref"])


def test_the_openapi_document_is_plain_json() -> None:
    # YAML turns an unquoted time into a date and an unquoted 202 into a number; neither is OpenAPI.
    document = documents()[OPENAPI]
    assert json.loads(json.dumps(document)) == document


def test_the_openapi_document_has_the_structure_of_openapi() -> None:
    found = [f"{error.json_path}: {error.message}" for error in Draft202012Validator(STRUCTURE).iter_errors(_openapi())]
    assert found == []


def test_every_schema_in_the_openapi_document_is_valid() -> None:
    for _, node in _walk(_openapi()):
        if isinstance(node, dict) and isinstance(node.get("schema"), dict):
            Draft202012Validator.check_schema(node["schema"])
    for schema in _openapi()["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)


def test_every_component_is_used() -> None:
    used = {node["$ref"] for _, node in _walk(_openapi()) if isinstance(node, dict) and "$ref" in node}
    for kind, components in _openapi()["components"].items():
        if kind != "securitySchemes":
            assert {f"#/components/{kind}/{name}" for name in components} <= used


def test_operations_have_distinct_ids_and_declare_their_path_parameters() -> None:
    ids = []
    for path, item, _, operation in _operations():
        ids.append(operation["operationId"])
        declared = [_resolved(parameter) for parameter in item.get("parameters", []) + operation.get("parameters", [])]
        assert re.findall(r"{(\w+)}", path) == [each["name"] for each in declared if each["in"] == "path"]
    assert len(set(ids)) == len(ids)


def test_only_health_and_metrics_are_open_to_everyone() -> None:
    open_paths = {path for path, _, _, operation in _operations() if "security" in operation}
    assert open_paths == {"/health", "/metrics"}
    for path, _, _, operation in _operations():
        assert ("401" in operation["responses"]) == (path != "/health")


def test_every_body_parameter_and_header_has_a_valid_example() -> None:
    for pointer, node in _walk(_openapi()):
        if not isinstance(node, dict) or not isinstance(node.get("schema"), dict):
            continue
        examples = [node["example"]] if "example" in node else [each["value"] for each in node["examples"].values()]
        assert examples, pointer
        for example in examples:
            assert problems(f"{OPENAPI}#{pointer}/schema", example) == [], pointer


def test_the_example_answers_pass_the_check_that_real_answers_get() -> None:
    contract = Contract()
    for path, _, method, operation in _operations():
        for status, response in operation["responses"].items():
            for media_type, content in _resolved(response)["content"].items():
                for example in content["examples"].values():
                    value = example["value"]
                    body = value if isinstance(value, str) else json.dumps(value)
                    # A message without its blank line is unfinished, and the check would pass over it.
                    assert media_type != "text/event-stream" or body.endswith("\n\n")
                    contract.check(method, path, int(status), {"content-type": media_type}, body.encode())


# --- the files and the domain


@pytest.mark.parametrize(
    ("reference", "struct"),
    [
        (REQUEST, orders.OrderRequest),
        (SNAPSHOT, orders.OrderSnapshot),
        (REPORT, events.ReportFact),
        (f"{EVENT}#/$defs/orderFact", events.OrderFact),
        (f"{EVENT}#/$defs/outboxFact", events.OutboxFact),
        (f"{EVENT}#/$defs/keyFact", events.KeyFact),
        (f"{EVENT}#/$defs/quote", events.Quote),
        (f"{EVENT}#/$defs/cutFact", events.CutFact),
    ],
)
def test_a_schema_has_the_members_of_its_struct(reference: str, struct: type[msgspec.Struct]) -> None:
    schema = registry().resolver().lookup(reference).contents
    fields = msgspec.structs.fields(struct)
    assert set(schema["properties"]) == {field.encode_name for field in fields}
    assert set(schema["required"]) == {field.encode_name for field in fields if field.required}


@pytest.mark.parametrize(
    ("reference", "literal"),
    [
        (f"{SNAPSHOT}#/$defs/status", Status),
        (f"{SNAPSHOT}#/properties/side", orders.Side),
        (f"{SNAPSHOT}#/properties/type", orders.OrderType),
        (f"{SNAPSHOT}#/properties/timeInForce", orders.TimeInForce),
        (f"{REQUEST}#/properties/side", orders.Side),
        (f"{REQUEST}#/properties/type", orders.OrderType),
        (f"{REPORT}#/properties/status", ReportStatus),
        (f"{EVENT}#/$defs/outboxFact/properties/kind", OutboxKind),
        (f"{EVENT}#/$defs/outboxFact/properties/status", OutboxStatus),
    ],
)
def test_an_enum_lists_what_the_domain_lists(reference: str, literal: Any) -> None:
    assert tuple(registry().resolver().lookup(reference).contents["enum"]) == get_args(literal)


def test_the_known_event_types_are_the_domains() -> None:
    definitions = documents()[EVENT]["$defs"]
    known = [*definitions["orderType"]["enum"], *definitions["knownType"]["anyOf"][1]["enum"]]
    assert sorted(known) == sorted(get_args(events.EventType))


def test_the_bounds_are_the_domains() -> None:
    properties = documents()[REQUEST]["properties"]
    assert properties["symbol"]["maxLength"] == orders.SYMBOL_LENGTH_MAX
    assert properties["tags"]["maxItems"] == orders.TAGS_MAX
    assert properties["tags"]["items"]["maxLength"] == orders.LABEL_LENGTH_MAX
    for name in ("clientOrderId", "strategy"):
        assert properties[name]["anyOf"][0]["maxLength"] == orders.LABEL_LENGTH_MAX
    assert _openapi()["components"]["parameters"]["IdempotencyKey"]["schema"]["maxLength"] == KEY_LENGTH_MAX


def test_every_reason_a_caller_can_meet_is_documented() -> None:
    documented: set[str] = set()
    for _, node in _walk(_openapi()):
        if isinstance(node, dict) and isinstance(node.get("reason"), dict):
            reason = node["reason"]
            documented |= {reason["const"]} if "const" in reason else set(reason.get("enum", ()))
    kinds = [errors.OutcomeUnknown, *_subclasses(errors.RequestError), *_subclasses(errors.Unavailable)]
    # Tokens fail in many ways, so `Unauthorized` brings its reason along and the contract leaves it open.
    assert {vars(kind)["reason"] for kind in kinds if "reason" in vars(kind)} <= documented


@pytest.mark.parametrize(
    "body",
    [
        LIMIT,
        MARKET,
        LIMIT | {"timeInForce": "FOK", "clientOrderId": "a b", "strategy": "s" * 128, "tags": ["t"] * 16},
        LIMIT | {"stopPrice": None, "timeInForce": None, "clientOrderId": None, "strategy": None},
        MARKET | {"price": None},
        LIMIT | {"symbol": "x" * 64, "qty": 999_999_999_999_999},
        LIMIT | {"symbol": "日経225"},
        LIMIT | {"type": "STOP_LIMIT", "stopPrice": 63000},
        LIMIT | {"timeInForce": "DAY"},
    ],
)
def test_what_the_schema_allows_the_domain_takes_or_calls_unsupported(body: dict[str, Any]) -> None:
    assert problems(REQUEST, body) == []
    try:
        _checked(body)
    except errors.Unsupported as error:
        assert error.field in ("type", "timeInForce")


@pytest.mark.parametrize(
    "body",
    [
        {name: value for name, value in LIMIT.items() if name != "price"},
        {name: value for name, value in LIMIT.items() if name != "symbol"},
        LIMIT | {"price": None},
        LIMIT | {"prize": 1},
        LIMIT | {"qty": 0},
        LIMIT | {"qty": -1},
        LIMIT | {"qty": None},
        LIMIT | {"qty": True},
        LIMIT | {"price": 10**15},
        LIMIT | {"side": "buy"},
        LIMIT | {"symbol": ""},
        LIMIT | {"symbol": "x" * 65},
        LIMIT | {"symbol": "BTC\n"},
        LIMIT | {"strategy": "s" * 129},
        LIMIT | {"clientOrderId": ""},
        LIMIT | {"clientOrderId": "\x7f"},
        LIMIT | {"tags": ["t"] * 17},
        LIMIT | {"tags": [""]},
        LIMIT | {"tags": None},
        LIMIT | {"timeInForce": "GTD"},
        LIMIT | {"stopPrice": 63000},
        MARKET | {"price": 64000},
    ],
)
def test_what_the_schema_forbids_the_domain_refuses(body: dict[str, Any]) -> None:
    assert problems(REQUEST, body) != []
    with pytest.raises((msgspec.ValidationError, errors.InvalidField)) as caught:
        _checked(body)
    assert not isinstance(caught.value, errors.Unsupported)


def test_everything_that_can_happen_to_an_order_makes_valid_events() -> None:
    seen = set()
    for change in _story():
        for order in change.orders:
            assert problems(SNAPSHOT, decoded(events.encode(orders.snapshot(order)))) == []
        for event in change.events:
            line = _line(event)
            assert problems(EVENT, decoded(line)) == [], line
            seen.add(event.type)
    assert seen == set(get_args(events.EventType))


@pytest.mark.parametrize("change", range(9))
def test_an_event_with_a_member_missing_or_undocumented_is_not_valid(change: int) -> None:
    event = decoded(_line(_story()[change].events[0]))
    for name in event:
        assert problems(EVENT, {key: value for key, value in event.items() if key != name}) != []
    for name in set(event["data"]) - {"outbox", "venueClientId", "idempotency", "quote", "position"}:
        assert problems(EVENT, event | {"data": {key: value for key, value in event["data"].items() if key != name}})
    assert problems(EVENT, event | {"extra": 1}) != []
    assert problems(EVENT, event | {"data": event["data"] | {"extra": 1}}) != []


def test_an_event_of_an_unknown_type_is_valid_with_any_data() -> None:
    event = decoded(_line(_story()[0].events[0]))
    assert problems(EVENT, event | {"type": "OperatorDecision", "orderId": None, "data": {"by": "ops"}}) == []
    assert problems(EVENT, event | {"data": {"by": "ops"}}) != []


# --- the check itself

STREAM = {"content-type": "text/event-stream"}
HEALTH = ("GET", "/health", 200, {"Content-Type": "application/json"}, b'{"status":"ok"}')


def test_the_operations_are_the_gateways() -> None:
    assert Contract().operations() == {
        ("GET", "/health"),
        ("POST", "/orders"),
        ("GET", "/orders"),
        ("GET", "/orders/{orderId}"),
        ("POST", "/orders/{orderId}/cancel"),
        ("GET", "/orders/{orderId}/events"),
        ("GET", "/orders/{orderId}/stream"),
        ("GET", "/accounts/{accountId}/events"),
        ("GET", "/stream"),
        ("GET", "/metrics"),
    }


def test_an_answer_that_keeps_the_contract_passes() -> None:
    contract = Contract()
    contract.check(*HEALTH)
    headers = {"content-type": "application/json; charset=utf-8", "retry-after": "1"}
    contract.check(
        "post", f"/orders/{ORDER_ID}/cancel?x=/", 503, headers, b'{"status":"UNKNOWN","reason":"OUTCOME_UNKNOWN"}'
    )
    prometheus = {"content-type": "text/plain; version=0.0.4; charset=utf-8"}
    contract.check("GET", "/metrics", 200, prometheus, b"up 1\n")
    unfinished = b': keepalive\n\nevent: ready\ndata: {"accountId":"a"}\n\nevent: order_update\ndata: {'
    contract.check("GET", "/stream?lastEventId=1", 200, STREAM, unfinished)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (("GET", "/nowhere", *HEALTH[2:]), "/nowhere is not in the contract"),
        (("DELETE", *HEALTH[1:]), "DELETE /health is not in the contract"),
        (("GET", "/health", 500, *HEALTH[3:]), "status 500 is not documented"),
        ((*HEALTH[:3], {"content-type": "text/html"}, b"ok"), "content type 'text/html'"),
        ((*HEALTH[:3], {}, b"ok"), "content type ''"),
        ((*HEALTH[:4], b'{"status":"fine"}'), r"\$\.status: 'ok' was expected"),
        ((*HEALTH[:4], b'{"status":"ok","uptime":3}'), "'uptime' was unexpected"),
        (("GET", "/metrics", 200, {"content-type": "text/plain"}, b""), "content type 'text/plain'"),
        (
            ("POST", "/orders", 503, HEALTH[3], b'{"status":"UNKNOWN","reason":"QUEUE_REJECT"}'),
            "not valid under any of the given schemas",
        ),
        (
            ("POST", "/orders", 202, HEALTH[3] | {"Idempotent-Replayed": "yes"}, b"{}"),
            "Idempotent-Replayed header: .*'true' was expected",
        ),
        (
            ("GET", "/stream", 200, STREAM, b'event: hello\ndata: {"a":1}\n\n'),
            "message 'hello' is not documented",
        ),
        (
            (
                "GET",
                f"/orders/{ORDER_ID}/stream",
                200,
                {"content-type": "text/event-stream"},
                b"event: ready\ndata: {}\n\n",
            ),
            "ready: .*'orderId' is a required property",
        ),
    ],
)
def test_an_answer_that_breaks_the_contract_is_named(answer: tuple[Any, ...], complaint: str) -> None:
    with pytest.raises(AssertionError, match=complaint):
        Contract().check(*answer)


# --- support


def _openapi() -> Any:
    return documents()[OPENAPI]


def _walk(node: Any, pointer: str = "") -> Iterator[tuple[str, Any]]:
    """Every node but those within examples, which are data."""
    yield pointer, node
    children = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for name, child in children:
        if name not in ("example", "examples"):
            step = str(name).replace("~", "~0").replace("/", "~1").replace(" ", "%20")
            yield from _walk(child, f"{pointer}/{step}")


def _operations() -> Iterator[tuple[str, Any, str, Any]]:
    for path, item in _openapi()["paths"].items():
        for method, operation in item.items():
            if method != "parameters":
                yield path, item, method, operation


def _resolved(node: Any) -> Any:
    return registry().resolver(OPENAPI).lookup(node["$ref"]).contents if "$ref" in node else node


def _subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)


def _checked(body: dict[str, Any]) -> orders.OrderRequest:
    request = msgspec.json.decode(json.dumps(body), type=orders.OrderRequest)
    return orders.checked(request, Catalogue())


def _line(event: events.Event) -> str:
    text = head_text(1, 0, 1, stamp(NOW)) + event.tail
    return events.JournalEvent(1, NOW, event.type, event.account_id, event.order_id, text, link(GENESIS, text)).line


def _story() -> list[Change]:
    """Changes that together have every type of event and every member of their data."""
    key = "rebalance-17-1"
    client_id = venue_client_id(ACCOUNT, PLACE_ORDER, key, 0, ORDER_ID)
    ledger = LedgerEntry(
        account_id=ACCOUNT,
        operation=PLACE_ORDER,
        idempotency_key=key,
        generation=0,
        order_id=ORDER_ID,
        request_digest=digest(LIMIT),
        created_at=NOW,
        expires_at=NOW + timedelta(hours=24),
    )
    report = ExecutionReport(
        exec_id="sim-42-1",
        venue=VENUE,
        venue_client_id=client_id,
        venue_order_id="sim-42",
        status="PARTIALLY_FILLED",
        last_qty=Decimal(1),
        last_price=Decimal("63990.00000001"),
        filled_qty_total=Decimal(1),
        at=NOW,
    )
    accepted = decisions.accept(
        _checked(LIMIT | {"tags": ["hedge"]}),
        account=ACCOUNT,
        order_id=ORDER_ID,
        venue=VENUE,
        venue_client_id=client_id,
        ledger=ledger,
        quote=events.Quote(bid=Decimal("63985.5"), ask=Decimal(63990)),
        now=NOW,
    )
    bare = decisions.accept(
        _checked(MARKET),
        account=ACCOUNT,
        order_id=ORDER_ID,
        venue=VENUE,
        venue_client_id=client_id,
        ledger=None,
        quote=None,
        now=NOW,
    )
    sending = decisions.begin_attempt(_after(accepted), accepted.outbox[0], WorkerId("worker-1"), NOW)
    sent = decisions.record_sent(_after(sending), sending.outbox[0], "sim-42", NOW)
    filled = decisions.apply_report(_after(sent), None, report, NOW)
    cancel = decisions.request_cancel(_after(filled, sent), NOW)
    assert cancel is not None
    cancel_sent = decisions.record_sent(_after(cancel), cancel.outbox[0], None, NOW)
    doubt = decisions.record_doubt(_after(sending), sending.outbox[0], "ReadTimeout", None, NOW)
    refused = decisions.record_refused(_after(sending), sending.outbox[0], "BROKER_REJECTED", NOW)
    cut = events.event(
        "AuditFileCut", events.SYSTEM_ACCOUNT, None, events.CutFact(path="audit.log", expected_seq=2, found_seq=1)
    )
    return [
        accepted,
        sending,
        sent,
        filled,
        cancel,
        cancel_sent,
        doubt,
        decisions.unmatched_report(report),
        Change(events=(cut,)),
        bare,
        refused,
    ]


def _after(change: Change, rows: Change | None = None) -> OrderState:
    return OrderState(order=change.orders[0], outbox=(rows or change).outbox)


# --- what of OpenAPI 3.1 is used here, closed, so that a misspelt keyword does not pass for an extension


def _object(required: dict[str, Any], optional: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "required": list(required),
        "properties": required | optional,
        "additionalProperties": False,
    }


def _map(value: Any, names: str = "^") -> dict[str, Any]:
    return {"type": "object", "minProperties": 1, "patternProperties": {names: value}, "additionalProperties": False}


def _or_reference(value: Any) -> dict[str, Any]:
    return {"if": {"required": ["$ref"]}, "then": _object({"$ref": TEXT}, {}), "else": value}


TEXT = {"type": "string", "minLength": 1}
SCHEMA = {"type": "object"}
SECURITY = {"type": "array", "items": {"type": "object", "additionalProperties": {"type": "array"}}}
MEDIA_TYPES = _map(
    _object(
        {"schema": SCHEMA, "examples": _map(_object({"value": True}, {"summary": TEXT}))},
        {"x-messages": _map(_object({"$ref": TEXT}, {}))},
    ),
    "^[a-z]+/[a-z-]+",
)
HEADER = _object({"description": TEXT, "schema": SCHEMA, "example": True}, {"required": {"type": "boolean"}})
PARAMETER = _object(
    {"name": TEXT, "in": {"enum": ["path", "query", "header"]}, "schema": SCHEMA, "example": True},
    {"description": TEXT, "required": {"const": True}, "style": {"const": "form"}, "explode": {"type": "boolean"}},
) | {"if": {"properties": {"in": {"const": "path"}}}, "then": {"required": ["required"]}}
PARAMETERS = {"type": "array", "items": _or_reference(PARAMETER)}
RESPONSE = _object({"description": TEXT, "content": MEDIA_TYPES}, {"headers": _map(_or_reference(HEADER))})
OPERATION = _object(
    {
        "operationId": TEXT,
        "tags": {"type": "array", "items": {"enum": ["orders", "events", "streams", "operations"]}},
        "summary": TEXT,
        "responses": _map(_or_reference(RESPONSE), "^[1-5][0-9]{2}$"),
    },
    {
        "description": TEXT,
        "security": SECURITY,
        "parameters": PARAMETERS,
        "requestBody": _object({"content": MEDIA_TYPES}, {"required": {"const": True}, "description": TEXT}),
    },
)
STRUCTURE = _object(
    {
        "openapi": {"const": "3.1.0"},
        "jsonSchemaDialect": {"const": "https://json-schema.org/draft/2020-12/schema"},
        "info": _object({"title": TEXT, "version": TEXT, "summary": TEXT, "description": TEXT}, {}),
        "servers": {"type": "array", "items": _object({"url": TEXT}, {})},
        "security": SECURITY,
        "tags": {"type": "array", "items": _object({"name": TEXT, "description": TEXT}, {})},
        "paths": _map(_object({}, {"parameters": PARAMETERS, "get": OPERATION, "post": OPERATION}), "^/"),
        "components": _object(
            {
                "securitySchemes": _map(SCHEMA),
                "parameters": _map(PARAMETER),
                "headers": _map(HEADER),
                "responses": _map(RESPONSE),
                "schemas": _map(SCHEMA),
            },
            {},
        ),
    },
    {},
)
