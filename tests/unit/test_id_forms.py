"""Client order ids in the forms of venues: exact both ways, recognisable, and in the order of their generations."""

import re
import uuid

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from switchyard.domain.errors import SettingError
from switchyard.domain.ids import (
    DIGEST_DIGITS_MIN,
    AccountId,
    IdForm,
    OrderId,
    VenueClientOrderId,
    amend_client_order_id,
    carries,
    digest_digits,
    from_venue,
    last_generation,
    narrowed,
    narrowest,
    new_installation,
    other_generations,
    tag_of,
    to_venue,
    venue_client_order_id,
)
from switchyard.ports.venue import Capabilities
from switchyard.venue import Descriptor
from switchyard.venue.kinds import check_descriptor

LOWER, UPPER, DIGITS = "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789"
UUID = IdForm(is_uuid=True)
SHORT = IdForm(length_max=18)
FORMS = {
    "default": IdForm(),
    "prefix": IdForm(length_max=36, prefix="x-"),
    "uuid": UUID,
    "18 characters": SHORT,
    "t- and 26 more": IdForm(length_max=28, prefix="t-"),
    "upper case": IdForm(length_max=32, alphabet=UPPER + DIGITS),
    "hexadecimal": IdForm(length_max=32, alphabet="0123456789abcdef"),
    "a number": IdForm(length_max=30, alphabet=DIGITS, prefix="1"),
    "both cases": IdForm(length_max=20, alphabet=LOWER + UPPER + DIGITS + "-_", prefix="sy-"),
}
forms = st.sampled_from(list(FORMS.values())) | st.builds(
    IdForm,
    length_max=st.integers(14, 64),
    alphabet=st.sampled_from([LOWER + DIGITS, UPPER + DIGITS, DIGITS, LOWER + UPPER + DIGITS, "01"]),
    prefix=st.sampled_from(["", "t-", "x", "1"]),
).filter(lambda form: digest_digits(form) >= DIGEST_DIGITS_MIN)
tags = st.integers(0, 2**20 - 1).map(lambda bits: new_installation(0, 0, bits).tag)
texts = st.text(alphabet="abz019-fF4", min_size=0, max_size=40)


def id_of(tag: str, key: str, generation: int = 0, form: IdForm = IdForm()) -> VenueClientOrderId:  # noqa: B008
    return venue_client_order_id(tag, AccountId("account"), "orders", key, generation, OrderId("ord_1"), form)


@given(forms, tags, st.text(), st.integers(0, 16**5 - 1))
def test_an_id_comes_back_from_its_venue_as_it_was(form: IdForm, tag: str, key: str, generation: int) -> None:
    for client_id in (
        id_of(tag, key, generation, form),
        amend_client_order_id(tag, id_of(tag, key), "amend", key, form),
    ):
        there = to_venue(client_id, form)
        assert from_venue(there, form) == client_id
        assert tag_of(client_id) == tag
        assert carries(form, client_id)
        if form.is_uuid:
            assert str(uuid.UUID(there)) == there and uuid.UUID(there).version == 4
        else:
            assert len(there) <= form.length_max and there.startswith(form.prefix)
            assert set(there[len(form.prefix) :]) <= set(form.alphabet)


@given(forms, texts | st.uuids().map(str) | st.uuids(version=4).map(str))
def test_a_text_of_another_system_comes_back_as_it_was(form: IdForm, text: str) -> None:
    client_id = from_venue(text, form)
    assume(client_id != text or tag_of(client_id) is None)  # a text in our own shape is an id
    assert to_venue(client_id, form) == text


@given(forms, tags, st.text(), st.integers(0, 16**5 - 2))
def test_all_generations_of_a_key_agree_and_keep_their_order_at_the_venue(
    form: IdForm, tag: str, key: str, generation: int
) -> None:
    client_id = id_of(tag, key, generation, form)
    following = id_of(tag, key, generation + 1, form)
    assert other_generations(client_id, 1) == [following]
    assert last_generation(client_id) == last_generation(following)
    assert carries(form, last_generation(client_id))
    assert to_venue(client_id, form) < to_venue(following, form) <= to_venue(last_generation(client_id), form)


@given(forms, tags, st.text())
def test_a_venue_that_takes_longer_ids_takes_the_shorter_ones_too(form: IdForm, tag: str, key: str) -> None:
    narrow = narrowest([form, IdForm()])
    client_id = id_of(tag, key, 0, narrow)
    assert client_id == narrowed(id_of(tag, key), narrow) == narrowed(client_id, form)
    assert from_venue(to_venue(client_id, IdForm()), IdForm()) == client_id


def test_a_form_without_room_for_an_id_does_not_shorten_it() -> None:
    client_id = id_of("abcd", "key")
    assert not carries(SHORT, client_id)
    with pytest.raises(AssertionError, match="no room"):
        to_venue(client_id, SHORT)


def test_the_forms_of_known_venues_look_as_their_documents_ask_for() -> None:
    shapes = {
        "default": r"abcd[0-9a-f]{23}00007",
        "prefix": r"x-abcd[0-9a-f]{23}00007",
        "uuid": r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-8[0-9a-f]{3}-[0-9a-f]{7}00007",
        "18 characters": r"abcd[0-9a-z]{14}",
        "t- and 26 more": r"t-abcd[0-9a-z]{22}",
        "upper case": r"[0-9A-Z]{26}",
        "hexadecimal": r"[0-9a-f]{32}",
        "a number": r"1[0-9]{29}",
        "both cases": r"sy-abcd[0-9a-zA-Z_-]{13}",
    }
    for name, form in FORMS.items():
        text = to_venue(id_of("abcd", "key", 7, form), form)
        assert re.fullmatch(shapes[name], text), (name, text)


@pytest.mark.parametrize(
    ("form", "problem"),
    [
        (IdForm(length_max=16), "no room for the 48 bits"),
        (IdForm(length_max=32, alphabet="ab"), "no room for the 48 bits"),
        (IdForm(length_max=20, prefix="strategy-"), "no room for the 48 bits"),
        (IdForm(length_max=40, alphabet=DIGITS), "leading zeros"),
        (IdForm(length_max=200), "128"),
        (IdForm(alphabet=LOWER + " "), "printable"),
        (IdForm(alphabet=""), "printable"),
        (IdForm(prefix="\n"), "printable"),
        (IdForm(alphabet="äöü" + LOWER), "printable"),
    ],
)
def test_a_form_that_cannot_hold_an_id_stops_the_start(form: IdForm, problem: str) -> None:
    descriptor = Descriptor(
        kind="short", title="A venue", capabilities=Capabilities(dedupe="none", lookup="none"), id_form=form
    )
    with pytest.raises(SettingError, match=problem):
        check_descriptor(descriptor, "VENUE_URL_SHORT")


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_the_forms_of_real_venues_are_taken(form: IdForm) -> None:
    descriptor = Descriptor(
        kind="real", title="A venue", capabilities=Capabilities(dedupe="none", lookup="none"), id_form=form
    )
    check_descriptor(descriptor, "VENUE_URL_REAL")
