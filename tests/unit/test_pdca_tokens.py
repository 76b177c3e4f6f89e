"""Tokens of the PDCA API: only RS256 by a key of the key ring, for the right issuer, audience and time."""

import base64
import hashlib
import hmac
import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given, settings
from hypothesis import strategies as st

from switchyard.adapters.files.signing_keys import SigningKey
from switchyard.domain.errors import Forbidden, Unauthorized
from switchyard.entrypoints.http.transport.key_ring import KeyRing
from switchyard.entrypoints.http.transport.rs256 import PdcaTokens, issue_pdca_token
from tests.support.keys import KID, foreign_key, pem, private_key, public_jwk
from tests.support.memory.clock import ManualClock

ISSUER = "noctria.auth"
NOW = int(ManualClock().now().timestamp())


def verifier(clock: ManualClock | None = None) -> PdcaTokens:
    async def fetch() -> bytes:
        return json.dumps({"keys": [public_jwk(private_key())]}).encode()

    clock = clock or ManualClock()
    return PdcaTokens(KeyRing(fetch, clock=clock, age_max=timedelta(days=1)), clock=clock, issuer=ISSUER)


def claims(**changes: Any) -> dict[str, Any]:
    whole = {
        "iss": ISSUER,
        "aud": "pdca",
        "sub": "ops",
        "iat": NOW,
        "exp": NOW + 60,
        "scope": "pdca:read pdca:recheck",
        **changes,
    }
    return {name: value for name, value in whole.items() if value is not ...}


def encoded(part: bytes) -> bytes:
    return base64.urlsafe_b64encode(part).rstrip(b"=")


def signed(
    header: dict[str, Any] | bytes | None = None,
    body: dict[str, Any] | bytes | None = None,
    sign: Callable[[bytes], bytes] | None = None,
) -> bytes:
    """A token whose header, claims and signature are as a test wants them, whatever a library would refuse."""
    shown = header if isinstance(header, bytes) else json.dumps({"alg": "RS256", "kid": KID, **(header or {})}).encode()
    content = body if isinstance(body, bytes) else json.dumps(claims() if body is None else body).encode()
    text = encoded(shown) + b"." + encoded(content)
    signature = (sign or rs256(private_key()))(text)
    return text + b"." + encoded(signature)


def rs256(key: rsa.RSAPrivateKey) -> Callable[[bytes], bytes]:
    return lambda text: jwt.get_algorithm_by_name("RS256").sign(text, key)


def hs256(secret: bytes) -> Callable[[bytes], bytes]:
    return lambda text: hmac.digest(secret, text, hashlib.sha256)


async def reason_of(token: bytes, audiences: tuple[str, ...] = ("pdca",)) -> str:
    with pytest.raises(Unauthorized) as raised:
        await verifier().grant(b"Bearer " + token, audiences)
    return raised.value.reason


async def test_an_issued_token_grants_its_client_its_scopes_until_it_expires() -> None:
    clock = ManualClock()
    token = issue_pdca_token(
        SigningKey(KID, pem(private_key())),
        "ops",
        clock=clock,
        ttl=timedelta(minutes=1),
        issuer=ISSUER,
        audiences=["pdca", "pdca.gui"],
        scopes=["pdca:read"],
    ).encode()
    tokens = verifier(clock)
    for audience in ("pdca", "pdca.gui"):
        grant = await tokens.grant(b"Bearer " + token, {audience})
        assert (grant.client_id, grant.scopes) == ("ops", frozenset({"pdca:read"}))
        grant.require("pdca:read")
        with pytest.raises(Forbidden):
            grant.require("pdca:recheck")
    clock.advance(timedelta(minutes=1))
    with pytest.raises(Unauthorized) as raised:
        await tokens.grant(b"Bearer " + token, {"pdca"})
    assert raised.value.reason == "TOKEN_EXPIRED"


@pytest.mark.parametrize(
    ("named", "tenants"),
    [
        ({}, {"client:ops"}),
        ({"accounts": ["ann"]}, {"account:ann"}),
        ({"accounts": ["ann", "bob", "ann"]}, {"account:ann", "account:bob"}),
        ({"accounts": ["*"]}, {"account:*"}),  # an account of that name, and not all
        ({"accounts": "*"}, None),
    ],
)
async def test_the_accounts_of_a_token_decide_what_exists_for_it(named: Any, tenants: set[str] | None) -> None:
    grant = await verifier().grant(b"Bearer " + signed(body=claims(**named)), {"pdca"})
    assert grant.tenants == (None if tenants is None else frozenset(tenants))


