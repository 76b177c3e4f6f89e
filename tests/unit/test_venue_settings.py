"""The settings that describe a broker's promises."""

from datetime import timedelta

import pytest

from switchyard.bootstrap.capabilities import declared_capabilities
from switchyard.domain.errors import SettingError
from switchyard.domain.orders.order import ALL_KINDS, ORDER_TYPES, TIMES_IN_FORCE, OrderKinds
from switchyard.ports.venue import Capabilities, supports
from switchyard.settings import load_settings
from tests.support.venue_orders import an_order


def test_the_defaults_are_those_of_our_own_protocol() -> None:
    [venue] = load_settings({}).venues
    assert venue.final_errors == {(400, None), (401, None), (403, None), (422, None)}
    assert (venue.hop_hold, venue.idempotency_header, venue.window) == (timedelta(), True, None)


def test_a_broker_has_its_own_final_errors_and_its_own_hop() -> None:
    [venue] = load_settings(
        {
            "VENUE_FINAL_ERRORS_SIM": "403, 400:INVALID_QTY,400:NO_FUNDS",
            "VENUE_HOP_HOLD_SEC_SIM": "2.5",
            "VENUE_IDEMPOTENCY_HEADER_SIM": "false",
        }
    ).venues
    assert venue.final_errors == {(403, None), (400, "INVALID_QTY"), (400, "NO_FUNDS")}
    assert (venue.hop_hold, venue.idempotency_header) == (timedelta(seconds=2.5), False)
    [none] = load_settings({"VENUE_FINAL_ERRORS_SIM": ""}).venues
    assert none.final_errors == frozenset()


@pytest.mark.parametrize("dedupe", ["permanent", "while_open", "ttl", "none"])
def test_the_capabilities_are_as_configured(dedupe: str) -> None:
    [venue] = load_settings(
        {
            "VENUE_URL_SIM": "http://127.0.0.1:1",
            "VENUE_DEDUPE_SIM": dedupe,
            "VENUE_DEDUPE_TTL_SEC_SIM": "60",
            "VENUE_LOOKUP_SIM": "open",
            "VENUE_WINDOW_SEC_SIM": "3",
            "VENUE_REQUEST_EXPIRY_SIM": "true",
            "VENUE_CANCEL_ALL_SIM": "true",
            "VENUE_HOP_HOLD_SEC_SIM": "5",
            "VENUE_EXEC_ID_SCOPE_SIM": "symbol",
            "VENUE_ORDER_TYPES_SIM": "LIMIT, STOP",
            "VENUE_TIMES_IN_FORCE_SIM": "DAY",
        }
    ).venues
    assert declared_capabilities(venue) == Capabilities(
        dedupe=venue.dedupe,
        lookup="open",
        acceptance_window=timedelta(seconds=3),
        request_expiry=True,
        cancel_all=True,
        dedupe_ttl=timedelta(seconds=60) if dedupe == "ttl" else None,
        hop_hold=timedelta(seconds=5),
        execution_ids="symbol",
        kinds=OrderKinds(types=frozenset({"LIMIT", "STOP"}), times_in_force=frozenset({"DAY"})),
    )


def test_a_broker_takes_the_plain_orders_unless_it_declares_more_and_the_paper_exchange_takes_all() -> None:
    [broker] = load_settings({"VENUE_URL_SIM": "http://127.0.0.1:1"}).venues
    [paper] = load_settings({}).venues
    taken = {
        (kind, time_in_force)
        for kind in ORDER_TYPES
        for time_in_force in TIMES_IN_FORCE
        if supports(declared_capabilities(broker), an_order("one", order_type=kind, time_in_force=time_in_force))
    }
    assert taken == {(kind, force) for kind in ("LIMIT", "MARKET") for force in ("IOC", "FOK", "GTC")}
    assert declared_capabilities(paper).kinds == ALL_KINDS


@pytest.mark.parametrize("name", ["VENUE_ORDER_TYPES_SIM", "VENUE_TIMES_IN_FORCE_SIM"])
@pytest.mark.parametrize("value", ["", "PEGGED", "LIMIT;MARKET", "limit", "LIMIT,DAY,"])
def test_an_unknown_order_type_or_time_in_force_stops_the_start(name: str, value: str) -> None:
    with pytest.raises(SettingError, match=name):
        load_settings({name: value})


@pytest.mark.parametrize("value", ["200", "429", "4xx", "400:", ":CODE", "400;403", "600"])
def test_an_invalid_final_error_stops_the_start(value: str) -> None:
    with pytest.raises(SettingError, match="VENUE_FINAL_ERRORS_SIM"):
        load_settings({"VENUE_FINAL_ERRORS_SIM": value})
