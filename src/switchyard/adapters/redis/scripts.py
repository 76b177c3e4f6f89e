"""The Lua scripts, and the seal that makes entries of an older database or another installation unreadable."""

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


_RANK = f"1, {RANK_LENGTH}"
_BUCKET = f"{HEAD_LENGTH - BUCKET_LENGTH + 1}, {HEAD_LENGTH}"
_COUNT = f"{HEAD_LENGTH + LAST_LENGTH + 1}, {HEAD_LENGTH + ACCESS_LENGTH}"

# KEYS: entries. ARGV: the time in milliseconds, with zeros in front. Returns the index and value of each entry that
# exists, and counts the lookup in it. Most lookups miss, so one short reply for the whole batch costs a fraction of one
# nil per key.
# GETRANGE instead of GET bounds how much a planted value can make the client read; every sealed entry is within it.
# `pcall` also where the lookup is counted: a server without memory, or a replica, still answers.
FIND = f"""
local found = {{}}
for number, name in ipairs(KEYS) do
  local held = redis.pcall('GETRANGE', name, 0, {VALUE_BYTES_MAX})
  if held ~= '' then
    local count = type(held) == 'string' and tonumber(string.sub(held, {_COUNT}))
    if count and count < 999999999 then
      local access = ARGV[1] .. string.format('%0{ACCESS_LENGTH - LAST_LENGTH}d', count + 1)
      redis.pcall('SETRANGE', name, {HEAD_LENGTH}, access)
      held = string.sub(held, 1, {HEAD_LENGTH}) .. access .. string.sub(held, {HEAD_LENGTH + ACCESS_LENGTH + 1})
    end
    found[#found + 1] = number
    found[#found + 1] = type(held) == 'string' and held or 'of another type'
  end
end
return found
"""

# KEYS: the counts, then entries. ARGV: for each entry the sealed value and the milliseconds to live. Returns how many
# entries the server did not take, for example because its memory is full.
# One script for a batch: a command and a reply for each entry cost the gateway several times as much.
# `pcall` because another client may have stored another type under these names: the entry is then overwritten, and
# the counts are not updated.
PUT = f"""
local refused = 0
for number = 2, #KEYS do
  local name, value, lives = KEYS[number], ARGV[2 * number - 3], ARGV[2 * number - 2]
  local held = redis.pcall('GETRANGE', name, 0, {HEAD_LENGTH - 1})
  local is_known = type(held) == 'string' and held ~= ''
  if not is_known or string.sub(held, {_RANK}) <= string.sub(value, {_RANK}) then
    if redis.pcall('SET', name, value, 'PX', lives).err then
      refused = refused + 1
    else
      if is_known then redis.pcall('HINCRBY', KEYS[1], string.sub(held, {_BUCKET}), -1) end
      redis.pcall('HINCRBY', KEYS[1], string.sub(value, {_BUCKET}), 1)
    end
  end
end
return refused
"""

# KEYS: the entry, the counts.
FORGET = f"""
local held = redis.pcall('GETRANGE', KEYS[1], 0, {HEAD_LENGTH - 1})
if type(held) == 'string' and held ~= '' then
  redis.pcall('HINCRBY', KEYS[2], string.sub(held, {_BUCKET}), -1)
end
return redis.call('DEL', KEYS[1])
"""

# KEYS: the times of the client's latest requests, newest first. ARGV: limit, window in milliseconds.
# Returns the milliseconds to wait, 0 if the request is allowed; the requests in the window; and the milliseconds until
# the oldest of them leaves it. A time in the future means that the server's clock was set back; the list is then
# cleared.
TAKE = """
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local limit, window = tonumber(ARGV[1]), tonumber(ARGV[2])
local newest = redis.call('LINDEX', KEYS[1], 0)
if newest and tonumber(newest) > now then redis.call('DEL', KEYS[1]) end
local first = redis.call('LINDEX', KEYS[1], limit - 1)
if first and tonumber(first) + window > now then
  local wait = tonumber(first) + window - now
  return {wait, limit, wait}
end
redis.call('LPUSH', KEYS[1], string.format('%.0f', now))
redis.call('LTRIM', KEYS[1], 0, limit - 1)
redis.call('PEXPIRE', KEYS[1], window)
local used, high = 1, redis.call('LLEN', KEYS[1])
while used < high do
  local middle = math.floor((used + high) / 2)
  if tonumber(redis.call('LINDEX', KEYS[1], middle)) + window > now then used = middle + 1 else high = middle end
end
return {0, used, tonumber(redis.call('LINDEX', KEYS[1], used - 1)) + window - now}
"""

# KEYS: the time, in microseconds, at which the account's bucket is full again. ARGV: microseconds for one token, burst,
# step. Returns the microseconds to wait, 0 if there is a token. A time further in the future than an empty bucket means
# that the server's clock was set back; the bucket is then full.
BUCKET = """
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local interval, burst, step = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
local full_at = tonumber(redis.call('GET', KEYS[1]) or now) or now
if full_at < now or full_at > now + (burst + 1) * interval then full_at = now end
local wait = full_at - now - (burst - 1) * interval
if step == 'put_back' then
  full_at = full_at - interval
elseif wait >= 1 then
  return math.ceil(wait)
elseif step == 'wait' then
  return 0
else
  full_at = full_at + interval
end
if full_at > now then
  redis.call('SET', KEYS[1], string.format('%.3f', full_at), 'PX', math.ceil((full_at - now) / 1000) + 1)
else
  redis.call('DEL', KEYS[1])
end
return 0
"""
