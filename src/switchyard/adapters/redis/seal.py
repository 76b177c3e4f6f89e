"""Encodes cache entries with a keyed digest, so that only entries written by a holder of the key are accepted.

A planted, altered, truncated or misplaced value on the server is not decoded; the cache treats it as a miss.
"""

import hashlib
import hmac
from datetime import UTC, datetime
from typing import Literal

import msgspec

from switchyard.domain.ids import AccountId
from switchyard.ports.cache import RESPONSE_BYTES_MAX, CacheEntry, CacheStatus

# As long as the SHA-256 digest: a shorter key would be easier to guess than the digest.
KEY_BYTES_MIN = 32
# Precedence as digits of fixed width, so that the Lua scripts can compare it as text in any locale.
RANK_LENGTH = 27
# The field of the counts hash: minute of expiry, minute of creation, status.
BUCKET_LENGTH = 23
HEAD_LENGTH = RANK_LENGTH + BUCKET_LENGTH
DIGEST_LENGTH = 32
# Behind the head: the milliseconds of the last lookup that found the entry, and how many there were. Outside of the
# digest, because the server counts them (`FIND`); no answer depends on them.
LAST_LENGTH = 16
ACCESS_LENGTH = LAST_LENGTH + 10
# The largest response plus room for the ids around it; larger values are neither written nor read.
VALUE_BYTES_MAX = RESPONSE_BYTES_MAX + 8 * 1024

_LETTERS: dict[CacheStatus, str] = {"pending": "p", "submitted": "s", "completed": "c", "failed": "f"}
_STATUSES = {letter: status for status, letter in _LETTERS.items()}
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(CacheEntry)


class Seal:
    """Derives the Redis names of entries, and encodes and verifies their values."""

    def __init__(self, key: bytes) -> None:
        assert len(key) >= KEY_BYTES_MIN, f"the key has {len(key)} bytes, at least {KEY_BYTES_MIN} are required"
        self._key = key
        self._name_key = self._digest("name", b"")

    def name(self, *parts: str) -> str:
        """Return a keyed hash of the parts: distinct parts give distinct names, and a name reveals no part."""
        # The length prefixes keep ("ab", "c") and ("a", "bc") apart; lone surrogates are allowed.
        text = "".join([f"{len(part)}:{part}" for part in parts])
        # Keyed BLAKE2 instead of HMAC: every order computes a name, and HMAC takes three times as long.
        return hashlib.blake2b(
            text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_LENGTH, key=self._name_key
        ).hexdigest()

    def close(self, entry: CacheEntry) -> bytes:
        """Return head, digest and body of the entry; raises ValueError if it cannot be stored."""
        body = _encoder.encode(entry)
        head = _head(entry)
        value = head + b"0" * ACCESS_LENGTH + self._digest("entry", head + body) + body
        if len(head) != HEAD_LENGTH or len(value) > VALUE_BYTES_MAX:
            raise ValueError(f"the entry does not fit: head {len(head)} bytes, value {len(value)} bytes")
        return value

    def open(self, value: object, account: AccountId, operation: str, key: str) -> CacheEntry | None:
        """Return the entry, or None if its digest is wrong or it belongs to another account, operation or key."""
        if not isinstance(value, bytes) or len(value) > VALUE_BYTES_MAX:
            return None
        digest_at = HEAD_LENGTH + ACCESS_LENGTH
        body_at = digest_at + DIGEST_LENGTH
        head, digest, body = value[:HEAD_LENGTH], value[digest_at:body_at], value[body_at:]
        if not hmac.compare_digest(digest, self._digest("entry", head + body)):
            return None
        try:
            entry = _decoder.decode(body)
        except msgspec.DecodeError:
            return None  # sealed with our key by a version with another entry format
        is_requested = (entry.account_id, entry.operation, entry.idempotency_key) == (account, operation, key)
        return _accessed(entry, value[HEAD_LENGTH:digest_at]) if is_requested else None

    def _digest(self, purpose: Literal["name", "entry"], data: bytes) -> bytes:
        return hmac.digest(self._key, purpose.encode("ascii") + b"\0" + data, "sha256")


class CountBucket(msgspec.Struct, frozen=True):
    """One field of the counts hash: how many entries share an expiry minute, a creation minute and a status."""

    expires_minute: int
    created_minute: int
    status: CacheStatus

    @classmethod
    def parse(cls, field: bytes) -> "CountBucket | None":
        """Return the bucket, or None for a field in another format."""
        try:
            expires, created, letter = field.decode("ascii").split(":")
            return cls(int(expires), int(created), _STATUSES[letter])
        except (ValueError, KeyError):
            return None


def _accessed(entry: CacheEntry, access: bytes) -> CacheEntry:
    """The entry with its lookups; another client may have written anything there, which then counts as none."""
    if not access.isdigit() or not (count := int(access[LAST_LENGTH:])):
        return entry
    try:
        last = datetime.fromtimestamp(int(access[:LAST_LENGTH]) / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return entry
    return msgspec.structs.replace(entry, last_accessed=last, access_count=count)


def minute_of(moment: datetime) -> int:
    """Minutes since 1970."""
    return int(moment.timestamp() // 60)


def _head(entry: CacheEntry) -> bytes:
    generation, created_at, stage = entry.precedence
    microseconds = int(created_at.timestamp()) * 1_000_000 + created_at.microsecond
    rank = f"{generation:010d}{microseconds:016d}{stage}"
    bucket = f"{minute_of(entry.expires_at):010d}:{minute_of(created_at):010d}:{_LETTERS[entry.status]}"
    return (rank + bucket).encode("ascii")
