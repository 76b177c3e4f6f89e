"""Kinds of venues that other distributions bring: options, secrets, and settings that weaken what they promise."""

from collections.abc import Iterator
from datetime import timedelta
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from msgspec.structs import replace

from switchyard.bootstrap.capabilities import declared_capabilities, is_remote, known_kinds, offered_parts
from switchyard.bootstrap.venues import remote_venue
from switchyard.domain.errors import SettingError
from switchyard.domain.ids import AccountId, VenueName
from switchyard.domain.market.routing import Route, Router
from switchyard.settings import VenueSettings, load_settings, parse
from switchyard.venue import Configuration, Descriptor, Wire, kinds
from tests.support import acme_venue
from tests.support.memory.clock import ManualClock

HERE = "tests.support.acme_venue"
POINTS = [
    EntryPoint("acme", f"{HERE}:KIND", kinds.GROUP),
    EntryPoint("no-kind", f"{HERE}:NOT_A_KIND", kinds.GROUP),
    EntryPoint("another-name", f"{HERE}:OTHER_NAME", kinds.GROUP),
    EntryPoint("contradicts-itself", f"{HERE}:CONTRADICTS_ITSELF", kinds.GROUP),
    EntryPoint("in-process", f"{HERE}:IN_PROCESS", kinds.GROUP),
    EntryPoint("short-ids", f"{HERE}:SHORT_IDS", kinds.GROUP),
    EntryPoint("wrong-code", f"{HERE}:WRONG_CODE", kinds.GROUP),
    EntryPoint("no-address", f"{HERE}:NO_ADDRESS", kinds.GROUP),
    EntryPoint("broken", "tests.support.no_such_module:KIND", kinds.GROUP),
]
DECLARED = acme_venue.DESCRIPTOR.capabilities
GIVEN = {"url": "acme:https://host/path", "options": "desk=fx,region=us", "secrets": "key=s3cret=="}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[EntryPoint]]:
    points = list(POINTS)
    monkeypatch.setattr(kinds, "entry_points", lambda group: points)
    acme_venue.built.clear()
    yield points


def settings_of(**changes: str) -> VenueSettings:
    names = {f"VENUE_{name.upper()}_SIM": value for name, value in {**GIVEN, **changes}.items()}
    [venue] = load_settings({"SWITCHYARD_CONFIG": "/dev/null", **names}).venues
    return venue


def test_an_adapter_is_built_from_its_address_its_options_and_its_secrets() -> None:
    settings = settings_of()
    venue = remote_venue(settings, ManualClock())
    assert isinstance(venue.adapter, acme_venue.AcmeAdapter)
    [built] = acme_venue.built
    assert (built.venue, built.url, built.capabilities) == ("sim", "https://host/path", DECLARED)
    assert (dict(built.options), built.secret("key")) == ({"desk": "fx", "region": "us"}, "s3cret==")
    assert venue.capabilities == DECLARED
    assert is_remote(settings)
    assert "s3cret" not in repr(settings)
    assert "s3cret" not in repr(built)


