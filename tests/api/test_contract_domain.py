"""The contracts agree with the domain: structs, enums, limits, error codes, accepted requests and events."""

from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest

from switchyard.domain import errors, values
from switchyard.domain.ids import VenueName
from switchyard.domain.journal import events, facts
from switchyard.domain.market import quotes
from switchyard.domain.market.instruments import Instrument, InstrumentKind
from switchyard.domain.orders import do_order, order, reports
from switchyard.domain.orders.keys import KEY_LENGTH_MAX
from switchyard.domain.orders.lifecycle import Status
from switchyard.domain.orders.outbox import OutboxKind, OutboxStatus
from switchyard.domain.orders.reports import ExecType, ReportStatus
from tests.support.contract import OPENAPI, decoded, documents, problems, registry
from tests.support.contract_files import DO_REQUEST, EVENT, REPORT, REQUEST, RESULT, SNAPSHOT, openapi, walk
from tests.support.order_story import LIMIT, MARKET, checked, line_of, story


@pytest.mark.parametrize(
    ("reference", "struct"),
    [
        (REQUEST, order.OrderRequest),
        (SNAPSHOT, order.OrderSnapshot),
        (REPORT, reports.OrderReport),
        (f"{EVENT}#/$defs/acceptedFact", facts.AcceptedFact),
        (f"{EVENT}#/$defs/acceptedOrder", facts.AcceptedOrder),
        (f"{EVENT}#/$defs/orderFact", facts.OrderFact),
        (f"{EVENT}#/$defs/orderChange", facts.OrderChange),
        (f"{EVENT}#/$defs/reportFact", facts.ReportFact),
        (f"{EVENT}#/$defs/positionFact", facts.PositionFact),
        (f"{EVENT}#/$defs/outboxFact", facts.OutboxFact),
        (f"{EVENT}#/$defs/doubtFact", facts.DoubtFact),
        (f"{EVENT}#/$defs/keyFact", facts.KeyFact),
        (f"{EVENT}#/$defs/resultFact", facts.ResultFact),
        (f"{EVENT}#/$defs/quote", facts.Quote),
        (f"{EVENT}#/$defs/cutFact", facts.CutFact),
        (f"{EVENT}#/$defs/setAsideFact", facts.SetAsideFact),
        (f"{EVENT}#/$defs/epochFact", facts.EpochFact),
        (f"{EVENT}#/$defs/killFact", facts.KillFact),
        (f"{EVENT}#/$defs/killClearedFact", facts.KillClearedFact),
        (DO_REQUEST, do_order.DoOrderRequest),
        (f"{DO_REQUEST}#/$defs/riskConstraints", do_order.RiskConstraints),
        (f"{OPENAPI}#/components/schemas/MarketQuote", quotes.MarketQuote),
        (RESULT, do_order.ExecResult),
        (f"{RESULT}#/$defs/fill", do_order.DoFill),
    ],
)
def test_a_schema_has_the_members_of_its_struct(reference: str, struct: type[msgspec.Struct]) -> None:
    schema = registry().resolver().lookup(reference).contents
    fields = msgspec.structs.fields(struct)
    assert set(schema["properties"]) == {field.encode_name for field in fields}
    assert set(schema.get("required", ())) == {field.encode_name for field in fields if field.required}


@pytest.mark.parametrize(
    ("reference", "literal"),
    [
        (f"{SNAPSHOT}#/$defs/status", Status),
        (f"{SNAPSHOT}#/properties/side", order.Side),
        (f"{SNAPSHOT}#/properties/type", order.OrderType),
        (f"{SNAPSHOT}#/properties/timeInForce", order.TimeInForce),
        (f"{REQUEST}#/properties/side", order.Side),
        (f"{REQUEST}#/properties/type", order.OrderType),
        (f"{REPORT}#/properties/status", ReportStatus),
        (f"{REPORT}#/properties/execType", ExecType),
        (f"{REPORT}#/properties/side", order.Side),
        (f"{EVENT}#/$defs/acceptedOrder/properties/side", order.Side),
        (f"{EVENT}#/$defs/acceptedOrder/properties/type", order.OrderType),
        (f"{EVENT}#/$defs/acceptedOrder/properties/timeInForce", order.TimeInForce),
        (f"{EVENT}#/$defs/reportFact/properties/status", ReportStatus),
        (f"{EVENT}#/$defs/reportFact/properties/execType", ExecType),
        (f"{EVENT}#/$defs/outboxFact/properties/kind", OutboxKind),
        (f"{EVENT}#/$defs/outboxFact/properties/status", OutboxStatus),
        (f"{RESULT}#/properties/status", do_order.ResultStatus),
    ],
)
def test_an_enum_has_the_values_of_the_domain(reference: str, literal: Any) -> None:
    assert tuple(registry().resolver().lookup(reference).contents["enum"]) == get_args(literal)


def test_the_schema_of_an_instrument_has_every_property_of_the_catalogue() -> None:
    schema = openapi()["components"]["schemas"]["Instrument"]
    listed = quotes.as_listed(Instrument(symbol="BTC"), VenueName("sim"))
    assert list(schema["properties"]) == schema["required"] == list(listed)
    assert tuple(schema["properties"]["kind"]["enum"]) == get_args(InstrumentKind)


def test_the_event_types_are_those_of_the_domain() -> None:
    definitions = documents()[EVENT]["$defs"]
    known = [*definitions["orderType"]["enum"], *definitions["knownType"]["anyOf"][1]["enum"]]
    assert sorted(known) == sorted(get_args(events.EventType))


