"""Routes of accounts: each of several keys at a broker is a venue, and each account has its own."""

import pytest

from switchyard.domain.errors import SettingError
from switchyard.domain.ids import AccountId, VenueName
from switchyard.domain.market.routing import Route, Router
from switchyard.settings import load_settings

A, B, SIM = VenueName("acorn_a"), VenueName("acorn_b"), VenueName("sim")
ONE, TWO, OTHER = AccountId("desk-1"), AccountId("x:y|z@w"), AccountId("other")
SETTINGS = {
    "SWITCHYARD_CONFIG": "/dev/null",
    "SOR_VENUES": "sim,acorn_a,acorn_b",
    "SOR_SYMBOL_ROUTES": "ETH=sim|acorn_a",
    "SOR_ACCOUNT_ROUTES": "desk-1=acorn_a, x:y|z@w=acorn_b|sim,desk-1/BTC/USD=best:sim|acorn_a",
}


def a_router() -> Router:
    settings = load_settings(SETTINGS)
    return Router(settings.default_route, settings.symbol_routes, settings.account_routes)


def test_an_accounts_route_goes_before_the_symbols_and_the_default() -> None:
    router = a_router()
    assert router.route_for("ETH", ONE) == Route((A,))
    assert router.route_for("BTC/USD", ONE) == Route((SIM, A), by_quality=True)
    assert router.route_for("BTC/USD", TWO) == Route((B, SIM))
    assert router.route_for("ETH", OTHER) == router.route_for("ETH") == Route((SIM, A))
    assert router.route_for("BTC/USD", OTHER) == Route((SIM,))


def test_every_venue_that_an_order_in_a_symbol_may_have_gone_to_is_known() -> None:
    router = a_router()
    assert set(router.venues_of("ETH")) == set(router.venues_of("BTC/USD")) == {SIM, A, B}
    assert Router(Route((SIM,)), {}).venues_of("ETH") == (SIM,)
    assert router.may_leave(B)


@pytest.mark.parametrize(
    "value", ["desk-1", "=sim", "desk-1/=sim", "/BTC=sim", "desk-1=", "desk-1=sim,desk-1=sim", "a b=sim"]
)
def test_a_malformed_route_of_an_account_stops_the_start(value: str) -> None:
    with pytest.raises(SettingError, match="SOR_ACCOUNT_ROUTES"):
        load_settings({**SETTINGS, "SOR_ACCOUNT_ROUTES": value})


def test_a_route_to_an_unknown_venue_stops_the_start() -> None:
    with pytest.raises(SettingError, match="SOR_ACCOUNT_ROUTES: 'nowhere' is not one of SOR_VENUES"):
        load_settings({**SETTINGS, "SOR_ACCOUNT_ROUTES": "desk-1=nowhere"})
