"""Derived keys: the same order in the same window has the same key, and every other order has another."""

import hashlib
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from switchyard.domain.errors import InvalidField
from switchyard.domain.orders.keys import KeyParts, generate_idempotency_key, validate_idempotency_key

NOON = 1_729_636_823_456
ORDER: dict[str, Any] = {
    "account_id": "ACC123456",
    "symbol": "AAPL",
    "side": "BUY",
    "quantity": Decimal(100),
    "timestamp_ms": NOON,
}
SECRET = "0123456789abcdef0123456789abcdef"
MARKET_KEY = "3348b664003d5234b7642812bef3b32403bd3424dd4609430df6cc34779e4b79"


def key(**changes: Any) -> str:
    return generate_idempotency_key(**(ORDER | changes))


# Digests from `printf %s … | sha256sum` and `openssl dgst -sha256 -hmac …`.
@pytest.mark.parametrize(
    ("changes", "digest"),
    [
        ({}, MARKET_KEY),
        (
            {"order_type": "LIMIT", "limit_price": 178.50},
            "cd8b10bd18b18f9661320324f566df03fa11db367ab6c7493724dc957a7dadab",
        ),
        (
            {
                "side": "SELL",
                "quantity": 50.0,
                "timestamp_ms": 1_729_636_843_789,
                "order_type": "STOP_LIMIT",
                "stop_price": 177.50,
                "limit_price": 177.00,
            },
            "886e0568bf79612618b1910434e4562a44f2a5aed97e2c4df462dc04c185c811",
        ),
        ({"secret": SECRET}, "e1668d62cdf2e28e64c0583c58313106ad85183d9c67e37746d75f72d18cb16e"),
        ({"secret": SECRET.encode()}, "e1668d62cdf2e28e64c0583c58313106ad85183d9c67e37746d75f72d18cb16e"),
        (
            {
                "account_id": "auth0|12\\3",
                "symbol": "brk|b",
                "quantity": "0.1",
                "order_type": "STOP",
                "stop_price": "0.000000015",
            },
            "27c02378960ead154a8b39f94c2fa76e95580a7ace1ec11f13b2716a3efee856",
        ),
        (
            {
                "parts": KeyParts(
                    account=False, symbol=False, side=False, quantity=False, order_type=False, prices=False
                )
            },
            "0a10bd83977ab8c267d897291284c0cedb19376ac8e1b04eb9e0f1361aaf0325",
        ),
    ],
)
def test_the_recipe_gives_these_digests(changes: dict[str, Any], digest: str) -> None:
    assert key(**changes) == digest


def test_arguments_may_come_by_position_in_the_order_of_the_recipe() -> None:
    assert generate_idempotency_key("ACC123456", "AAPL", "BUY", 100.0, NOON, "MARKET", None, None, 60000) == MARKET_KEY


@pytest.mark.parametrize(
    ("part", "left_out", "text"),
    [
        ("account", {"account_id": "other"}, "AAPL|BUY|100.00000000|28827280|LIMIT|5.00000000"),
        ("symbol", {"symbol": "MSFT"}, "ACC123456|BUY|100.00000000|28827280|LIMIT|5.00000000"),
        ("side", {"side": "SELL"}, "ACC123456|AAPL|100.00000000|28827280|LIMIT|5.00000000"),
        ("quantity", {"quantity": 7}, "ACC123456|AAPL|BUY|28827280|LIMIT|5.00000000"),
        (
            "order_type",
            {"order_type": "STOP", "limit_price": None, "stop_price": 5},
            "ACC123456|AAPL|BUY|100.00000000|28827280|5.00000000",
        ),
        ("prices", {"limit_price": 6}, "ACC123456|AAPL|BUY|100.00000000|28827280|LIMIT"),
    ],
)
def test_a_part_that_is_switched_off_does_not_enter(part: str, left_out: dict[str, Any], text: str) -> None:
    limit = {"order_type": "LIMIT", "limit_price": 5}
    parts = KeyParts(**{part: False})
    assert key(**limit, parts=parts) == hashlib.sha256(text.encode()).hexdigest()
    assert key(**(limit | left_out), parts=parts) == key(**limit, parts=parts)
    assert key(**(limit | left_out)) != key(**limit)


