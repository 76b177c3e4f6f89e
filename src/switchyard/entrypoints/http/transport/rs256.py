"""Bearer tokens of the PDCA API: verify and issue JSON Web Tokens, signed with RS256 only.

Reads the Authorization header, the key ring and the clock; keeps nothing.
"""

import secrets
from collections.abc import Collection, Sequence
from datetime import timedelta
from typing import Any, NamedTuple

import jwt

from switchyard.adapters.files.signing_keys import SigningKey
from switchyard.domain import values
from switchyard.domain.errors import Forbidden, InvalidField, Unauthorized
from switchyard.domain.ids import AccountId
from switchyard.domain.strategies.registry import Tenants, tenant_of_account, tenant_of_client
from switchyard.entrypoints.http.transport.auth import (
    LEEWAY_SECONDS,
    SCOPE,
    bearer_token,
    is_account,
    numeric_date,
    strict_parts,
)
from switchyard.entrypoints.http.transport.key_ring import KeyRing
from switchyard.entrypoints.http.transport.revoked import RevokedTokens
from switchyard.ports.clock import Clock

# One algorithm for one kind of key: a public key can never be used as a shared secret.
ALGORITHM = "RS256"
CLIENT_LENGTH_MAX = 128
# The `accounts` of a token that may see and change the strategies of all accounts and clients.
ALL_ACCOUNTS = "*"


class PdcaGrant(NamedTuple):
    """What a verified token grants."""

    client_id: str
    scopes: frozenset[str]
    tenants: Tenants
    """Whose strategies, rechecks and artifacts exist for it."""

    def require(self, scope: str) -> None:
        """Raise Forbidden unless the token has the scope."""
        if scope not in self.scopes:
            raise Forbidden(scope)


class PdcaTokens:
    """Finds the client that an Authorization header authenticates."""

    def __init__(self, ring: KeyRing, *, clock: Clock, issuer: str, revoked: RevokedTokens | None = None) -> None:
        """`clock`: wall time."""
        self._ring = ring
        self._revoked = revoked
        self._clock = clock
        self._issuer = issuer

    async def grant(self, authorization_header: bytes | None, audiences: Collection[str]) -> PdcaGrant:
        """Return what the token grants at one of these audiences; raises Unauthorized and Unavailable."""
        if authorization_header is None:
            raise Unauthorized("TOKEN_MISSING", "Authorization: Bearer <token> is required")
        token = bearer_token(authorization_header)
        claims = await self._verified(token)
        now = self._clock.now().timestamp()
        if "exp" not in claims:
            raise _invalid("the token has no exp")
        if now >= numeric_date(claims, "exp"):
            raise Unauthorized("TOKEN_EXPIRED", "the token has expired")
        for name in ("nbf", "iat"):
            if name in claims and numeric_date(claims, name) > now + LEEWAY_SECONDS:
                raise _invalid(f"the token is not valid yet: {name} is in the future")
        if claims.get("iss") != self._issuer:
            raise _invalid("the token's iss is not the issuer that this server trusts")
        if not _audiences_of(claims).intersection(audiences):
            raise _invalid(f"the token's aud must be {' or '.join(sorted(audiences))}")
        jti = claims.get("jti")
        if jti is not None and not isinstance(jti, str):
            raise _invalid("the token's jti must be a text")
        if self._revoked is not None:
            self._revoked.check(jti)
        client_id = _client_of(claims)
        return PdcaGrant(client_id, _scopes_of(claims), _tenants_of(claims, client_id))

    async def _verified(self, token: bytes) -> dict[str, Any]:
        """Return the claims of a token whose signature is right."""
        header, payload = strict_parts(token)
        if header.get("alg") != ALGORITHM:
            raise _invalid(f"tokens must be signed with {ALGORITHM}")
        if "crit" in header or "b64" in header:
            raise _invalid("the token's header demands an extension that this server does not have")
        kid = header.get("kid")
        if not isinstance(kid, str):
            raise _invalid("the token's header must name its key: kid")
        # Nothing else in the header names a key: not jku, not x5u, not jwk. A kid is only looked up in the key ring.
        key = await self._ring.key(kid)
        if key is None:
            raise _invalid("the token's kid is not in the key set")
        try:
            jwt.api_jws.decode(token, key, algorithms=[ALGORITHM])
        except jwt.PyJWTError as error:
            # Not the library's message: it quotes the token, which is the caller's text.
            raise _invalid("the token's signature does not match") from error
        return payload


def issue_pdca_token(
    key: SigningKey,
    client_id: str,
    *,
    clock: Clock,
    ttl: timedelta,
    issuer: str,
    audiences: Sequence[str],
    scopes: Sequence[str],
    accounts: Sequence[str] | None = None,
) -> str:
    """Return a token that `PdcaTokens` accepts until its time to live is over.

    `accounts`: those that it is for, or ALL_ACCOUNTS; without them it is for what its client registers itself.
    """
    for scope in scopes:
        if SCOPE.fullmatch(scope) is None:
            raise InvalidField("scope", f"{scope!r} must be visible ASCII characters without quotes and backslashes")
    values.check_label("subject", client_id, CLIENT_LENGTH_MAX)
    for account in () if accounts is None or accounts == ALL_ACCOUNTS else accounts:
        if not is_account(account):
            raise InvalidField("account", f"{account!r} is not an account id")
    now = clock.now()
    claims = {
        "sub": client_id,
        "iss": issuer,
        "aud": audiences[0] if len(audiences) == 1 else list(audiences),
        "iat": int(now.timestamp()),
        "exp": int((now + ttl).timestamp()),
        "scope": " ".join(scopes),
        "jti": secrets.token_hex(16),
    }
    if accounts is not None:
        claims["accounts"] = accounts if accounts == ALL_ACCOUNTS else list(accounts)
    return jwt.encode(claims, key.pem, algorithm=ALGORITHM, headers={"kid": key.kid})


def _audiences_of(claims: dict[str, Any]) -> frozenset[str]:
    match claims.get("aud"):
        case str(audience):
            return frozenset({audience})
        case list(several) if all(isinstance(audience, str) for audience in several):
            return frozenset(several)
    raise _invalid("the token's aud must be a text or a list of texts")


def _client_of(claims: dict[str, Any]) -> str:
    client = claims.get("sub")
    if not isinstance(client, str):
        raise _invalid("the token has no sub, which names the client")
    try:
        values.check_label("sub", client, CLIENT_LENGTH_MAX)
    except InvalidField as error:
        raise _invalid(f"the token's {error.message}") from None
    return client


def _scopes_of(claims: dict[str, Any]) -> frozenset[str]:
    scope = claims.get("scope")
    if not isinstance(scope, str) or not scope.strip(" "):
        raise _invalid("the token has no scope")
    return frozenset(scope.split(" ")) - {""}


def _tenants_of(claims: dict[str, Any], client_id: str) -> Tenants:
    # A malformed claim is an error; it must not fall back to the client.
    if "accounts" not in claims:
        return frozenset({tenant_of_client(client_id)})
    match claims["accounts"]:
        case str(text) if text == ALL_ACCOUNTS:
            return None
        case [_, *_] as accounts if all(is_account(account) for account in accounts):
            return frozenset(tenant_of_account(AccountId(account)) for account in accounts)
    raise _invalid(f"the token's accounts must be a list of account ids, or {ALL_ACCOUNTS!r} for all")


def _invalid(message: str) -> Unauthorized:
    return Unauthorized("TOKEN_INVALID", message)
