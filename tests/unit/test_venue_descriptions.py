"""`venues describe` tells in words what the core acts on."""

from datetime import date, timedelta

import msgspec

from switchyard.entrypoints.cli.venues import described
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