def test_the_address_and_the_options_have_the_descriptors_defaults() -> None:
    remote_venue(settings_of(url="acme:", options="desk=fx"), ManualClock())
    [built] = acme_venue.built
    assert (built.url, dict(built.options)) == ("https://acme.invalid", {"desk": "fx", "region": "eu"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"url": "gopher:"}, "VENUE_URL_SIM: 'gopher' is no kind of venue here; installed: acme, another-name, broken"),
        ({"url": "nosuch:https://host"}, "VENUE_URL_SIM: 'nosuch' is no kind of venue here; installed: acme, another-"),
        ({"url": "no-kind:https://host"}, "VENUE_URL_SIM: the entry point no-kind of tests.support.acme_venue:NOT_A"),
        ({"url": "another-name:"}, "VENUE_URL_SIM: the entry point another-name of tests.support.acme_venue:OTHER"),
        ({"url": "contradicts-itself:"}, "VENUE_URL_SIM: the descriptor of contradicts-itself: the deduplication"),
        ({"url": "in-process:"}, "VENUE_URL_SIM: the descriptor of in-process: an adapter of another distribution"),
        ({"url": "short-ids:"}, "VENUE_URL_SIM: the descriptor of short-ids: its `id_form` has no room"),
        ({"url": "wrong-code:"}, "VENUE_URL_SIM: the descriptor of wrong-code: 'denied' is no meaning of a code"),
        ({"url": "no-address:"}, "VENUE_URL_SIM: no-address needs an address: no-address:https://host"),
        ({"url": "broken:"}, "VENUE_URL_SIM: the adapter of broken cannot be loaded: ModuleNotFoundError"),
        ({"options": "desk=fx,colour=red"}, "VENUE_OPTIONS_SIM: 'colour' is not taken by acme; allowed: desk, region"),
        ({"options": "desk=fx,key=s3cret"}, "VENUE_OPTIONS_SIM: 'key' is not taken by acme"),
        ({"options": "region=eu"}, "VENUE_OPTIONS_SIM: acme needs desk: The desk that trades."),
        ({"options": "desk=fx,region=mars"}, "VENUE_OPTIONS_SIM: region must be one of eu, us, not 'mars'"),
        ({"secrets": ""}, "VENUE_SECRETS_SIM: acme needs key: The key."),
        ({"secrets": "key=s3cret,desk=fx"}, "VENUE_SECRETS_SIM: a name in it is not taken by acme; allowed: key"),
        ({"options": "desk"}, "VENUE_OPTIONS_SIM: must look like region=eu,mode=live"),
        ({"secrets": "s3cret"}, "VENUE_SECRETS_SIM: must look like region=eu,mode=live"),
        (
            {"token": "s3cret"},
            "VENUE_TOKEN_SIM: is used only by brokers that speak our HTTP protocol; acme has keys in",
        ),
        ({"token_header": "X-Key"}, "VENUE_TOKEN_HEADER_SIM: is used only by brokers that speak our HTTP protocol"),
        ({"final_errors": "403"}, "VENUE_FINAL_ERRORS_SIM: is used only by brokers that speak our HTTP protocol"),
        ({"idempotency_header": "true"}, "VENUE_IDEMPOTENCY_HEADER_SIM: is used only by brokers that speak our HTTP"),
        (
            {"url": "http://host", "options": "desk=fx"},
            "VENUE_OPTIONS_SIM: is used only by installed adapters; the tok",
        ),
        ({"url": "acme:host"}, "VENUE_URL_SIM: must be paper:, http://host:port, or KIND:"),
    ],
)
def test_what_does_not_fit_the_kind_is_an_error_that_names_the_setting(given: dict[str, str], message: str) -> None:
    with pytest.raises(SettingError) as raised:
        remote_venue(settings_of(**given), ManualClock())
    assert message in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_two_distributions_must_not_bring_the_same_kind(installed: list[EntryPoint]) -> None:
    installed.append(EntryPoint("acme", "elsewhere:KIND", kinds.GROUP))
    with pytest.raises(SettingError, match="two distributions bring the kind acme"):
        remote_venue(settings_of(), ManualClock())


