"""The keys of tokens: asked for rarely, kept while they cannot be read, never taken from a set that is wrong."""

import asyncio
import json
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from structlog.testing import capture_logs

from switchyard.domain.errors import Unavailable
from switchyard.entrypoints.http.transport.key_ring import (
    ASK_SECONDS_MIN,
    ERROR_LENGTH_MAX,
    KEY_SET_BYTES_MAX,
    REFRESH_SECONDS,
    KeyRing,
    KeySetUnusable,
    parse_key_set,
)
from tests.support.keys import foreign_key, private_key, public_jwk
from tests.support.memory.clock import ManualClock

AGE_MAX = timedelta(hours=1)


class Issuer:
    """Publishes a key set; counts how often it is asked."""

    def __init__(self, *kids: str) -> None:
        self.asked = 0
        self.content = key_set(*kids)
        self.error: Exception | None = None
        self.answers = asyncio.Event()
        self.answers.set()

    async def __call__(self) -> bytes:
        self.asked += 1
        await self.answers.wait()
        if self.error is not None:
            raise self.error
        return self.content


def key_set(*kids: str) -> bytes:
    return json.dumps({"keys": [public_jwk(private_key(), kid) for kid in kids]}).encode()


def ring_of(issuer: Issuer, clock: ManualClock) -> KeyRing:
    return KeyRing(issuer, clock=clock, age_max=AGE_MAX)


async def test_a_thousand_unknown_names_ask_once_in_ten_seconds() -> None:
    clock, issuer = ManualClock(), Issuer("a")
    ring = ring_of(issuer, clock)
    assert await ring.key("a") is not None
    assert await asyncio.gather(*[ring.key(f"unknown {number}") for number in range(1000)]) == [None] * 1000
    assert issuer.asked == 1
    clock.advance(timedelta(seconds=ASK_SECONDS_MIN))
    issuer.content = key_set("a", "b")
    found = await asyncio.gather(ring.key("b"), ring.key("b"), ring.key("c"))
    assert [key is not None for key in found] == [True, True, False]
    assert issuer.asked == 2


async def test_a_known_key_does_not_wait_for_an_unknown_one() -> None:
    clock, issuer = ManualClock(), Issuer("a")
    ring = ring_of(issuer, clock)
    await ring.key("a")
    clock.advance(timedelta(seconds=REFRESH_SECONDS))
    issuer.answers.clear()
    waiting = asyncio.create_task(ring.key("b"))
    await asyncio.sleep(0)
    assert await ring.key("a") is not None
    assert not waiting.done()
    issuer.answers.set()
    assert await waiting is None


async def test_a_removed_key_is_not_accepted_after_the_next_read() -> None:
    clock, issuer = ManualClock(), Issuer("a", "b")
    ring = ring_of(issuer, clock)
    assert await ring.key("a") is not None
    issuer.content = key_set("b")
    clock.advance(timedelta(seconds=REFRESH_SECONDS))
    await ring.key("x")  # waits for the set
    assert await ring.key("a") is None


@pytest.mark.parametrize(
    "fault", [OSError("down"), b"", b"{}", b'{"keys":[]}', b"<html>", b"x" * 100_000, b"[" * 60_000]
)
async def test_the_last_good_set_is_kept_for_a_while_and_not_longer(fault: Exception | bytes) -> None:
    clock, issuer = ManualClock(), Issuer("a")
    ring = ring_of(issuer, clock)
    await ring.key("a")
    if isinstance(fault, bytes):
        issuer.content = fault
    else:
        issuer.error = fault
    clock.advance(AGE_MAX)
    assert await ring.key("a") is not None
    assert await ring.key("unknown") is None
    clock.advance(timedelta(seconds=ASK_SECONDS_MIN))
    with pytest.raises(Unavailable):
        await ring.key("a")
    issuer.error, issuer.content = None, key_set("a")
    clock.advance(timedelta(seconds=ASK_SECONDS_MIN))
    assert await ring.key("a") is not None


async def test_without_any_set_nothing_is_verified_until_there_is_one() -> None:
    clock, issuer = ManualClock(), Issuer("a")
    issuer.error = OSError("down")
    ring = ring_of(issuer, clock)
    for _ in range(3):
        with pytest.raises(Unavailable):
            await ring.key("a")
    assert issuer.asked == 1
    issuer.error = None
    clock.advance(timedelta(seconds=ASK_SECONDS_MIN))
    assert await ring.key("a") is not None


async def test_the_garbage_of_an_issuer_does_not_fill_the_log() -> None:
    issuer = Issuer("a")
    issuer.error = OSError("x" * 100_000)
    with capture_logs() as lines, pytest.raises(Unavailable):
        await ring_of(issuer, ManualClock()).key("a")
    assert [len(line["error"]) for line in lines if line["event"] == "key_set_not_read"] == [ERROR_LENGTH_MAX]


def test_other_kinds_of_keys_in_a_set_are_left_out() -> None:
    usable = public_jwk(private_key(), "usable")
    others: list[Any] = [
        {"kty": "EC", "kid": "ec", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": "oct", "kid": "secret", "k": "c2VjcmV0"},
        {**public_jwk(foreign_key(), "encryption"), "use": "enc"},
        {**public_jwk(foreign_key(), "longer"), "alg": "RS512"},
        {**public_jwk(foreign_key(), "signer"), "key_ops": ["sign"]},
        "text",
    ]
    assert parse_key_set(json.dumps({"keys": [*others, usable]}).encode()).keys() == {"usable"}


def small_key() -> dict[str, Any]:
    return public_jwk(rsa.generate_private_key(public_exponent=65537, key_size=1024), "small")


@pytest.mark.parametrize(
    ("keys", "complaint"),
    [
        ([], "no RSA key"),
        ([{**public_jwk(private_key(), "a"), "d": "AQAB"}], "private key"),
        ([public_jwk(private_key(), "a"), public_jwk(foreign_key(), "a")], "two keys"),
        ([public_jwk(private_key(), "")], "kid"),
        ([{**public_jwk(private_key()), "kid": 5}], "kid"),
        ([{**public_jwk(private_key()), "n": "!"}], "cannot be read|bits"),
        ([{**public_jwk(private_key()), "n": "AQAB"}], "cannot be read|bits"),
        ([small_key()], "bits"),
        ([public_jwk(private_key(), str(number)) for number in range(51)], "at most 50"),
    ],
)
def test_a_set_that_is_wrong_is_not_used_at_all(keys: list[Any], complaint: str) -> None:
    with pytest.raises(KeySetUnusable, match=complaint):
        parse_key_set(json.dumps({"keys": keys}).encode())


def test_a_set_over_its_bound_is_not_parsed() -> None:
    with pytest.raises(KeySetUnusable, match="longer"):
        parse_key_set(b" " * (KEY_SET_BYTES_MAX + 1))
