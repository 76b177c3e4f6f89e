"""`venues describe` tells in words what the core acts on."""

from datetime import date, timedelta

import msgspec
import pytest

from switchyard.domain.ids import VenueName
from switchyard.domain.market.health import SwitchState, VenueState
from switchyard.entrypoints.cli.venues import describe, described, switch_words
from switchyard.ports.venue import Capabilities, Dedupe, Lookup
from switchyard.venue import Descriptor, IdForm, Option, Source

VENUE = Descriptor(kind="acorn", title="A broker", capabilities=Capabilities(dedupe="none", lookup="none"))
AGAIN_AT_ONCE = "sent again under the same id"
AGAIN_IF_ABSENT = "sent again only once the venue has shown"
NEVER = "never sent again"


def text_of(descriptor: Descriptor) -> str:
    return "\n".join(described(descriptor, "acorn-venue 1.0"))


def doubt(dedupe: Dedupe, lookup: Lookup, window: timedelta | None) -> str:
    found = Capabilities(dedupe=dedupe, lookup=lookup, acceptance_window=window)
    return text_of(msgspec.structs.replace(VENUE, capabilities=found))


def test_what_happens_to_a_doubt_follows_from_the_capabilities() -> None:
    window = timedelta(seconds=17)
    assert AGAIN_AT_ONCE in doubt("permanent", "none", None)
    assert AGAIN_IF_ABSENT in doubt("while_open", "all", window)
    for dedupe, lookup, documented in (
        ("while_open", "all", None),
        ("while_open", "open", window),
        ("none", "all", window),
        ("none", "none", None),
    ):
        assert NEVER in doubt(dedupe, lookup, documented)  # type: ignore[arg-type]


def test_the_form_of_client_order_ids_is_shown_with_an_example() -> None:
    assert "Client order ids have at most 32 characters, such as abcd" in text_of(VENUE)
    uuids = msgspec.structs.replace(VENUE, id_form=IdForm(is_uuid=True))
    assert "Client order ids are UUIDs, such as 00443" in text_of(uuids)


def test_options_secrets_codes_and_sources_are_listed_and_no_value_of_a_secret() -> None:
    descriptor = msgspec.structs.replace(
        VENUE,
        options=(
            Option(name="region", text="Where it trades.", choices=("eu", "us"), default="eu"),
            Option(name="key", text="The API key.", is_secret=True, is_required=True),
        ),
        codes={"E7": "rejected"},
        sources=(Source(claim="dedupe", source="Order API 2.1", read_on=date(2026, 11, 18)),),
    )
    text = text_of(descriptor)
    for line in (
        "- region (one of eu, us; default eu): Where it trades.",
        "- key (required): The API key.",
        "- E7: rejected",
        "- dedupe: Order API 2.1 (read, 2026-11-18)",
    ):
        assert line in text


def test_how_long_a_venue_keeps_orders_is_told() -> None:
    found = Capabilities(dedupe="while_open", lookup="all", lookup_keeps=timedelta(hours=2))
    assert "is found for 7200 s after its first send" in text_of(msgspec.structs.replace(VENUE, capabilities=found))


def test_what_orders_may_have_and_what_happens_without_a_connection_is_told() -> None:
    plain = text_of(VENUE)
    assert "- Orders with postOnly, reduceOnly, displayQty are rejected." in plain
    assert "dead man" not in plain.partition("Optional parts")[0]
    found = Capabilities(
        dedupe="none", lookup="none", post_only=True, display_qty=True, cancel_all_after=True, cancel_on_disconnect=True
    )
    text = text_of(msgspec.structs.replace(VENUE, capabilities=found))
    for line in (
        "- Orders may have postOnly, displayQty.",
        "- Orders with reduceOnly are rejected.",
        "unless the time is renewed (VENUE_CANCEL_ALL_AFTER_<VENUE>).",
        "also when Switchyard restarts; its reports end them here.",
        "VENUE_ACCEPT_CANCEL_ON_DISCONNECT_<VENUE>",
    ):
        assert line in text


def test_the_optional_parts_of_the_adapter_are_listed() -> None:
    lines = described(VENUE, "acorn-venue 1.0", ("quotes", "cancel_all_after"))
    start = lines.index("Optional parts:")
    assert [line.partition(":")[0] for line in lines[start + 1 : start + 5]] == [
        "- quotes",
        "- no statement to compare the books with",
        "- no cancel_all",
        "- cancel_all_after",
    ]
    assert any("show only when an adapter is built" in line for line in described(VENUE, "acorn-venue 1.0", None))


@pytest.mark.parametrize("kind", ["http", "paper", "null"])
def test_every_kind_of_this_package_can_be_described_as_json(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    describe(kind, as_json=True)
    shown = msgspec.json.decode(capsys.readouterr().out)
    assert (shown["kind"], "quotes" in shown["parts"]) == (kind, True)
    assert shown["capabilities"]["post_only"] == (kind == "paper")


@pytest.mark.parametrize(
    ("seconds", "state", "words"),
    [
        (None, None, None),
        (60, "set", "cancels all open orders 60 s after the last renewal: it is set"),
        (
            60,
            "not_set",
            "cancels all open orders 60 s after the last renewal: it is NOT set, see the log of the worker",
        ),
        (60, None, "cancels all open orders 60 s after the last renewal: not reported lately"),
    ],
)
def test_the_state_of_a_dead_mans_switch_is_told(
    seconds: int | None, state: SwitchState | None, words: str | None
) -> None:
    venue = VenueState(
        venue=VenueName("acorn"),
        kind="acorn",
        state="open",
        reason=None,
        breaker="closed",
        faults=0,
        rate_per_sec=None,
        burst=None,
        latency_ms=None,
        reject_rate=None,
        cancel_all_after_sec=seconds,
        cancel_all_after=state,
    )
    assert switch_words(venue) == words