@pytest.mark.parametrize(
    ("given", "changes"),
    [
        ({}, {}),
        ({"dedupe": "while_open"}, {"dedupe": "while_open"}),
        ({"dedupe": "none"}, {"dedupe": "none"}),
        ({"dedupe": "ttl"}, {}),
        ({"dedupe_ttl_sec": "20"}, {"dedupe_ttl": timedelta(seconds=20)}),
        ({"lookup": "none"}, {"lookup": "none"}),
        ({"window_sec": "5"}, {"acceptance_window": timedelta(seconds=5)}),
        ({"window_sec": ""}, {"acceptance_window": None}),
        ({"sessions": "exclusive"}, {"sessions": "exclusive"}),
        ({"lookup_keeps_sec": "3600"}, {"lookup_keeps": timedelta(hours=1)}),
        ({"lookup_keeps_sec": "7200"}, {"lookup_keeps": timedelta(hours=2)}),
        ({"hop_hold_sec": "2"}, {"hop_hold": timedelta(seconds=2)}),
        ({"request_expiry": "false"}, {"request_expiry": False}),
        ({"cancel_all": "false", "reduce_only": "false"}, {}),
        ({"exec_id_scope": "order"}, {"execution_ids": "order"}),
        ({"amend": "none"}, {"amend": "none"}),
        ({"order_types": "LIMIT"}, {}),
        ({"times_in_force": "IOC"}, {"kinds": replace(DECLARED.kinds, times_in_force=frozenset({"IOC"}))}),
    ],
)
def test_settings_that_were_given_weaken_what_the_adapter_declares(
    given: dict[str, str], changes: dict[str, Any]
) -> None:
    assert declared_capabilities(settings_of(**given)) == replace(DECLARED, **changes)


@pytest.mark.parametrize(
    ("name", "value", "declared"),
    [
        ("dedupe", "permanent", "ttl"),
        ("dedupe_ttl_sec", "31", "30 seconds"),
        ("lookup", "all", "open"),
        ("window_sec", "2", "3 seconds"),
        ("sequence_proof", "true", "False"),
        ("lookup_keeps_sec", "7201", "7200 seconds"),
        ("lookup_keeps_sec", "", "7200 seconds"),
        ("cancel_all", "true", "False"),
        ("reduce_only", "true", "False"),
        ("post_only", "true", "False"),
        ("display_qty", "true", "False"),
        ("exec_id_scope", "venue", "symbol"),
        ("amend", "cancel_replace", "in_place"),
        ("order_types", "LIMIT,MARKET", "LIMIT"),
        ("times_in_force", "DAY", "GTC, IOC"),
    ],
)
def test_a_setting_that_promises_more_than_the_adapter_is_an_error_that_names_it(
    name: str, value: str, declared: str
) -> None:
    with pytest.raises(SettingError) as raised:
        declared_capabilities(settings_of(**{name: value}))
    assert str(raised.value) == (
        f"VENUE_{name.upper()}_SIM: promises more than the adapter of acme declares ({declared}); "
        "settings may only weaken it"
    )


def declaring(monkeypatch: pytest.MonkeyPatch, build: Any = acme_venue.build, **capabilities: Any) -> None:
    """Let the kind acme declare these capabilities, too."""
    descriptor = replace(acme_venue.DESCRIPTOR, capabilities=replace(DECLARED, **capabilities))
    monkeypatch.setattr(acme_venue, "KIND", replace(acme_venue.KIND, descriptor=descriptor, build=build))


class Switching(acme_venue.AcmeAdapter):
    """With a dead man's switch."""

    async def cancel_all_after(self, seconds: int, wire: Wire) -> None:
        pass


def make_switching(configuration: Configuration) -> Switching:
    return Switching()


def make_unnamed(configuration: Configuration):  # type: ignore[no-untyped-def]
    return Switching()


def test_settings_take_away_what_only_some_orders_need(monkeypatch: pytest.MonkeyPatch) -> None:
    declaring(monkeypatch, post_only=True, reduce_only=True, display_qty=True)
    assert declared_capabilities(settings_of(post_only="true", display_qty="true")).post_only
    weaker = declared_capabilities(settings_of(post_only="false", reduce_only="false", display_qty="false"))
    assert (weaker.post_only, weaker.reduce_only, weaker.display_qty) == (False, False, False)