def test_the_limits_are_those_of_the_domain() -> None:
    properties = documents()[REQUEST]["properties"]
    assert properties["symbol"]["pattern"] == f"^{values.SYMBOL.pattern}$"
    assert properties["symbol"]["maxLength"] == values.SYMBOL_LENGTH_MAX
    assert properties["tags"]["maxItems"] == order.TAGS_MAX
    assert properties["tags"]["items"]["maxLength"] == values.LABEL_LENGTH_MAX
    assert properties["clientOrderId"]["anyOf"][0]["maxLength"] == values.LABEL_LENGTH_MAX
    assert properties["strategy"]["anyOf"][0]["pattern"] == f"^{values.STRATEGY.pattern}$"
    assert openapi()["components"]["parameters"]["IdempotencyKey"]["schema"]["maxLength"] == KEY_LENGTH_MAX


def test_every_error_code_is_documented() -> None:
    documented: set[str] = set()
    for _, node in walk(openapi()):
        for reason in (node.get("reason"), node.get("error")) if isinstance(node, dict) else ():
            if isinstance(reason, dict):
                documented |= {reason["const"]} if "const" in reason else set(reason.get("enum", ()))
    kinds = [errors.OutcomeUnknown, *_subclasses(errors.RequestError), *_subclasses(errors.Unavailable)]
    # `Unauthorized` gets its code from the token check, and the contract does not list those codes.
    assert {vars(kind)["reason"] for kind in kinds if "reason" in vars(kind)} <= documented


@pytest.mark.parametrize(
    "body",
    [
        LIMIT,
        MARKET,
        LIMIT | {"timeInForce": "FOK", "clientOrderId": "a b", "strategy": "s" * 64, "tags": ["t"] * 16},
        LIMIT | {"stopPrice": None, "timeInForce": None, "clientOrderId": None, "strategy": None},
        MARKET | {"price": None},
        LIMIT | {"symbol": "X" * 32, "qty": 999_999_999_999_999},
        LIMIT | {"symbol": "NIKKEI/225:X.1-A", "clientOrderId": "日経225"},
        LIMIT | {"type": "STOP_LIMIT", "stopPrice": 63000},
        MARKET | {"type": "STOP", "stopPrice": 63000, "timeInForce": "DAY"},
        LIMIT | {"timeInForce": "DAY"},
    ],
)
def test_a_body_that_the_schema_allows_is_accepted(body: dict[str, Any]) -> None:
    assert problems(REQUEST, body) == []
    checked(body)


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
        LIMIT | {"symbol": "X" * 33},
        LIMIT | {"symbol": "BTC\nX"},
        LIMIT | {"strategy": "s" * 65},
        LIMIT | {"symbol": "usdjpy"},
        LIMIT | {"strategy": "Carry"},
        LIMIT | {"clientOrderId": ""},
        LIMIT | {"clientOrderId": " a"},
        LIMIT | {"clientOrderId": "a\u202eb"},
        LIMIT | {"clientOrderId": "\x7f"},
        LIMIT | {"tags": ["t"] * 17},
        LIMIT | {"tags": [""]},
        LIMIT | {"tags": None},
        LIMIT | {"timeInForce": "GTD"},
        LIMIT | {"stopPrice": 63000},
        LIMIT | {"type": "STOP", "stopPrice": 63000},
        LIMIT | {"type": "STOP_LIMIT"},
        LIMIT | {"type": "STOP_LIMIT", "stopPrice": 63000, "timeInForce": "IOC"},
        MARKET | {"type": "STOP", "stopPrice": None},
        MARKET | {"type": "STOP_LIMIT", "stopPrice": 63000},
        MARKET | {"price": 64000},
    ],
)
def test_a_body_that_the_schema_forbids_is_rejected_by_the_domain(body: dict[str, Any]) -> None:
    assert problems(REQUEST, body) != []
    with pytest.raises((msgspec.ValidationError, errors.InvalidField)):
        checked(body)


def test_every_event_type_of_an_order_matches_its_schema() -> None:
    seen = set()
    for change in story():
        for changed in change.orders:
            assert problems(SNAPSHOT, decoded(events.encode(order.snapshot(changed)))) == []
        for event in change.events:
            line = line_of(event)
            assert problems(EVENT, decoded(line)) == [], line
            seen.add(event.type)
    assert seen == set(get_args(events.EventType))


# Members that are absent where they have no value, or the value that the order has already.
OPTIONAL = {
    "outbox",
    "idempotency",
    "quote",
    "route",
    "position",
    "doubt",
    "lastQty",
    "lastPrice",
    "filledQtyTotal",
} | {
    "revised",
    "early",
    "late",
    "accountTotal",
}


@pytest.mark.parametrize("change", range(14))
def test_an_event_with_a_missing_or_undocumented_member_is_invalid(change: int) -> None:
    event = decoded(line_of(story()[change].events[0]))
    for name in event:
        assert problems(EVENT, {key: value for key, value in event.items() if key != name}) != []
    optional = OPTIONAL | ({"venueClientOrderId"} if event["type"] == "ReportSetAside" else set())
    for name in set(event["data"]) - optional:
        assert problems(EVENT, event | {"data": {key: value for key, value in event["data"].items() if key != name}})
    assert problems(EVENT, event | {"extra": 1}) != []
    assert problems(EVENT, event | {"data": event["data"] | {"extra": 1}}) != []


def test_an_event_of_an_unknown_type_is_valid_with_any_data() -> None:
    event = decoded(line_of(story()[0].events[0]))
    assert problems(EVENT, event | {"type": "OrderMoved", "orderId": None, "data": {"by": "ops"}}) == []
    assert problems(EVENT, event | {"data": {"by": "ops"}}) != []


def _subclasses(kind: type[Any]) -> Iterator[type[Any]]:
    for subclass in kind.__subclasses__():
        yield subclass
        yield from _subclasses(subclass)
