"""The checks of `POST /orders`, of idempotency keys and of ids."""

from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pytest

from switchyard.domain.errors import InvalidField, InvalidKey, UnknownSymbol
from switchyard.domain.ids import AccountId, OrderId, order_id, ulid, venue_client_order_id
from switchyard.domain.market.instruments import DEFAULT_INSTRUMENTS, Catalogue
from switchyard.domain.orders.keys import checked_key
from switchyard.domain.orders.order import OrderRequest, checked, order_digest
from switchyard.domain.values import SYMBOL
from switchyard.flow.intake.order_intake import order_request

GOOD: dict[str, Any] = {"symbol": "USDJPY", "side": "BUY", "type": "LIMIT", "qty": 1000, "price": Decimal("145.001")}


def taken(**changes: Any) -> OrderRequest:
    body = {name: value for name, value in {**GOOD, **changes}.items() if value != "absent"}
    return checked(order_request(body), Catalogue())


def test_members_that_only_some_venues_have_are_taken() -> None:
    order = taken(
        timeInForce="GTD",
        expireAt="2030-01-01T09:00:00+09:00",
        postOnly=True,
        reduceOnly=True,
        displayQty=Decimal("100.0"),
    )
    assert order.expire_at == datetime(2030, 1, 1, tzinfo=UTC)
    assert (order.post_only, order.reduce_only, str(order.display_qty)) == (True, True, "100")
    stop = taken(type="STOP_LIMIT", stopPrice=150, displayQty=1000, timeInForce="GTD", expireAt="2030-01-01T00:00:00Z")
    assert (stop.display_qty, stop.post_only) == (Decimal(1000), False)


def test_defaults_are_filled_in_by_type() -> None:
    assert taken().time_in_force == "GTC"
    assert taken(type="MARKET", price="absent").time_in_force == "IOC"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"qty": -1}, "qty"),
        ({"qty": 0}, "qty"),
        ({"qty": Decimal("0.5")}, "qty"),  # off the step
        ({"qty": "1000"}, "qty"),
        ({"qty": True}, "qty"),
        ({"qty": None}, "qty"),
        ({"qty": "absent"}, "qty"),
        ({"qty": Decimal("1.123456789")}, "qty"),
        ({"price": Decimal("145.0011")}, "price"),  # off the tick
        ({"price": "absent"}, "price"),
        ({"price": Decimal("1e999")}, "price"),
        ({"type": "MARKET"}, "price"),
        ({"type": "PEGGED"}, "type"),
        ({"side": "HOLD"}, "side"),
        ({"symbol": ""}, "symbol"),
        ({"symbol": "A" * 65}, "symbol"),
        ({"symbol": "A\u0000B"}, "symbol"),
        ({"symbol": 5}, "symbol"),
        ({"stopPrice": 5}, "stopPrice"),
        ({"timeInForce": "GFA"}, "timeInForce"),
        ({"timeInForce": "GTD"}, "expireAt"),
        ({"expireAt": "2030-01-01T00:00:00Z"}, "expireAt"),
        ({"timeInForce": "DAY", "expireAt": "2030-01-01T00:00:00Z"}, "expireAt"),
        ({"timeInForce": "GTD", "expireAt": "2030-01-01T00:00:00"}, "expireAt"),  # without an offset
        ({"timeInForce": "GTD", "expireAt": "tomorrow"}, "expireAt"),
        ({"timeInForce": "GTD", "expireAt": 1893456000}, "expireAt"),
        ({"postOnly": 1}, "postOnly"),
        ({"postOnly": True, "type": "MARKET", "price": "absent"}, "postOnly"),
        ({"postOnly": True, "type": "STOP_LIMIT", "stopPrice": 150}, "postOnly"),
        ({"postOnly": True, "timeInForce": "IOC"}, "postOnly"),
        ({"reduceOnly": "yes"}, "reduceOnly"),
        ({"displayQty": 0}, "displayQty"),
        ({"displayQty": "100"}, "displayQty"),
        ({"displayQty": Decimal("0.5")}, "displayQty"),  # off the step
        ({"displayQty": 1001}, "displayQty"),
        ({"displayQty": 100, "timeInForce": "FOK"}, "displayQty"),
        ({"displayQty": 100, "type": "MARKET", "price": "absent"}, "displayQty"),
        ({"tags": ["x"] * 17}, "tags"),
        ({"tags": [""]}, "tags"),
        ({"tags": [5]}, "tags"),
        ({"clientOrderId": "x" * 129}, "clientOrderId"),
        ({"strategy": "a\nb"}, "strategy"),
        ({"pricee": 5}, "pricee"),
        ({"stop_price": 5}, "stop_price"),
    ],
)
def test_a_wrong_field_is_named(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidField) as caught:
        taken(**changes)
    assert caught.value.field == field
    assert field in caught.value.message