@pytest.mark.parametrize(
    "accounts", [None, [], "", "ann", "**", ["ann", ""], ["a b"], ["-"], [5], [["ann"]], {"ann": 1}, 5, True, "* "]
)
async def test_malformed_accounts_are_rejected_and_do_not_fall_back_to_the_client(accounts: object) -> None:
    assert await reason_of(signed(body=claims(accounts=accounts))) == "TOKEN_INVALID"


PUBLIC_FORMS = [
    lambda key: key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
    lambda key: key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).strip(),
    lambda key: key.public_bytes(Encoding.PEM, PublicFormat.PKCS1),
    lambda key: key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo),
    lambda key: json.dumps(public_jwk(private_key())).encode(),
    lambda key: public_jwk(private_key())["n"].encode(),
]


@pytest.mark.parametrize("form", PUBLIC_FORMS)
@pytest.mark.parametrize("algorithm", ["HS256", "RS256"])
async def test_the_real_public_key_is_no_shared_secret(form: Callable[[Any], bytes], algorithm: str) -> None:
    secret = form(private_key().public_key())
    assert await reason_of(signed({"alg": algorithm}, sign=hs256(secret))) == "TOKEN_INVALID"


@pytest.mark.parametrize(
    "algorithm", ["none", "None", "NONE", "", "HS256", "RS384", "PS256", "ES256", None, 5, ["RS256"]]
)
@pytest.mark.parametrize("sign", [None, lambda _: b""])
async def test_no_other_algorithm_is_accepted(algorithm: object, sign: Callable[[bytes], bytes] | None) -> None:
    assert await reason_of(signed({"alg": algorithm}, sign=sign)) == "TOKEN_INVALID"


@pytest.mark.parametrize(
    "kid",
    [
        "key-2",
        "../../dev/null",
        "file:///dev/null",
        "http://127.0.0.1:1/key",
        "key-1' OR '1'='1",
        "key-1\u0000",
        "",
        "x" * 4000,
    ],
)
async def test_a_kid_is_only_looked_up_and_never_followed(kid: str) -> None:
    for sign in (rs256(private_key()), rs256(foreign_key()), hs256(b"")):
        assert await reason_of(signed({"kid": kid}, sign=sign)) == "TOKEN_INVALID"


@pytest.mark.parametrize("kid", [None, 5, ["key-1"], {"key-1": 1}])
async def test_a_kid_must_be_a_text(kid: object) -> None:
    assert await reason_of(signed({"kid": kid})) == "TOKEN_INVALID"
    assert await reason_of(signed(json.dumps({"alg": "RS256"}).encode())) == "TOKEN_INVALID"


async def test_keys_that_the_token_itself_brings_or_names_do_not_count() -> None:
    foreign = public_jwk(foreign_key())
    for extra in (
        {"jwk": foreign},
        {"jku": "http://127.0.0.1:1/jwks.json"},
        {"x5u": "http://127.0.0.1:1/cert.pem"},
        {"x5c": ["MIIB"]},
    ):
        assert await reason_of(signed(extra, sign=rs256(foreign_key()))) == "TOKEN_INVALID"
        grant = await verifier().grant(b"Bearer " + signed(extra), {"pdca"})
        assert grant.client_id == "ops"


@pytest.mark.parametrize("extra", [{"crit": ["exp"]}, {"crit": []}, {"crit": None}, {"b64": False}, {"b64": True}])
async def test_a_header_that_demands_an_extension_is_rejected(extra: dict[str, Any]) -> None:
    assert await reason_of(signed(extra)) == "TOKEN_INVALID"


@pytest.mark.parametrize(
    "changes",
    [
        {"exp": ...},
        {"exp": None},
        {"exp": "9999999999"},
        {"exp": True},
        {"iat": NOW + 60},
        {"nbf": NOW + 60},
        {"iat": "now"},
        {"iss": ...},
        {"iss": "noctria.auth.evil"},
        {"iss": ["noctria.auth"]},
        {"aud": ...},
        {"aud": "pdca.gui"},
        {"aud": ["pdca.gui", "pdca.other"]},
        {"aud": "pdca pdca.gui"},
        {"aud": {"pdca": 1}},
        {"aud": [["pdca"]]},
        {"sub": ...},
        {"sub": ""},
        {"sub": 5},
        {"sub": "ops\nadmin"},
        {"sub": "x" * 129},
        {"scope": ...},
        {"scope": ""},
        {"scope": " "},
        {"scope": ["pdca:read"]},
    ],
)
async def test_a_claim_that_is_missing_or_wrong_is_rejected(changes: dict[str, Any]) -> None:
    assert await reason_of(signed(body=claims(**changes))) == "TOKEN_INVALID"


