"""Signed URLs of artifacts: whoever has one may download that artifact until it expires. Reads the clock only."""

import hashlib
import hmac
import re
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from switchyard.domain.errors import Unauthorized
from switchyard.domain.strategies.registry import Tenant
from switchyard.ports.clock import Clock

_EXPIRES = re.compile(r"[0-9]{1,12}")


class Downloads:
    """Signs and checks URLs."""

    def __init__(self, secret: str, *, clock: Clock, ttl: timedelta) -> None:
        """`clock`: wall time. A key of its own, so that a signature can stand for nothing else."""
        self._key = hmac.digest(secret.encode(), b"pdca artifact downloads", hashlib.sha256)
        self._clock = clock
        self._ttl = ttl

    def url(self, tenant: Tenant, request_id: str, strategy_id: str, name: str) -> tuple[str, datetime]:
        """Return the path and query of an artifact, and when they expire."""
        expires_at = (self._clock.now() + self._ttl).replace(microsecond=0)
        expires = str(int(expires_at.timestamp()))
        signature = self._signature(tenant, request_id, strategy_id, name, expires)
        query = urlencode({"tenant": tenant, "expires": expires, "signature": signature})
        return f"/pdca/artifacts/{request_id}/{strategy_id}/{name}?{query}", expires_at.astimezone(UTC)

    def check(self, tenant: str, request_id: str, strategy_id: str, name: str, *, expires: str, signature: str) -> None:
        """Raise Unauthorized unless the URL was signed here and has not expired."""
        expected = self._signature(tenant, request_id, strategy_id, name, expires)
        is_own = hmac.compare_digest(expected.encode(), signature.encode())
        if not is_own or _EXPIRES.fullmatch(expires) is None:
            raise Unauthorized("SIGNATURE_INVALID", "the URL's signature does not match: ask for a new one")
        if self._clock.now().timestamp() >= int(expires):
            raise Unauthorized("SIGNATURE_EXPIRED", "the URL has expired: ask for a new one")

    def _signature(self, *parts: str) -> str:
        # No part of a URL that was signed here contains a line break.
        return hmac.new(self._key, "\n".join(parts).encode(), hashlib.sha256).hexdigest()