@pytest.mark.parametrize("same", [100, 100.0, "100", "1e2", "100.000000001", Decimal("1E+2"), Decimal("100.00")])
def test_equal_quantities_have_one_key_however_they_are_written(same: object) -> None:
    assert key(quantity=same) == MARKET_KEY


def test_a_float_means_its_decimal_text_and_not_its_binary_value() -> None:
    # The binary value of 0.000000105 is above the half and would be rounded up; the text is on it, and rounds to even.
    assert round(0.000000105, 8) == 0.00000011
    assert key(quantity=0.000000105) == key(quantity="0.000000105") == key(quantity="0.0000001")
    assert f"{100_000_000.1:.8f}" == "100000000.09999999"
    assert key(quantity=100_000_000.1) == key(quantity="100000000.1")


def test_letter_case_matters_in_accounts_only() -> None:
    assert key(symbol="aapl", side="buy", order_type="market") == MARKET_KEY
    assert key(account_id="acc123456") != MARKET_KEY


def test_the_key_changes_at_the_window_boundary_and_not_before() -> None:
    start = NOON - NOON % 60_000
    assert key(timestamp_ms=start) == key(timestamp_ms=start + 59_999) == MARKET_KEY
    assert key(timestamp_ms=start + 60_000) != MARKET_KEY
    assert key(timestamp_ms=start + 60_000, timestamp_resolution_ms=3_600_000) == key(
        timestamp_ms=start, timestamp_resolution_ms=3_600_000
    )


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"quantity": float("nan")}, "quantity"),
        ({"quantity": float("inf")}, "quantity"),
        ({"quantity": Decimal("sNaN")}, "quantity"),
        ({"quantity": "Infinity"}, "quantity"),
        ({"quantity": "1_000"}, "quantity"),
        ({"quantity": " 1"}, "quantity"),
        ({"quantity": "١"}, "quantity"),
        ({"quantity": ""}, "quantity"),
        ({"quantity": "9" * 10_000}, "quantity"),
        ({"quantity": True}, "quantity"),
        ({"quantity": None}, "quantity"),
        ({"quantity": 0}, "quantity"),
        ({"quantity": -1}, "quantity"),
        ({"quantity": "1e-9"}, "quantity"),
        ({"quantity": Decimal("1E-9999999")}, "quantity"),
        ({"quantity": Decimal("1E+9999999")}, "quantity"),
        ({"quantity": "1e999"}, "quantity"),
        ({"order_type": "LIMIT", "limit_price": float("-inf")}, "limit_price"),
        ({"order_type": "STOP", "stop_price": "cheap"}, "stop_price"),
        ({"order_type": "MARKET", "limit_price": 1}, "limit_price"),
        ({"order_type": "LIMIT", "stop_price": 1}, "stop_price"),
        ({"order_type": "STOP", "limit_price": 1}, "limit_price"),
        ({"order_type": "STOP_LIMIT", "limit_price": 1}, "stop_price"),
        ({"order_type": "STOP_LIMIT", "stop_price": 1}, "limit_price"),
        ({"order_type": "ICEBERG"}, "order_type"),
        ({"side": "HOLD"}, "side"),
        ({"side": "ſell"}, "side"),
        ({"side": None}, "side"),
        ({"account_id": ""}, "account_id"),
        ({"account_id": None}, "account_id"),
        ({"account_id": "\ud800"}, "account_id"),
        ({"symbol": ""}, "symbol"),
        ({"symbol": "S" * 256}, "symbol"),
        ({"timestamp_ms": -1}, "timestamp_ms"),
        ({"timestamp_ms": 1.5}, "timestamp_ms"),
        ({"timestamp_ms": True}, "timestamp_ms"),
        ({"timestamp_ms": NOON * 1000}, "timestamp_ms"),
        ({"timestamp_resolution_ms": 0}, "timestamp_resolution_ms"),
        ({"secret": ""}, "secret"),
    ],
)
def test_a_wrong_argument_is_rejected_by_its_name(changes: dict[str, Any], named: str) -> None:
    with pytest.raises(InvalidField) as caught:
        key(**changes)
    assert caught.value.field == named


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a" * 63,
        "a" * 65,
        "A" * 64,
        "0x" + "a" * 62,
        "+" + "a" * 63,
        "a_" * 32,
        " " + "a" * 63,
        "a" * 64 + "\n",
        "g" * 64,
        "١" * 64,
        b"a" * 64,
        None,
    ],
)
def test_only_64_lowercase_hexadecimal_characters_are_a_key(text: Any) -> None:
    assert not validate_idempotency_key(text)