async def test_expired_tokens_are_rejected_to_the_second() -> None:
    for expiry in (NOW, NOW - 1, NOW - 0.5, -1, 0):
        assert await reason_of(signed(body=claims(exp=expiry))) == "TOKEN_EXPIRED"
    grant = await verifier().grant(b"Bearer " + signed(body=claims(exp=NOW + 0.5, iat=NOW + 4)), {"pdca"})
    assert grant.client_id == "ops"


@pytest.mark.parametrize(
    "body",
    [
        b'{"iss":"noctria.auth","iss":"noctria.auth","aud":"pdca","sub":"ops","exp":%d,"scope":"pdca:read"}'
        % (NOW + 60),
        b'{"iss":"noctria.auth","aud":"pdca","sub":"ops","exp":1,"exp":%d,"scope":"pdca:read"}' % (NOW + 60),
        b'{"iss":"noctria.auth","aud":"pdca","sub":"ops","exp":Infinity,"scope":"pdca:read"}',
        b'{"iss":"noctria.auth","aud":"pdca","sub":"ops","exp":1e999,"scope":"pdca:read"}',
        b"[]",
        b"null",
        b"",
        b"\xff",
        b'{"sub":"\\ud800"}',
    ],
)
async def test_claims_that_readers_could_read_differently_are_malformed(body: bytes) -> None:
    assert await reason_of(signed(body=body)) == "TOKEN_MALFORMED"


async def test_a_header_with_a_repeated_member_is_malformed() -> None:
    header = b'{"alg":"none","alg":"RS256","kid":"key-1"}'
    assert await reason_of(signed(header)) == "TOKEN_MALFORMED"


async def test_an_expiry_beyond_the_year_9999_is_rejected() -> None:
    for expiry in (253_402_300_800, 10**399):
        assert await reason_of(signed(body=claims(exp=expiry))) == "TOKEN_INVALID"


async def test_an_infinite_expiry_of_a_finite_number_is_rejected() -> None:
    body = b'{"iss":"noctria.auth","aud":"pdca","sub":"ops","exp":1e399,"scope":"pdca:read"}'
    assert await reason_of(signed(body=body)) == "TOKEN_INVALID"


async def test_a_changed_token_is_rejected() -> None:
    header, body, signature = signed().split(b".")
    other = encoded(json.dumps(claims(scope="pdca:recheck_all")).encode())
    for changed in (
        b".".join((header, other, signature)),
        b".".join((encoded(b'{"alg":"RS256","kid":"key-1","typ":"JWT"}'), body, signature)),
        b".".join((header, body, encoded(b"\x00" * 256))),
        b".".join((header, body, b"")),
        b".".join((header, body, signature[:-8])),
    ):
        assert await reason_of(changed) == "TOKEN_INVALID"


@pytest.mark.parametrize("token", [b"", b".", b"..", b"a.b.c.d", b"a b", b"!.!.!", b"\xff.\xff.\xff"])
async def test_text_that_is_no_token_is_malformed(token: bytes) -> None:
    assert await reason_of(token) == "TOKEN_MALFORMED"


async def test_a_huge_token_is_rejected_unread() -> None:
    assert await reason_of(signed(body=claims(filler="x" * 9_000))) == "TOKEN_MALFORMED"
    deep = b'{"a":' * 2_000 + b"1" + b"}" * 2_000
    with pytest.raises(Unauthorized):
        await verifier().grant(b"Bearer " + signed(body=deep[:6000]), {"pdca"})


@pytest.mark.parametrize("header", [None, b"", b"Basic abc", b"Bearer"])
async def test_a_request_without_a_token_is_rejected(header: bytes | None) -> None:
    with pytest.raises(Unauthorized):
        await verifier().grant(header, {"pdca"})


names = st.sampled_from(["alg", "kid", "typ", "crit", "b64", "jku", "jwk"])
claim_names = st.sampled_from(["exp", "nbf", "iat", "aud", "iss", "sub", "scope"])
values = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just("RS256"), st.just(KID)
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=4,
)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(names, values), st.dictionaries(claim_names, values))
async def test_any_signed_token_raises_nothing_but_unauthorized(header: dict[str, Any], body: dict[str, Any]) -> None:
    try:
        grant = await verifier().grant(b"Bearer " + signed(header, claims(**body)), {"pdca"})
    except Unauthorized:
        return
    assert grant.client_id
