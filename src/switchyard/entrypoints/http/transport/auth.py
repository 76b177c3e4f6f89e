"""Bearer tokens: who is asking. JSON Web Tokens signed with HS256 and nothing else."""

import math
import re
from datetime import timedelta
from typing import Any, TypeGuard

import jwt

from switchyard.domain.errors import InvalidField, SettingError, Unauthorized
from switchyard.domain.ids import AccountId
from switchyard.ports.clock import Clock

# One algorithm for the one kind of key: a public key can then never pass for a shared secret.
ALGORITHM = "HS256"
# A token comes into force while its issuer's clock is ahead of ours by this much. It never outlives its end.
LEEWAY_SECONDS = 5.0
# Some identity providers pack a page of claims into a token; more than this is no token.
TOKEN_BYTES_MAX = 8192
# A token is verified again once so many others have come; at the size above the worst case is 80 MB.
CACHE_SIZE_MAX = 10_000

# The first match counts, so a special case stands before its base.
_REJECTIONS: tuple[tuple[type[jwt.PyJWTError], str, str], ...] = (
    (jwt.InvalidSignatureError, "TOKEN_INVALID", "the token's signature is wrong"),
    (jwt.DecodeError, "TOKEN_MALFORMED", "this is not a JSON Web Token"),
    (jwt.InvalidAlgorithmError, "TOKEN_INVALID", f"tokens must be signed with {ALGORITHM}"),
    (
        jwt.MissingRequiredClaimError,
        "TOKEN_INVALID",
        "the token must say exp, and aud and iss where they are asked for",
    ),
    (jwt.InvalidAudienceError, "TOKEN_INVALID", "the token is meant for another audience"),
    (jwt.InvalidIssuerError, "TOKEN_INVALID", "the token's issuer is not trusted here"),
)

# Printable ASCII except space, quotes, slash and backslash: safe in paths, logs and file names.
_ACCOUNT = re.compile(r"[!#-&(-.0-\[\]-~]{1,64}")
# The account of events that belong to nobody.
_SYSTEM_ACCOUNT = "-"


class TokenVerifier:
    """Turns an Authorization header into the account that may be acted for."""

    def __init__(
        self, secret: bytes | str, *, clock: Clock, audience: str | None = None, issuer: str | None = None
    ) -> None:
        try:
            self._secret = jwt.get_algorithm_by_name(ALGORITHM).prepare_key(secret)
        except jwt.InvalidKeyError as error:
            raise SettingError("JWT_HS256_SECRET", "must be a shared secret, not empty and not a public key") from error
        self._clock = clock
        self._audience = audience
        self._issuer = issuer
        self._verified: dict[bytes, tuple[AccountId, float]] = {}

    def verify(self, authorization_header: bytes | None) -> AccountId:
        """The account, or Unauthorized."""
        if authorization_header is None:
            raise Unauthorized("TOKEN_MISSING", "Authorization: Bearer <token> is required")
        now = self._clock.now().timestamp()
        known = self._verified.get(authorization_header)
        if known is not None and now < known[1]:
            return known[0]
        self._verified.pop(authorization_header, None)
        account, expires_at = self._examine(_bearer_token(authorization_header), now)
        if len(self._verified) >= CACHE_SIZE_MAX:
            del self._verified[next(iter(self._verified))]
        self._verified[authorization_header] = account, expires_at
        return account

    def _examine(self, token: bytes, now: float) -> tuple[AccountId, float]:
        claims = self._claims(token)
        expires_at = _seconds(claims, "exp")
        if now >= expires_at:
            raise Unauthorized("TOKEN_EXPIRED", "the token has expired")
        for name in ("nbf", "iat"):
            if name in claims and _seconds(claims, name) > now + LEEWAY_SECONDS:
                raise Unauthorized("TOKEN_INVALID", f"the token is not valid yet: {name} is in the future")
        # What the claim says is taken as it is: a bad accountId must not fall back to the subject.
        account = claims["accountId"] if "accountId" in claims else claims.get("sub")
        if not is_account(account):
            raise Unauthorized("TOKEN_INVALID", "the token's accountId (or sub) is not an account")
        return AccountId(account), expires_at

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
                    # PyJWT reads the wall clock; time is judged above, by the clock that everything else goes by.
                    "verify_exp": False,
                    "verify_nbf": False,
                    "verify_iat": False,
                    # Without this a token made for somebody would be rejected where nobody asks for an audience.
                    "verify_aud": self._audience is not None,
                },
            )
        except jwt.PyJWTError as error:
            # Never the library's own words: they quote the token, which anybody may have written.
            reason, message = next(
                (rejection for kind, *rejection in _REJECTIONS if isinstance(error, kind)),
                ("TOKEN_INVALID", "the token's header or subject is not acceptable"),
            )
            raise Unauthorized(reason, message) from error


def issue_token(
    secret: bytes | str,
    account: str,
    *,
    clock: Clock,
    ttl: timedelta,
    audience: str | None = None,
    issuer: str | None = None,
) -> str:
    """A token that `TokenVerifier` takes until the time to live has passed."""
    if not is_account(account):
        raise InvalidField("account", "1 to 64 visible ASCII characters, no quotes or slashes, and not '-'")
    now = clock.now()
    claims = {
        "sub": account,
        "accountId": account,
        "iat": int(now.timestamp()),
        "exp": int((now + ttl).timestamp()),
        "aud": audience,
        "iss": issuer,
    }
    given = {name: value for name, value in claims.items() if value is not None}
    return jwt.encode(given, secret, algorithm=ALGORITHM)


def is_account(value: object) -> TypeGuard[str]:
    """Whether a claim can name an account."""
    return isinstance(value, str) and value != _SYSTEM_ACCOUNT and _ACCOUNT.fullmatch(value) is not None


def _bearer_token(header: bytes) -> bytes:
    scheme, _, token = header.partition(b" ")
    if scheme.lower() != b"bearer":
        raise Unauthorized("TOKEN_MISSING", "Authorization: Bearer <token> is required")
    if len(token) > TOKEN_BYTES_MAX:
        raise Unauthorized("TOKEN_MALFORMED", f"a token has at most {TOKEN_BYTES_MAX} bytes")
    return token


def _seconds(claims: dict[str, Any], name: str) -> float:
    """A NumericDate; not infinity, which Python's JSON takes for a number and which would never end."""
    value = claims[name]
    if type(value) is not int and not (type(value) is float and math.isfinite(value)):
        raise Unauthorized("TOKEN_INVALID", f"the token's {name} is not a time")
    return value
