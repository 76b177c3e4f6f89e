"""Bearer tokens: which ones are accepted, and the code for each rejection."""

import base64
import hmac
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import jwt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from switchyard.domain.errors import CannotStart, Forbidden, InvalidField, Unauthorized
from switchyard.entrypoints.http.transport import auth
from switchyard.entrypoints.http.transport.auth import TOKEN_BYTES_MAX, TokenVerifier, issue_token
from switchyard.ports.clock import Clock

SECRET = "a secret of more than thirty-two bytes"
START = datetime(2031, 5, 1, tzinfo=UTC)
NOW = int(START.timestamp())
PUBLIC_KEY = b"""-----BEGIN PUBLIC KEY-----
MFwwDQYJKoZIhvcNAQEBBQADSwAwSAJBAKj34GkxFhD90vcNLYLInFEX6Ppy1tPf
9Cnzj4p4WGeKLs1Pt8QuKUpRKfFLfRYC9AIKjbJTWit+CqvjWYzvQwECAwEAAQ==
-----END PUBLIC KEY-----
"""


class ManualClock:
    """A clock that the test moves; far from today, so that use of the wall clock fails a test."""

    def __init__(self) -> None:
        self.time = START
        self.jumped_at: datetime | None = None
        self.stepped_ahead = timedelta()

    def now(self) -> datetime:
        return self.time

    def monotonic(self) -> float:
        return self.time.timestamp()


def encoded(part: bytes) -> bytes:
    return base64.urlsafe_b64encode(part).rstrip(b"=")


def signed(claims: object, *, header: object = None, key: bytes = SECRET.encode(), digest: str = "sha256") -> bytes:
    """Build a token by hand: a library would not issue most of these."""
    parts = [header if header is not None else {"alg": "HS256", "typ": "JWT"}, claims]
    signing_input = b".".join(encoded(json.dumps(part).encode()) for part in parts)
    return b"Bearer " + signing_input + b"." + encoded(hmac.new(key, signing_input, digest).digest())


def claims(**changes: Any) -> dict[str, Any]:
    """Return valid claims with changes; a change to None removes a claim."""
    changed = {"sub": "acct_1", "exp": NOW + 60} | changes
    return {name: value for name, value in changed.items() if value is not None}


def reason_of(header: bytes | None, **options: Any) -> str:
    with pytest.raises(Unauthorized) as caught:
        TokenVerifier(SECRET, clock=ManualClock(), **options).verify(header)
    assert caught.value.message.isascii()
    return caught.value.reason


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def verifier(clock: ManualClock) -> TokenVerifier:
    return TokenVerifier(SECRET, clock=clock)


def test_the_manual_clock_is_a_clock(clock: ManualClock) -> None:
    as_port: Clock = clock
    assert as_port.now() == START


def test_an_issued_token_authenticates_its_account(clock: ManualClock) -> None:
    token = issue_token(SECRET, "acct_1", clock=clock, ttl=timedelta(minutes=5), audience="desk", issuer="us")
    verifier = TokenVerifier(SECRET.encode(), clock=clock, audience="desk", issuer="us")
    assert verifier.verify(b"Bearer " + token.encode()) == "acct_1"


def test_the_account_claim_takes_precedence_over_the_subject(verifier: TokenVerifier) -> None:
    assert verifier.verify(signed(claims(accountId="acct_2"))) == "acct_2"
    assert verifier.verify(signed(claims())) == "acct_1"


def test_the_scheme_may_be_written_in_any_case(verifier: TokenVerifier) -> None:
    assert verifier.verify(signed(claims()).replace(b"Bearer", b"bEARER")) == "acct_1"


@pytest.mark.parametrize("header", [None, b"", b"Basic YTpi", b"Bearing x", b"\tBearer x"])
def test_a_request_without_a_bearer_token_is_rejected(header: bytes | None) -> None:
    assert reason_of(header) == "TOKEN_MISSING"


@pytest.mark.parametrize(
    "header",
    [
        b"Bearer",
        b"Bearer ",
        b"Bearer x",
        b"Bearer a.b",
        b"Bearer a.b.c.d",
        b"Bearer  " + signed(claims())[7:],
        signed(claims()) + b" ",
        signed(claims()) + b"\xff",
        signed([]),
        signed("text"),
        signed(claims(), header=[]),
        b"Bearer " + b"x" * (TOKEN_BYTES_MAX + 1),
        signed(claims(padding="x" * TOKEN_BYTES_MAX)),
    ],
)
def test_text_that_is_not_a_token_is_malformed(header: bytes) -> None:
    assert reason_of(header) == "TOKEN_MALFORMED"


