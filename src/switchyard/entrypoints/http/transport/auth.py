"""Bearer tokens: verify and issue JSON Web Tokens, signed with HS256 only.

Reads the Authorization header and the clock; keeps verified tokens in memory. Invalid ones are limited per address and
logged as one summary; a valid one is never rejected for them, because it is verified first.
"""

import asyncio
import base64
import binascii
import math
import re
import secrets
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, NamedTuple, TypeGuard

import jwt
import structlog
from starlette.types import Scope

from switchyard.domain import values
from switchyard.domain.errors import Forbidden, InvalidField, InvalidJson, SettingError, Unauthorized
from switchyard.domain.ids import AccountId
from switchyard.entrypoints.http.errors import TooManyBadTokens
from switchyard.entrypoints.http.transport.bodies import parse_object
from switchyard.entrypoints.http.transport.guard import limited_as
from switchyard.entrypoints.http.transport.revoked import RevokedTokens
from switchyard.ports.clock import Clock
from switchyard.settings import Settings, jwt_secret
from switchyard.telemetry.metrics import Metrics

log = structlog.get_logger()

# Enough for a deployment with a wrong secret to show what is wrong; a guesser gets nowhere.
BAD_TOKENS_MAX = 30
PERIOD_SECONDS = 60.0
# Addresses counted separately; further ones share one count.
ADDRESSES_MAX = 10_000
OTHERS = "others"
# Addresses named in the summary.
NAMED_MAX = 5


class BadTokens:
    """Counts the invalid tokens of each address in the current period."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends_at = 0.0
        self._attempts: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()

    def judged(self, error: Exception, address: str) -> Exception:
        """Count an invalid token; returns the error, or TooManyBadTokens above the limit."""
        # A request without a token guesses nothing.
        if not isinstance(error, Unauthorized) or error.reason == "TOKEN_MISSING":
            return error
        if not self._attempts:
            self._ends_at = self._clock.monotonic() + PERIOD_SECONDS
            asyncio.get_running_loop().call_later(PERIOD_SECONDS, self._end_period)
        name = limited_as(address)
        if name not in self._attempts and len(self._attempts) >= ADDRESSES_MAX:
            name = OTHERS
        self._attempts[name] += 1
        self._reasons[error.reason] += 1
        if self._attempts[name] <= BAD_TOKENS_MAX:
            return error
        return TooManyBadTokens(timedelta(seconds=max(1.0, self._ends_at - self._clock.monotonic())), error.message)

    def _end_period(self) -> None:
        log.warning(
            "tokens_rejected",
            attempts=self._attempts.total(),
            limited=sum(max(0, count - BAD_TOKENS_MAX) for count in self._attempts.values()),
            addresses=len(self._attempts),
            most=dict(self._attempts.most_common(NAMED_MAX)),
            reasons=dict(self._reasons),
            seconds=PERIOD_SECONDS,
        )
        self._attempts.clear()
        self._reasons.clear()


# One algorithm for one kind of key, so that a public key can never be used as a shared secret.
ALGORITHM = "HS256"
# Tolerated lead of the issuer's clock for `nbf` and `iat`. There is no leeway for `exp`.
LEEWAY_SECONDS = 5.0
# Some identity providers put a page of claims into a token; none needs more than this.
TOKEN_BYTES_MAX = 8192
# Verified tokens kept in memory, oldest dropped first; with tokens of the size above this is at most 80 MB.
CACHE_SIZE_MAX = 10_000
# Expired tokens leave the memory at the first new token after this time.
SWEEP_SECONDS = 60.0

# The last second that Python can represent. A token with a later time is an error of its issuer.
_LATEST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()

# The first match counts, so a subclass stands before its base.
_REJECTIONS: tuple[tuple[type[jwt.PyJWTError], str, str], ...] = (
    (jwt.InvalidSignatureError, "TOKEN_INVALID", "the token's signature does not match"),
    (jwt.DecodeError, "TOKEN_MALFORMED", "the Authorization header contains no JSON Web Token"),
    (jwt.InvalidAlgorithmError, "TOKEN_INVALID", f"tokens must be signed with {ALGORITHM}"),
    (
        jwt.MissingRequiredClaimError,
        "TOKEN_INVALID",
        "a required claim is missing: exp, or aud or iss where this server requires them",
    ),
    (jwt.InvalidAudienceError, "TOKEN_INVALID", "the token's aud is not this server's audience"),
    (jwt.InvalidIssuerError, "TOKEN_INVALID", "the token's iss is not the issuer that this server trusts"),
)

# RFC 6749: the scopes of a token are one text, separated by spaces.
SCOPE = re.compile(r"[!#-\[\]-~]{1,64}")
OPERATOR_SCOPES = "admin:"
# Grants nothing but the details of `/health*` and `/venues`, which every other scope of an operator shows too.
HEALTH_SCOPE = "admin:health"


class Grant(NamedTuple):
    """What a verified token grants."""

    account: AccountId
    expires_at: float
    subject: str
    """The person or program that the token was issued to."""
    scopes: frozenset[str]
    jti: str | None = None
    """The token's id, by which it can be revoked."""

    @property
    def ends_at(self) -> datetime:
        """When the token expires."""
        return datetime.fromtimestamp(self.expires_at, UTC)

    @property
    def is_operator(self) -> bool:
        """Whether the token has a scope of operators, such as `admin:kill`."""
        return any(scope.startswith(OPERATOR_SCOPES) for scope in self.scopes)


