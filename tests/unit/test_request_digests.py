"""Requests with an equal meaning have an equal digest, so that a repeat may be spelt differently."""

from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from switchyard.domain.market.instruments import Catalogue
from switchyard.domain.orders.do_order import do_order_request, request_digest
from switchyard.domain.orders.order import OrderRequest, checked, order_digest

ORDER: dict[str, Any] = {
    "symbol": "USDJPY",
    "side": "BUY",
    "type": "LIMIT",
    "qty": Decimal(1000),
    "price": Decimal(145),
}
END = datetime(2030, 1, 31, 17, tzinfo=UTC)
DO_ORDER: dict[str, Any] = {
    "order_id": "o-1",
    "instrument": "USDJPY",
    "side": "BUY",
    "qty": Decimal("0.1"),
    "idempotency_key": "k",
    "requested_at": "2025-08-24T00:00:00Z",
}


def digest_of(**changes: Any) -> str:
    return order_digest(checked(OrderRequest(**{**ORDER, **changes}), Catalogue()))


def do_digest_of(**changes: Any) -> str:
    return request_digest(do_order_request(DO_ORDER | changes))


@pytest.mark.parametrize(
    "spelling",
    [
        {"tags": ()},
        {"stop_price": None},
        {"client_order_id": None, "strategy": None},
        {"time_in_force": "GTC"},
        {"qty": Decimal("1000.00"), "price": Decimal("145.000")},
        {"post_only": False, "reduce_only": False, "display_qty": None, "expire_at": None},
    ],
)
def test_an_order_means_the_same_with_its_defaults_spelt_out(spelling: dict[str, Any]) -> None:
    assert digest_of(**spelling) == digest_of()


@pytest.mark.parametrize(
    "difference",
    [
        {"side": "SELL"},
        {"qty": Decimal(2000)},
        {"price": Decimal(146)},
        {"time_in_force": "IOC"},
        {"client_order_id": "a"},
        {"strategy": "a"},
        {"tags": ("a",)},
        {"type": "MARKET", "price": None},
        {"post_only": True},
        {"reduce_only": True},
        {"display_qty": Decimal(10)},
        {"time_in_force": "GTD", "expire_at": END},
    ],
)
def test_every_field_of_an_order_makes_a_difference(difference: dict[str, Any]) -> None:
    assert digest_of(**difference) != digest_of()


def test_the_digest_of_an_order_without_the_members_that_only_some_venues_have_is_as_it_was_before_them() -> None:
    before = "sha256:390e84fd8b4b1a6e7d6a615a744714c58c7f255c45c5bc89db5728fe78fb3e29"
    assert digest_of(client_order_id="mine", strategy="carry", tags=("a",)) == before


def test_equal_ends_have_an_equal_digest_in_every_zone_and_spelling() -> None:
    tokyo = END.astimezone(timezone(timedelta(hours=9)))
    assert digest_of(time_in_force="GTD", expire_at=tokyo) == digest_of(time_in_force="GTD", expire_at=END)
    later = digest_of(time_in_force="GTD", expire_at=END + timedelta(microseconds=1))
    assert later != digest_of(time_in_force="GTD", expire_at=END)
    spelt = {"display_qty": Decimal("10.0")}
    assert digest_of(**spelt) == digest_of(display_qty=Decimal(10))


def test_labels_in_different_fields_are_different_requests() -> None:
    assert len({digest_of(client_order_id="a"), digest_of(strategy="a"), digest_of(tags=("a",))}) == 3
    assert digest_of(tags=("a", "b")) != digest_of(tags=("b", "a"))


@pytest.mark.parametrize(
    "spelling",
    [
        {"price": None},
        {"tags": []},
        {"time_in_force": "IOC"},
        {"risk_constraints": {}},
        {"risk_constraints": {"max_dd": None}},
        {"requested_at": "2025-08-24T09:00:00+09:00"},
        {"requested_at": "2025-08-24T00:00:00.000Z"},
        {"trace_id": "another"},
        {"qty": Decimal("0.100")},
    ],
)
def test_a_do_order_means_the_same_with_its_defaults_spelt_out(spelling: dict[str, Any]) -> None:
    assert do_digest_of(**spelling) == do_digest_of()


@pytest.mark.parametrize(
    "difference",
    [
        {"price": Decimal(145)},
        {"tags": ["a"]},
        {"time_in_force": "FOK"},
        {"risk_constraints": {"max_dd": Decimal("0.1")}},
        {"risk_constraints": {"max_spread": Decimal("0.1")}},
        {"requested_at": "2025-08-24T00:00:01Z"},
        {"requested_at": None},
        {"order_id": "o-2"},
    ],
)
def test_every_field_of_a_do_order_but_its_trace_id_makes_a_difference(difference: dict[str, Any]) -> None:
    assert do_digest_of(**difference) != do_digest_of()