@pytest.mark.parametrize(
    "header",
    [
        {"alg": "none"},
        {"alg": "None"},
        {"alg": ""},
        {"alg": None},
        {"alg": ["HS256"]},
        {"alg": {"HS256": 1}},
        {"alg": "hs256"},
        {"alg": "RS256"},
        {"alg": "ES256"},
        {"typ": "JWT"},
    ],
    ids=str,
)
def test_only_hs256_is_accepted(header: dict[str, Any]) -> None:
    token = signed(claims(), header=header)
    assert reason_of(token) == "TOKEN_INVALID"
    assert reason_of(token.rsplit(b".", 1)[0] + b".") == "TOKEN_INVALID"


@pytest.mark.parametrize(("algorithm", "digest"), [("HS384", "sha384"), ("HS512", "sha512")])
def test_longer_hmac_digests_are_rejected(algorithm: str, digest: str) -> None:
    assert reason_of(signed(claims(), header={"alg": algorithm}, digest=digest)) == "TOKEN_INVALID"


def test_a_token_signed_with_a_public_key_as_the_secret_is_rejected() -> None:
    assert reason_of(signed(claims(), key=PUBLIC_KEY)) == "TOKEN_INVALID"


@pytest.mark.parametrize("secret", [PUBLIC_KEY, ""])
def test_a_public_key_or_an_empty_text_is_rejected_as_the_secret(secret: bytes | str) -> None:
    with pytest.raises(CannotStart, match="JWT_HS256_SECRET"):
        TokenVerifier(secret, clock=ManualClock())


def test_a_changed_payload_or_signature_is_rejected() -> None:
    head, _, signature = signed(claims()).split(b".")
    foreign = signed(claims(sub="acct_2")).split(b".")[1]
    assert reason_of(b".".join([head, foreign, signature])) == "TOKEN_INVALID"
    assert reason_of(signed(claims(), key=b"another secret of more than 32 bytes")) == "TOKEN_INVALID"
    assert reason_of(b".".join([head, foreign, b""])) == "TOKEN_INVALID"


@pytest.mark.parametrize("exp", [NOW, NOW - 1, 0, -1, NOW - 0.5, -(10**400)])
def test_an_expired_token_is_rejected_as_expired(exp: float) -> None:
    assert reason_of(signed(claims(exp=exp))) == "TOKEN_EXPIRED"


@pytest.mark.parametrize("exp", [None, "2099-01-01", str(NOW + 60), True, [], {}, float("inf"), float("nan")], ids=str)
def test_a_token_without_a_valid_expiry_is_rejected(exp: object) -> None:
    assert reason_of(signed(claims(exp=exp))) == "TOKEN_INVALID"


YEAR_10000 = 253_402_300_800


@pytest.mark.parametrize("exp", [YEAR_10000, YEAR_10000 * 1000, 10**399, 1e300], ids=["year", "ms", "digits", "float"])
def test_an_expiry_beyond_the_year_9999_is_rejected(verifier: TokenVerifier, exp: float) -> None:
    assert reason_of(signed(claims(exp=exp))) == "TOKEN_INVALID"
    grant = verifier.grant(signed(claims(exp=YEAR_10000 - 1)))
    assert grant.ends_at == datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)


def test_a_json_null_is_not_a_valid_expiry(verifier: TokenVerifier) -> None:
    assert reason_of(signed({"sub": "acct_1", "exp": None})) == "TOKEN_INVALID"


@pytest.mark.parametrize("name", ["nbf", "iat"])
@pytest.mark.parametrize("value", [NOW + 60, 10**400, "soon", True, [], float("inf"), float("nan")], ids=str)
def test_a_token_from_the_future_is_rejected(name: str, value: object) -> None:
    assert reason_of(signed(claims(**{name: value}))) == "TOKEN_INVALID"


@pytest.mark.parametrize("name", ["nbf", "iat"])
def test_an_issuers_clock_may_be_a_few_seconds_ahead(verifier: TokenVerifier, name: str) -> None:
    assert verifier.verify(signed(claims(**{name: NOW + 3}))) == "acct_1"
    assert verifier.verify(signed(claims(**{name: NOW - 3600}))) == "acct_1"