class TokenVerifier:
    """Finds the account that an Authorization header authenticates."""

    def __init__(
        self,
        secret: bytes | str,
        *,
        clock: Clock,
        audience: str | None = None,
        issuer: str | None = None,
        revoked: RevokedTokens | None = None,
    ) -> None:
        try:
            self._secret = jwt.get_algorithm_by_name(ALGORITHM).prepare_key(secret)
        except jwt.InvalidKeyError as error:
            raise SettingError("JWT_HS256_SECRET", "must be a shared secret: not empty and not a public key") from error
        self._clock = clock
        self._audience = audience
        self._issuer = issuer
        self._revoked = revoked
        self._verified: dict[bytes, Grant] = {}
        self._sweep_at = 0.0

    def verify(self, authorization_header: bytes | None) -> AccountId:
        """Return the account; raises Unauthorized."""
        return self.grant(authorization_header).account

    def grant(self, authorization_header: bytes | None) -> Grant:
        """Return what the token grants; raises Unauthorized."""
        if authorization_header is None:
            raise Unauthorized("TOKEN_MISSING", "Authorization: Bearer <token> is required")
        now = self._clock.now().timestamp()
        known = self._verified.get(authorization_header)
        if known is not None and now < known.expires_at:
            if self._revoked is not None:
                self._revoked.check(known.jti)
            return known
        self._verified.pop(authorization_header, None)
        grant = self._examine(bearer_token(authorization_header), now)
        if self._revoked is not None:
            self._revoked.check(grant.jti)
        if now >= self._sweep_at:
            self._verified = {header: known for header, known in self._verified.items() if now < known.expires_at}
            self._sweep_at = now + SWEEP_SECONDS
        if len(self._verified) >= CACHE_SIZE_MAX:
            del self._verified[next(iter(self._verified))]
        self._verified[authorization_header] = grant
        return grant

    def is_revoked(self, grant: Grant) -> bool:
        """Whether the token of a grant has been revoked."""
        return self._revoked is not None and self._revoked.includes(grant.jti)

    def subject_with(self, authorization_header: bytes | None, scope: str) -> str:
        """Return the subject of a token that has the scope; raises Unauthorized and Forbidden."""
        grant = self.grant(authorization_header)
        if scope not in grant.scopes:
            raise Forbidden(scope)
        return grant.subject

    def _examine(self, token: bytes, now: float) -> Grant:
        claims = self._claims(token)
        expires_at = numeric_date(claims, "exp")
        if now >= expires_at:
            raise Unauthorized("TOKEN_EXPIRED", "the token has expired")
        for name in ("nbf", "iat"):
            if name in claims and numeric_date(claims, name) > now + LEEWAY_SECONDS:
                raise Unauthorized("TOKEN_INVALID", f"the token is not valid yet: {name} is in the future")
        # A malformed accountId is an error; it must not fall back to the subject.
        account = claims["accountId"] if "accountId" in claims else claims.get("sub")
        if not is_account(account):
            raise Unauthorized("TOKEN_INVALID", "the token's accountId (or sub) is not a valid account id")
        strict_parts(token)
        subject, scope, jti = claims.get("sub"), claims.get("scope"), claims.get("jti")
        return Grant(
            account=AccountId(account),
            expires_at=expires_at,
            subject=subject if isinstance(subject, str) and subject else account,
            scopes=frozenset(scope.split(" ")) - {""} if isinstance(scope, str) else frozenset(),
            jti=jti if isinstance(jti, str) else None,
        )

    def _claims(self, token: bytes) -> dict[str, Any]:
        try:
            return jwt.decode(
                token,
                self._secret,
                algorithms=[ALGORITHM],
                audience=self._audience,
                issuer=self._issuer,
                options={
                    "require": ["exp"],
                    # PyJWT reads the wall clock; `_examine` checks the times by this process's clock port.
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                    # PyJWT would reject a token with an audience where no audience is configured.
                    "verify_aud": self._audience is not None,
                },
            )
        except jwt.PyJWTError as error:
            # Not the library's message: it quotes the token, which is the caller's text.
            reason, message = next(
                (rejection for kind, *rejection in _REJECTIONS if isinstance(error, kind)),
                ("TOKEN_INVALID", "the token's header or subject is invalid"),
            )
            raise Unauthorized(reason, message) from error


