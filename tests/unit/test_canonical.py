"""Canonical JSON: equal requests have equal digests, and different requests have different ones."""

import hashlib
import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.domain.values import canonical_json, digest


def parsed(text: str) -> Any:
    return json.loads(text, parse_float=Decimal)


@pytest.mark.parametrize("text", ["0.10", "0.1", "1e-1", "0.100000", "10E-2"])
def test_a_tenth_has_one_form(text: str) -> None:
    assert canonical_json(parsed(text)) == "0.1"


@pytest.mark.parametrize("text", ["1", "1.0", "1.00", "10e-1", "0.1e1"])
def test_one_has_one_form(text: str) -> None:
    assert canonical_json(parsed(text)) == "1"


@pytest.mark.parametrize("text", ["-0.0", "0", "0e5", "-0"])
def test_zero_has_no_sign(text: str) -> None:
    assert canonical_json(parsed(text)) == "0"


def test_large_numbers_are_written_out() -> None:
    assert canonical_json(parsed("1e3")) == "1000"
    assert canonical_json(parsed("123456789012345.12345678")) == "123456789012345.12345678"


def test_members_are_sorted_and_arrays_are_not() -> None:
    assert canonical_json(parsed('{"b":[2,1], "a":{"d":null,"c":true}}')) == '{"a":{"c":true,"d":null},"b":[2,1]}'


def test_composed_and_decomposed_letters_are_the_same() -> None:
    assert digest({"tag": "caf\u00e9"}) == digest({"tag": "cafe\u0301"})
    assert canonical_json({"tag": "注文"}) == '{"tag":"注文"}'


def test_the_trace_id_is_left_out() -> None:
    assert digest({"a": 1, "trace_id": "x"}) == digest({"a": 1, "trace_id": "y"}) == digest({"a": 1})


def test_the_digest_of_a_known_request_does_not_change() -> None:
    expected = hashlib.sha256(b'{"a":0.1,"b":[1,"x"]}').hexdigest()
    assert digest(parsed('{"b":[1.0,"x"],"a":0.10}')) == f"sha256:{expected}"


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**14), 10**14) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


texts = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(
    ["E-mini", "a\\b", 'say "x"', "trace_id", "\x7f", "caf\u00e9", "\n", "</x>"]
)
numbers = st.decimals(allow_nan=False, allow_infinity=False, places=8, min_value=-(10**14), max_value=10**14)


@given(st.dictionaries(texts, st.none() | st.booleans() | st.integers() | texts | numbers, max_size=6))
def test_the_digest_of_a_flat_request_is_that_of_its_canonical_form(value: dict[str, Any]) -> None:
    expected = hashlib.sha256(canonical_json(value).encode()).hexdigest()
    assert digest(value) == f"sha256:{expected}"


@given(values)
def test_the_canonical_form_is_json_and_canonical_itself(value: Any) -> None:
    text = canonical_json(value)
    assert canonical_json(parsed(text)) == text