amounts = st.decimals(min_value="0.00000001", max_value="1000000", places=8)
# Few characters, with the delimiter and the escape, so that different splits of one text are likely.
labels = st.text(alphabet="aB|\\", min_size=1, max_size=4)
orders = st.fixed_dictionaries(
    {
        "account_id": labels,
        "symbol": labels,
        "side": st.sampled_from(["BUY", "SELL"]),
        "quantity": st.one_of(amounts, st.integers(min_value=1, max_value=3)),
        "timestamp_ms": st.integers(min_value=0, max_value=240_000),
    }
).flatmap(
    lambda order: st.one_of(
        st.just({"order_type": "MARKET"}),
        st.builds(lambda limit: {"order_type": "LIMIT", "limit_price": limit}, amounts),
        st.builds(lambda stop: {"order_type": "STOP", "stop_price": stop}, amounts),
        st.builds(
            lambda limit, stop: {"order_type": "STOP_LIMIT", "limit_price": limit, "stop_price": stop},
            amounts,
            amounts,
        ),
    ).map(lambda rest: order | rest)
)


def identity(order: dict[str, Any]) -> tuple[object, ...]:
    """The parts that distinguish orders, not joined into one text."""
    return (
        order["account_id"],
        order["symbol"].upper(),
        order["side"],
        Decimal(order["quantity"]),
        order["timestamp_ms"] // 60_000,
        order["order_type"],
        order.get("limit_price"),
        order.get("stop_price"),
    )


@given(orders, st.none() | st.just(SECRET))
def test_every_order_has_a_valid_key_and_always_the_same(order: dict[str, Any], secret: str | None) -> None:
    derived = generate_idempotency_key(**order, secret=secret)
    assert validate_idempotency_key(derived)
    assert generate_idempotency_key(**json.loads(json.dumps(order, default=str)), secret=secret) == derived


@given(orders, orders)
def test_two_orders_share_a_key_only_if_they_are_the_same_order(first: dict[str, Any], second: dict[str, Any]) -> None:
    same_key = generate_idempotency_key(**first) == generate_idempotency_key(**second)
    assert same_key == (identity(first) == identity(second))


@given(orders, orders, st.data())
def test_any_one_differing_component_gives_another_key(
    order: dict[str, Any], other: dict[str, Any], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(["account_id", "symbol", "side", "quantity", "timestamp_ms"]))
    changed = order | {name: other[name]}
    assume(identity(changed) != identity(order))
    assert generate_idempotency_key(**changed) != generate_idempotency_key(**order)


@given(labels, labels, labels)
def test_a_delimiter_within_a_name_does_not_make_keys_equal(first: str, second: str, third: str) -> None:
    left = key(account_id=f"{first}|{second}", symbol=third)
    right = key(account_id=first, symbol=f"{second}|{third}")
    assert left != right


@given(orders, st.binary(min_size=1, max_size=64), st.binary(min_size=1, max_size=64))
def test_without_the_secret_the_key_cannot_be_computed(order: dict[str, Any], secret: bytes, other: bytes) -> None:
    # HMAC pads keys with zero bytes, so secrets that differ only in trailing ones are equal.
    assume(secret.rstrip(b"\0") != other.rstrip(b"\0"))
    derived = generate_idempotency_key(**order, secret=secret)
    assert derived not in (generate_idempotency_key(**order), generate_idempotency_key(**order, secret=other))
