"""The seal accepts only a complete entry, written with the same key, for the account, operation and key requested."""

from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.adapters.redis.scripts import (
    ACCESS_LENGTH,
    HEAD_LENGTH,
    RANK_LENGTH,
    VALUE_BYTES_MAX,
    CountBucket,
    Seal,
)
from switchyard.domain.ids import AccountId
from switchyard.ports.cache import CacheEntry, CacheStatus
from tests.support.cache import KEY, a_cache_entry, as_put
from tests.support.memory.clock import START

SEAL = Seal(KEY)


def opened(value: object, entry: CacheEntry) -> CacheEntry | None:
    return SEAL.open(value, entry.account_id, entry.operation, entry.idempotency_key)


def test_an_entry_is_decoded_as_it_was_encoded() -> None:
    entry = a_cache_entry("k", response='{"text":"円"}', http_status=201, request_id="r")
    assert opened(SEAL.close(entry), entry) == entry


def test_every_flipped_bit_truncation_and_added_byte_is_detected() -> None:
    entry = a_cache_entry("k")
    value = SEAL.close(entry)
    counted = range(HEAD_LENGTH, HEAD_LENGTH + ACCESS_LENGTH)
    for at in range(len(value)):
        flipped = opened(value[:at] + bytes([value[at] ^ 1]) + value[at + 1 :], entry)
        # The server counts lookups between head and digest, and can change nothing else.
        assert as_put(flipped) == (entry if at in counted else None)
        assert opened(value[:at], entry) is None
    assert opened(value + b"\0", entry) is None


@given(st.binary(min_size=ACCESS_LENGTH, max_size=ACCESS_LENGTH) | st.from_regex(rb"[0-9]{26}", fullmatch=True))
def test_arbitrary_counts_of_lookups_change_no_entry(access: bytes) -> None:
    entry = a_cache_entry("k")
    value = SEAL.close(entry)
    assert as_put(opened(value[:HEAD_LENGTH] + access + value[HEAD_LENGTH + ACCESS_LENGTH :], entry)) == entry


@given(st.one_of(st.binary(max_size=300), st.none(), st.integers(), st.lists(st.binary()), st.text()))
def test_arbitrary_values_are_not_entries(value: object) -> None:
    assert opened(value, a_cache_entry("k")) is None


def test_an_entry_for_another_request_or_sealed_with_another_key_is_not_accepted() -> None:
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
def test_distinct_parts_give_distinct_names(first: list[str], second: list[str]) -> None:
    assert (SEAL.name(*first) == SEAL.name(*second)) == (first == second)


def test_names_reveal_no_part_and_depend_on_the_key() -> None:
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
def test_heads_sort_as_the_precedence_of_their_entries(first: CacheEntry, second: CacheEntry) -> None:
    ranks = [SEAL.close(entry)[:RANK_LENGTH] for entry in (first, second)]
    assert (ranks[0] < ranks[1]) == (first.precedence < second.precedence)
    assert (ranks[0] == ranks[1]) == (first.precedence == second.precedence)


def test_the_head_contains_the_count_bucket() -> None:
    entry = a_cache_entry("k", status="failed")
    field = SEAL.close(entry)[RANK_LENGTH:HEAD_LENGTH]
    minute = int(START.timestamp()) // 60
    assert CountBucket.parse(field) == CountBucket(minute + 60, minute, "failed")
    for wrong in (b"", b"1:2", b"1:2:x", b"x:2:c", b"\xff"):
        assert CountBucket.parse(wrong) is None


def test_an_entry_of_a_version_with_another_format_is_a_miss() -> None:
    entry = a_cache_entry("k")
    head = SEAL.close(entry)[:HEAD_LENGTH]
    counted = b"0" * ACCESS_LENGTH
    body = msgspec.msgpack.encode({"account_id": AccountId("a")})
    assert opened(head + counted + SEAL._digest("entry", head + body) + body, entry) is None