@pytest.mark.parametrize("name", ["cancel_all", "cancel_all_after"])
def test_a_declared_part_that_the_adapter_lacks_stops_the_start(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    declaring(monkeypatch, **{name: True})
    with pytest.raises(SettingError, match=f"VENUE_URL_SIM: the descriptor of acme declares `{name}`, and its adapter"):
        declared_capabilities(settings_of())
    assert isinstance(known_kinds()["acme"][0], SettingError)


@pytest.mark.parametrize("build", [Switching, make_switching, make_unnamed])
def test_a_part_that_would_never_be_used_stops_the_start(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    declaring(monkeypatch, build)
    with pytest.raises(SettingError, match="has the method `cancel_all_after`, which would never be used: declare it"):
        remote_venue(settings_of(), ManualClock())
    declaring(monkeypatch, build, cancel_all_after=True)
    remote_venue(settings_of(cancel_all_after="60"), ManualClock())


def test_the_optional_parts_of_a_kind_are_known_from_what_it_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    assert offered_parts("acme") == ()
    assert offered_parts("http") == ("quotes", "statement", "cancel_all")
    declaring(monkeypatch, make_switching, cancel_all_after=True)
    assert offered_parts("acme") == ("cancel_all_after",)
    declaring(monkeypatch, make_unnamed, cancel_all_after=True)
    assert offered_parts("acme") is None


@pytest.mark.parametrize("url", ["acme:", "paper:", "http://127.0.0.1:1"])
def test_a_switch_that_the_venue_does_not_have_cannot_be_asked_for(url: str) -> None:
    with pytest.raises(
        SettingError, match=r"VENUE_CANCEL_ALL_AFTER_SIM: the adapter of .* declares no `cancel_all_after`"
    ):
        declared_capabilities(settings_of(url=url, cancel_all_after="60"))


@pytest.mark.parametrize("value", ["0", "9", "86401", "60.5", "yes"])
def test_the_time_of_a_switch_is_a_whole_number_of_seconds_that_leaves_room_for_renewals(value: str) -> None:
    with pytest.raises(SettingError, match="VENUE_CANCEL_ALL_AFTER_SIM"):
        settings_of(cancel_all_after=value)


def test_a_switch_that_is_not_asked_for_cannot_be_disarmed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingError, match="VENUE_DISARM_ON_STOP_SIM: there is nothing to switch off without"):
        declared_capabilities(settings_of(disarm_on_stop="true"))


def test_a_venue_that_cancels_on_disconnect_must_be_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    declaring(monkeypatch, cancel_on_disconnect=True)
    with pytest.raises(
        SettingError, match="VENUE_ACCEPT_CANCEL_ON_DISCONNECT_SIM: acme cancels open orders when a conn"
    ):
        declared_capabilities(settings_of())
    assert declared_capabilities(settings_of(accept_cancel_on_disconnect="true")).cancel_on_disconnect


def test_a_window_that_the_adapter_does_not_know_cannot_be_promised(monkeypatch: pytest.MonkeyPatch) -> None:
    capabilities = replace(DECLARED, acceptance_window=None, request_expiry=False)
    kind = replace(acme_venue.KIND, descriptor=replace(acme_venue.DESCRIPTOR, capabilities=capabilities))
    monkeypatch.setattr(acme_venue, "KIND", kind)
    with pytest.raises(SettingError, match="VENUE_WINDOW_SEC_SIM: promises more"):
        declared_capabilities(settings_of(window_sec="3600"))


def test_a_secret_in_a_line_of_its_own_may_have_commas() -> None:
    assert parse.secret_values("key=a,b=\nsecret=c\n") == {"key": "a,b=", "secret": "c"}
    assert parse.secret_values("key=a,secret=c") == {"key": "a", "secret": "c"}


def test_an_adapter_that_cannot_be_loaded_does_not_hide_the_others() -> None:
    known = known_kinds()
    assert isinstance(known["broken"][0], SettingError)
    assert isinstance(known["acme"][0], Descriptor)


def test_a_venue_that_no_route_names_has_no_orders_of_ours() -> None:
    paper, lends = VenueName("paper"), VenueName("acorn")
    assert not Router(Route((paper,)), {"BTC": Route((paper,))}).is_routed(lends)
    assert Router(Route((paper,)), {"BTC": Route((paper, lends))}).is_routed(lends)
    assert Router(Route((paper,)), {}, {(AccountId("desk"), None): Route((lends,))}).is_routed(lends)
