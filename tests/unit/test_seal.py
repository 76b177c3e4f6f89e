"""Only what was written with the key, whole, for the place it was found at, is an entry."""

from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.adapters.memory.clock import START
from switchyard.adapters.redis.seal import HEAD_LENGTH, RANK_LENGTH, VALUE_BYTES_MAX, Counted, Seal
from switchyard.domain.ids import AccountId
from switchyard.ports.cache import CacheEntry, CacheStatus
from tests.support.cache import KEY, a_cache_entry

SEAL = Seal(KEY)


def opened(value: object, entry: CacheEntry) -> CacheEntry | None:
    return SEAL.open(value, entry.account_id, entry.operation, entry.idempotency_key)


def test_an_entry_comes_back_as_it_went() -> None:
    entry = a_cache_entry("k", response='{"text":"円"}', http_status=201, request_id="r")
    assert opened(SEAL.close(entry), entry) == entry


def test_every_flipped_bit_every_missing_end_and_every_added_byte_shows() -> None:
    entry = a_cache_entry("k")
    value = SEAL.close(entry)
    for at in range(len(value)):
        assert opened(value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :], entry) is None
        assert opened(value[:at], entry) is None
    assert opened(value + b"\0", entry) is None


@given(st.one_of(st.binary(max_size=300), st.none(), st.integers(), st.lists(st.binary()), st.text()))
def test_anything_else_is_no_entry(value: object) -> None:
    assert opened(value, a_cache_entry("k")) is None


def test_an_entry_of_another_place_or_another_key_holder_is_not_taken() -> None:
    entry = a_cache_entry("k")
    value = SEAL.close(entry)
    assert opened(value, a_cache_entry("other")) is None
    assert opened(value, a_cache_entry("k", account="other")) is None
    assert opened(value, a_cache_entry("k", operation="other")) is None
    assert opened(Seal(bytes(32)).close(entry), entry) is None


def test_a_value_beyond_the_bound_is_neither_written_nor_read() -> None:
    entry = a_cache_entry("k", request_id="x" * VALUE_BYTES_MAX)
    with pytest.raises(ValueError):
        SEAL.close(entry)
    assert opened(bytes(VALUE_BYTES_MAX + 1), entry) is None


def test_text_that_cannot_be_encoded_is_rejected() -> None:
    with pytest.raises(ValueError):
        SEAL.close(a_cache_entry("k", response="\ud800"))


@given(st.lists(st.text(max_size=8), max_size=3), st.lists(st.text(max_size=8), max_size=3))
def test_names_tell_all_parts_apart(one: list[str], other: list[str]) -> None:
    assert (SEAL.name(*one) == SEAL.name(*other)) == (one == other)


def test_names_give_nothing_away_and_differ_by_key() -> None:
    name = SEAL.name("secret-account")
    assert "secret" not in name
    assert len(name) == 64
    assert name != Seal(bytes(32)).name("secret-account")
    assert SEAL.name("\ud800", "\0", "\r\n").isalnum()


def entries() -> st.SearchStrategy[CacheEntry]:
    statuses: list[CacheStatus] = ["pending", "submitted", "completed", "failed"]
    return st.builds(
        lambda generation, late_us, status: a_cache_entry(
            "k", generation=generation, created_at=START + timedelta(microseconds=late_us), status=status
        ),
        st.integers(0, 10**10 - 1),
        st.integers(-(10**15), 10**15),
        st.sampled_from(statuses),
    )


@given(entries(), entries())
def test_heads_compare_as_their_entries_do(one: CacheEntry, other: CacheEntry) -> None:
    ranks = [SEAL.close(entry)[:RANK_LENGTH] for entry in (one, other)]
    assert (ranks[0] < ranks[1]) == (one.precedence < other.precedence)
    assert (ranks[0] == ranks[1]) == (one.precedence == other.precedence)


def test_the_head_says_what_to_count_the_entry_under() -> None:
    entry = a_cache_entry("k", status="failed")
    field = SEAL.close(entry)[RANK_LENGTH:HEAD_LENGTH]
    minute = int(START.timestamp()) // 60
    assert Counted.parse(field) == Counted(minute + 60, minute, "failed")
    for wrong in (b"", b"1:2", b"1:2:x", b"x:2:c", b"\xff"):
        assert Counted.parse(wrong) is None


def test_an_entry_of_a_version_with_another_shape_is_a_miss() -> None:
    entry = a_cache_entry("k")
    head = SEAL.close(entry)[:HEAD_LENGTH]
    body = msgspec.msgpack.encode({"account_id": AccountId("a")})
    assert opened(head + SEAL._digest("entry", head + body) + body, entry) is None