def strict_parts(token: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return header and claims, parsed so that every reader of the token sees the same: no duplicate members."""
    parts = token.split(b".")
    if len(parts) != 3:
        raise malformed_token()
    try:
        header, payload = (parse_object(_decoded(part)) for part in parts[:2])
    except InvalidJson as error:
        raise malformed_token() from error
    return header, payload


def _decoded(part: bytes) -> bytes:
    try:
        return base64.b64decode(part + b"=" * (-len(part) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise malformed_token() from error


def malformed_token() -> Unauthorized:
    """Return the error for a text that is no token, or one that readers may read in different ways."""
    return Unauthorized("TOKEN_MALFORMED", "the Authorization header contains no JSON Web Token")


def verifier(settings: Settings, clock: Clock, metrics: Metrics) -> TokenVerifier:
    """Return the verifier of the settings' secret; `clock`: wall time."""
    return TokenVerifier(
        jwt_secret(settings),
        clock=clock,
        audience=settings.jwt_audience,
        issuer=settings.jwt_issuer,
        revoked=revoked_tokens(settings, clock, metrics),
    )


def revoked_tokens(settings: Settings, clock: Clock, metrics: Metrics) -> RevokedTokens:
    """Return the list of the settings, or the one that may be in the data folder."""
    path = settings.revoked_tokens
    return RevokedTokens(
        path or settings.data_dir / "revoked_tokens",
        clock=clock,
        must_exist=path is not None,
        on_state=metrics.process.revoked_tokens_up.set,
    )


def issue_token(
    secret: bytes | str,
    account: str,
    *,
    clock: Clock,
    ttl: timedelta,
    audience: str | None = None,
    issuer: str | None = None,
    scopes: Sequence[str] = (),
    subject: str | None = None,
) -> str:
    """Return a token that `TokenVerifier` accepts until its time to live is over."""
    for scope in scopes:
        if SCOPE.fullmatch(scope) is None:
            raise InvalidField("scope", f"{scope!r} must be visible ASCII characters without quotes and backslashes")
    if subject is not None:
        values.check_label("subject", subject)
    if not is_account(account):
        raise InvalidField(
            "account", "must be 1 to 64 visible ASCII characters without quotes and slashes, and not '-'"
        )
    now = clock.now()
    claims = {
        "sub": subject or account,
        "accountId": account,
        "iat": int(now.timestamp()),
        "exp": int((now + ttl).timestamp()),
        "aud": audience,
        "iss": issuer,
        "scope": " ".join(scopes) or None,
        "jti": secrets.token_hex(16),
    }
    present = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(present, secret, algorithm=ALGORITHM)


def is_account(value: object) -> TypeGuard[str]:
    """Whether a claim is a valid account id."""
    return isinstance(value, str) and values.is_account(value)


def authorization_header(scope: Scope) -> bytes | None:
    """Return a request's Authorization header; raises Unauthorized where there is more than one."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    if len(values) > 1:
        raise repeated_authorization()
    return values[0] if values else None


def repeated_authorization() -> Unauthorized:
    """Return the error for a request with more than one Authorization header."""
    return Unauthorized("TOKEN_MALFORMED", "Authorization must be given once")


def bearer_token(header: bytes) -> bytes:
    """Return the token of an Authorization header; raises Unauthorized."""
    scheme, _, token = header.partition(b" ")
    if scheme.lower() != b"bearer":
        raise Unauthorized("TOKEN_MISSING", "Authorization: Bearer <token> is required")
    if len(token) > TOKEN_BYTES_MAX:
        raise Unauthorized("TOKEN_MALFORMED", f"the token is longer than {TOKEN_BYTES_MAX} bytes")
    return token


def numeric_date(claims: dict[str, Any], name: str) -> float:
    """Return a NumericDate; rejects infinity, which Python's JSON parser accepts, and times beyond the year 9999."""
    value = claims[name]
    if type(value) is Decimal:
        value = float(value)
    if type(value) is not int and not (type(value) is float and math.isfinite(value)):
        raise Unauthorized("TOKEN_INVALID", f"the token's {name} is not a NumericDate")
    if value > _LATEST:
        raise Unauthorized("TOKEN_INVALID", f"the token's {name} must be in seconds and before the year 10000")
    return value