def test_expiry_is_judged_by_the_given_clock_and_not_by_the_wall_clock(
    clock: ManualClock, verifier: TokenVerifier
) -> None:
    clock.time = datetime(1999, 12, 31, tzinfo=UTC)
    exp = int(clock.time.timestamp()) + 1
    assert verifier.verify(signed(claims(exp=exp))) == "acct_1"


@pytest.mark.parametrize("aud", [None, "", "other", ["other"], [], 5, {"desk": 1}, ["desk", 5]], ids=str)
def test_a_token_for_another_audience_is_rejected(aud: object) -> None:
    assert reason_of(signed(claims(aud=aud)), audience="desk") == "TOKEN_INVALID"


@pytest.mark.parametrize("iss", [None, "", "them", ["us"], 5], ids=str)
def test_a_token_of_another_issuer_is_rejected(iss: object) -> None:
    assert reason_of(signed(claims(iss=iss)), issuer="us") == "TOKEN_INVALID"


def test_one_of_several_audiences_is_enough(clock: ManualClock) -> None:
    verifier = TokenVerifier(SECRET, clock=clock, audience="desk")
    assert verifier.verify(signed(claims(aud=["other", "desk"]))) == "acct_1"


def test_audience_and_issuer_do_not_matter_where_none_is_configured(verifier: TokenVerifier) -> None:
    assert verifier.verify(signed(claims(aud="anyone", iss="anybody"))) == "acct_1"


@pytest.mark.parametrize(
    "extra",
    [{"kid": "../../dev/null"}, {"kid": "http://evil.test/key"}, {"jku": "http://evil.test"}, {"x5u": "file:///etc"}],
    ids=str,
)
def test_key_references_in_the_token_header_are_ignored(verifier: TokenVerifier, extra: dict[str, str]) -> None:
    assert verifier.verify(signed(claims(), header={"alg": "HS256"} | extra)) == "acct_1"
    forged = signed(claims(), header={"alg": "HS256"} | extra, key=b"the key behind the reference, 32 bytes!!")
    assert reason_of(forged) == "TOKEN_INVALID"


@pytest.mark.parametrize("crit", [["exp"], ["http://example.test/policy"], ["\ud800"], [], "b64", [5], None], ids=ascii)
def test_an_unknown_critical_header_is_rejected(crit: object) -> None:
    assert reason_of(signed(claims(), header={"alg": "HS256", "crit": crit})) == "TOKEN_INVALID"


@pytest.mark.parametrize(
    "account",
    ["", "-", "a b", "a\n", "a/b", "a\\b", "a'b", 'a"b', "ä", "a\x00", "a\x7f", "x" * 65, "\ud800", 5, True, [], {}],
    ids=ascii,
)
def test_an_invalid_account_id_is_rejected(account: object) -> None:
    assert reason_of(signed(claims(accountId=account))) == "TOKEN_INVALID"
    assert reason_of(signed(claims(sub=account))) == "TOKEN_INVALID"


def test_a_bad_account_claim_does_not_fall_back_to_the_subject() -> None:
    assert reason_of(signed({"sub": "acct_1", "accountId": None, "exp": NOW + 60})) == "TOKEN_INVALID"


def test_a_token_without_an_account_is_rejected() -> None:
    assert reason_of(signed(claims(sub=None))) == "TOKEN_INVALID"


@pytest.mark.parametrize("account", ["a", "x" * 64, "acct_1.eu-west:7@desk!", "--", "~[]{}|^`#$%&()*+,;<=>?"])
def test_every_other_visible_text_is_a_valid_account_id(
    clock: ManualClock, verifier: TokenVerifier, account: str
) -> None:
    token = issue_token(SECRET, account, clock=clock, ttl=timedelta(seconds=1))
    assert verifier.verify(b"Bearer " + token.encode()) == account


@pytest.mark.parametrize("account", ["", "-", "a b", "x" * 65])
def test_no_token_is_issued_for_an_invalid_account_id(clock: ManualClock, account: str) -> None:
    with pytest.raises(InvalidField, match="account"):
        issue_token(SECRET, account, clock=clock, ttl=timedelta(seconds=1))