STOP = {"type": "STOP", "stopPrice": 151, "price": "absent"}
STOP_LIMIT = {"type": "STOP_LIMIT", "stopPrice": 151, "price": 152}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        (STOP | {"stopPrice": "absent"}, "stopPrice"),
        (STOP | {"stopPrice": 0}, "stopPrice"),
        (STOP | {"stopPrice": "151"}, "stopPrice"),
        (STOP | {"stopPrice": Decimal("151.0001")}, "stopPrice"),  # off the tick
        (STOP | {"price": 152}, "price"),
        (STOP | {"timeInForce": "IOC"}, "timeInForce"),
        (STOP | {"timeInForce": "FOK"}, "timeInForce"),
        (STOP_LIMIT | {"stopPrice": None}, "stopPrice"),
        (STOP_LIMIT | {"price": "absent"}, "price"),
        (STOP_LIMIT | {"timeInForce": "IOC"}, "timeInForce"),
        ({"type": "MARKET", "price": "absent", "stopPrice": 151}, "stopPrice"),
    ],
)
def test_each_type_needs_its_own_fields_and_allows_no_others(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidField) as caught:
        taken(**changes)
    assert (caught.value.reason, caught.value.field) == ("VALIDATION_ERROR", field)


@pytest.mark.parametrize(
    ("changes", "time_in_force"),
    [
        (STOP, "GTC"),
        (STOP | {"timeInForce": "DAY"}, "DAY"),
        (STOP_LIMIT, "GTC"),
        ({"timeInForce": "DAY"}, "DAY"),
        ({"type": "MARKET", "price": "absent"}, "IOC"),
        ({"type": "MARKET", "price": "absent", "timeInForce": "DAY"}, "DAY"),
        ({"type": "MARKET", "price": "absent", "timeInForce": "GTC"}, "GTC"),
    ],
)
def test_every_type_has_a_default_time_in_force(changes: dict[str, Any], time_in_force: str) -> None:
    assert taken(**changes).time_in_force == time_in_force


def test_a_stop_price_is_part_of_what_two_requests_must_have_in_common() -> None:
    one, other = taken(**STOP), taken(**(STOP | {"stopPrice": 152}))
    assert order_digest(one) == order_digest(taken(**(STOP | {"stopPrice": Decimal("151.000")})))
    assert order_digest(one) != order_digest(other)


def test_an_unlisted_symbol_trades_in_whole_numbers_where_the_settings_allow_it() -> None:
    catalogue = Catalogue(allows_unlisted=True)
    body = {"symbol": "UNLISTED", "side": "BUY", "type": "LIMIT", "qty": Decimal(1), "price": Decimal(100)}
    assert checked(order_request(body), catalogue).price == 100
    with pytest.raises(InvalidField):
        checked(order_request(body | {"price": Decimal("100.5")}), catalogue)
    with pytest.raises(InvalidField, match="symbol: must match"):
        checked(order_request(body | {"symbol": "日経225"}), catalogue)


@pytest.mark.parametrize(
    ("symbol", "hint"),
    [
        ("usdjpy", "did you mean USDJPY"),
        ("USD/JPY", "did you mean USDJPY"),
        ("USDJPX", "did you mean USDJPY"),
        ("btc", "did you mean BTC"),
        ("TSLA", "SWITCHYARD_UNLISTED_SYMBOLS=allow"),
    ],
)
def test_an_unlisted_symbol_is_rejected_with_a_hint(symbol: str, hint: str) -> None:
    with pytest.raises(UnknownSymbol, match=hint) as caught:
        taken(symbol=symbol)
    assert (caught.value.reason, caught.value.field) == ("UNKNOWN_SYMBOL", "symbol")


@pytest.mark.parametrize("symbol", ["", "-A", ".A", "A B", "A" * 33, "日経225", "A\n", "A\u200b"])
def test_a_text_that_is_no_symbol_is_rejected(symbol: str) -> None:
    with pytest.raises(InvalidField) as caught:
        taken(symbol=symbol)
    assert (caught.value.reason, caught.value.field) == ("VALIDATION_ERROR", "symbol")


