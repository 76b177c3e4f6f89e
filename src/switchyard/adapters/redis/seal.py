"""Entries as bytes that only a holder of the key can make: anything else on the server is not an entry."""

import hashlib
import hmac
from datetime import datetime
from typing import Literal

import msgspec

from switchyard.domain.ids import AccountId
from switchyard.ports.cache import RESPONSE_BYTES_MAX, CacheEntry, CacheStatus

# A secret shorter than the digest would be the weakest part.
KEY_BYTES_MIN = 32
# Precedence in digits of fixed width, so that the server's scripts compare it as text, in any locale.
RANK_LENGTH = 27
# What the entry is counted under: minute of expiry, minute of creation, status.
COUNTED_LENGTH = 23
HEAD_LENGTH = RANK_LENGTH + COUNTED_LENGTH
DIGEST_LENGTH = 32
# A response, and room for the ids around it; more than this is never read.
VALUE_BYTES_MAX = RESPONSE_BYTES_MAX + 8 * 1024

_LETTERS: dict[CacheStatus, str] = {"pending": "p", "submitted": "s", "completed": "c", "failed": "f"}
_STATUSES = {letter: status for status, letter in _LETTERS.items()}
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(CacheEntry)


class Seal:
    """Makes the names under which entries lie, and closes and opens them."""

    def __init__(self, key: bytes) -> None:
        assert len(key) >= KEY_BYTES_MIN, f"the key needs at least {KEY_BYTES_MIN} bytes"
        self._key = key
        self._name_key = self._digest("name", b"")

    def name(self, *parts: str) -> str:
        """Text that tells the parts apart and gives none of them away, whatever characters they have."""
        # Lengths in front tell the parts apart; a lone surrogate is as good a character as any other here.
        text = "".join([f"{len(part)}:{part}" for part in parts])
        # A keyed hash made for being one: every order asks for a name, and HMAC takes three times as long.
        return hashlib.blake2b(
            text.encode("utf-8", "surrogatepass"), digest_size=DIGEST_LENGTH, key=self._name_key
        ).hexdigest()

    def close(self, entry: CacheEntry) -> bytes:
        """Head, digest, entry; raises ValueError for an entry that cannot be kept."""
        body = _encoder.encode(entry)
        head = _head(entry)
        value = head + self._digest("entry", head + body) + body
        if len(head) != HEAD_LENGTH or len(value) > VALUE_BYTES_MAX:
            raise ValueError("the entry does not fit")
        return value

    def open(self, value: object, account: AccountId, operation: str, key: str) -> CacheEntry | None:
        """The entry, or none when it is not ours, not whole, or not the one asked for."""
        if not isinstance(value, bytes) or len(value) > VALUE_BYTES_MAX:
            return None
        body_at = HEAD_LENGTH + DIGEST_LENGTH
        head, digest, body = value[:HEAD_LENGTH], value[HEAD_LENGTH:body_at], value[body_at:]
        if not hmac.compare_digest(digest, self._digest("entry", head + body)):
            return None
        try:
            entry = _decoder.decode(body)
        except msgspec.DecodeError:
            return None  # ours, of a version with another shape
        is_asked_for = (entry.account_id, entry.operation, entry.idempotency_key) == (account, operation, key)
        return entry if is_asked_for else None

    def _digest(self, purpose: Literal["name", "entry"], data: bytes) -> bytes:
        return hmac.digest(self._key, purpose.encode("ascii") + b"\0" + data, "sha256")


class Counted(msgspec.Struct, frozen=True):
    """What one field of the counts is about."""

    expires_minute: int
    created_minute: int
    status: CacheStatus

    @classmethod
    def parse(cls, field: bytes) -> "Counted | None":
        """None for a field that is not ours."""
        try:
            expires, created, letter = field.decode("ascii").split(":")
            return cls(int(expires), int(created), _STATUSES[letter])
        except (ValueError, KeyError):
            return None


def minute_of(moment: datetime) -> int:
    """Minutes since 1970."""
    return int(moment.timestamp() // 60)


def _head(entry: CacheEntry) -> bytes:
    generation, created_at, stage = entry.precedence
    microseconds = int(created_at.timestamp()) * 1_000_000 + created_at.microsecond
    rank = f"{generation:010d}{microseconds:016d}{stage}"
    counted = f"{minute_of(entry.expires_at):010d}:{minute_of(created_at):010d}:{_LETTERS[entry.status]}"
    return (rank + counted).encode("ascii")