def test_a_verified_token_is_cached_but_still_expires(
    clock: ManualClock, verifier: TokenVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = signed(claims())
    assert verifier.verify(header) == "acct_1"
    with monkeypatch.context() as patch:
        patch.setattr(jwt, "decode", lambda *_, **__: pytest.fail("examined again"))
        clock.time += timedelta(seconds=59)
        assert verifier.verify(header) == "acct_1"
    clock.time += timedelta(seconds=1)
    for _ in range(2):
        with pytest.raises(Unauthorized) as caught:
            verifier.verify(header)
        assert caught.value.reason == "TOKEN_EXPIRED"


def test_a_rejected_token_is_not_cached(clock: ManualClock, verifier: TokenVerifier) -> None:
    header = signed(claims(nbf=NOW + 30))
    with pytest.raises(Unauthorized):
        verifier.verify(header)
    clock.time += timedelta(seconds=30)
    assert verifier.verify(header) == "acct_1"


def test_the_cache_of_verified_tokens_is_bounded(
    clock: ManualClock, verifier: TokenVerifier, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(auth, "CACHE_SIZE_MAX", 3)
    headers = [signed(claims(sub=f"acct_{number}")) for number in range(10)]
    for _ in range(2):
        assert [verifier.verify(header) for header in headers] == [f"acct_{number}" for number in range(10)]
    assert list(verifier._verified) == headers[-3:]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda inner: st.lists(inner, max_size=3)
)
names = st.sampled_from(["exp", "nbf", "iat", "aud", "iss", "sub", "accountId", "jti", "alg", "crit", "kid", "b64"])


@given(st.binary(max_size=200) | st.binary(max_size=200).map(lambda rest: b"Bearer " + rest))
def test_any_header_raises_nothing_but_unauthorized(header: bytes) -> None:
    with pytest.raises(Unauthorized):
        TokenVerifier(SECRET, clock=ManualClock(), audience="desk").verify(header)


@given(st.dictionaries(names, json_values), st.dictionaries(names, json_values))
def test_any_signed_claims_raise_nothing_but_unauthorized(header: dict[str, Any], body: dict[str, Any]) -> None:
    verifier = TokenVerifier(SECRET, clock=ManualClock(), audience="desk", issuer="us")
    with pytest.raises(Unauthorized):
        verifier.verify(signed({"aud": "desk"} | body, header={"alg": "HS256"} | header))


def test_a_token_grants_the_scopes_that_it_was_issued_with(clock: ManualClock, verifier: TokenVerifier) -> None:
    token = issue_token(
        SECRET, "acct_1", clock=clock, ttl=timedelta(seconds=1), scopes=["admin:kill", "orders"], subject="ann b"
    )
    header = b"Bearer " + token.encode()
    assert verifier.subject_with(header, "admin:kill") == "ann b"
    assert verifier.verify(header) == "acct_1"
    for scope in ("admin", "admin:kills", "", "admin:kill orders"):
        with pytest.raises(Forbidden):
            verifier.subject_with(header, scope)


@pytest.mark.parametrize(
    "scope", [None, "", " ", ["admin:kill"], {"admin:kill": True}, 1, "admin:kill\n", "ADMIN:KILL"]
)
def test_a_malformed_scope_grants_nothing(verifier: TokenVerifier, scope: object) -> None:
    with pytest.raises(Forbidden):
        verifier.subject_with(signed(claims(scope=scope)), "admin:kill")


@pytest.mark.parametrize("scope", ["", "a b", "ä", 'a"b', "a\\b", "x" * 65])
def test_no_token_is_issued_with_an_invalid_scope(clock: ManualClock, scope: str) -> None:
    with pytest.raises(InvalidField, match="scope"):
        issue_token(SECRET, "acct_1", clock=clock, ttl=timedelta(seconds=1), scopes=[scope])


@pytest.mark.parametrize(
    ("header", "payload"),
    [
        ('{"alg":"HS256"}', '{"sub":"acct_1","sub":"acct_2","exp":%d}'),
        ('{"alg":"HS256"}', '{"accountId":"acct_1","accountId":"acct_2","exp":%d}'),
        ('{"alg":"HS256"}', '{"sub":"acct_1","exp":1,"exp":%d}'),
        ('{"alg":"HS256"}', '{"sub":"acct_1","exp":%d,"nested":{"a":1,"a":2}}'),
        ('{"alg":"none","alg":"HS256"}', '{"sub":"acct_1","exp":%d}'),
    ],
)
def test_a_token_with_a_duplicate_member_is_rejected(header: str, payload: str) -> None:
    signing_input = b".".join(encoded(part.encode()) for part in (header, payload % (NOW + 60)))
    signature = encoded(hmac.new(SECRET.encode(), signing_input, "sha256").digest())
    assert reason_of(b"Bearer " + signing_input + b"." + signature) == "TOKEN_MALFORMED"