@pytest.mark.parametrize("symbol", sorted(DEFAULT_INSTRUMENTS))
def test_every_listed_symbol_is_a_symbol(symbol: str) -> None:
    assert SYMBOL.fullmatch(symbol)


@pytest.mark.parametrize("field", ["clientOrderId", "tags"])
@pytest.mark.parametrize(
    "label",
    [
        pytest.param(" a", id="leading space"),
        pytest.param("a ", id="trailing space"),
        pytest.param(" ", id="only space"),
        pytest.param("\u00a0a", id="no-break space"),
        pytest.param("a\tb", id="tab"),
        pytest.param("a\u200bb", id="zero-width space"),
        pytest.param("a\u200db", id="zero-width joiner"),
        pytest.param("a\u202eb", id="right-to-left override"),
        pytest.param("a\u2066b", id="left-to-right isolate"),
        pytest.param("a\ufeffb", id="byte order mark"),
        pytest.param("a\u00adb", id="soft hyphen"),
        pytest.param("a\u034fb", id="grapheme joiner"),
        pytest.param("a\ufe0fb", id="variation selector"),
        pytest.param("\u3164", id="hangul filler"),
        pytest.param("\u2800", id="braille blank"),
        pytest.param("\u0301a", id="begins with a combining mark"),
        pytest.param("e\u0301", id="not in NFC"),
        pytest.param("\U000e0041", id="tag character"),
    ],
)
def test_a_label_that_looks_like_another_is_rejected(field: str, label: str) -> None:
    with pytest.raises(InvalidField) as caught:
        taken(**{field: [label] if field == "tags" else label})
    assert caught.value.field == field


@pytest.mark.parametrize("label", ["a b", "é", "日経225", "möwe-1", "#1: 50% (x)"])
def test_a_visible_label_is_kept_as_it_is(label: str) -> None:
    order = taken(clientOrderId=label, tags=[label])
    assert (order.client_order_id, order.tags) == (label, (label,))


@pytest.mark.parametrize("strategy", ["a", "mean.reversion_v2-x", "0", "a" * 64])
def test_a_strategy_is_a_resource_name(strategy: str) -> None:
    assert taken(strategy=strategy).strategy == strategy


@pytest.mark.parametrize("strategy", ["", "A", "a b", "a/b", "möwe", "a" * 65, "a\n"])
def test_another_text_is_no_strategy(strategy: str) -> None:
    with pytest.raises(InvalidField) as caught:
        taken(strategy=strategy)
    assert caught.value.field == "strategy"


@pytest.mark.parametrize("key", ["", "x" * 256, "a b", "ä", "a\tb", "a\u0000"])
def test_a_malformed_key_is_rejected(key: str) -> None:
    with pytest.raises(InvalidKey):
        checked_key(key)


def test_a_key_may_have_255_visible_characters() -> None:
    assert checked_key("~!" + "x" * 253)


def test_ids_sort_by_time_and_contain_their_random_bits() -> None:
    assert ulid(1_700_000_000_000, 5) < ulid(1_700_000_000_001, 0)
    assert ulid(0, 0) == "0" * 26
    assert ulid(2**48 - 1, 2**80 - 1) == "7" + "Z" * 25
    assert order_id(1, 2).startswith("ord_")


def test_a_venue_sees_an_id_that_depends_on_the_intent_alone() -> None:
    one = venue_client_order_id("test", AccountId("a"), "orders", "k", 0, OrderId("ord_1"))
    assert one == venue_client_order_id("test", AccountId("a"), "orders", "k", 0, OrderId("ord_2"))
    assert len(one) == 32
    others = {
        venue_client_order_id("test", AccountId("b"), "orders", "k", 0, OrderId("ord_1")),
        venue_client_order_id("test", AccountId("a"), "do", "k", 0, OrderId("ord_1")),
        venue_client_order_id("test", AccountId("a"), "orders", "l", 0, OrderId("ord_1")),
        venue_client_order_id("test", AccountId("a"), "orders", "k", 1, OrderId("ord_1")),
        venue_client_order_id("test", AccountId("a"), "orders", None, 0, OrderId("ord_1")),
        # Moving a character from one part to the next makes another id.
        venue_client_order_id("test", AccountId("a1"), "orders", "k", 0, OrderId("ord_1")),
        venue_client_order_id("test", AccountId("a"), "1orders", "k", 0, OrderId("ord_1")),
    }
    assert len(others | {one}) == 8
