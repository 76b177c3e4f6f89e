"""The public keys that verify tokens: a JSON Web Key Set from a file or a URL, read again when it may have changed.

Reads the file or calls the URL, never while a caller holds the event loop; keeps the last good set in memory.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import jwt
import msgspec
import structlog
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from switchyard.adapters.files.signing_keys import KEY_SET_FILE, local_key
from switchyard.domain.errors import SettingError, Unavailable
from switchyard.ports.clock import Clock

log = structlog.get_logger()

# A new key is used minutes after it was published, and a removed one is not accepted for longer than this.
REFRESH_SECONDS = 300.0
# Tokens with unknown keys cannot make this process ask more often; it is also the pause after a failure.
ASK_SECONDS_MIN = 10.0
FETCH_SECONDS_MAX = 5.0
# An identity provider has a handful of keys of half a kilobyte.
KEY_SET_BYTES_MAX = 64 * 1024
KEYS_MAX = 50
KEY_BITS_MIN = 2048
# No provider has larger ones, and the time to verify grows with the square.
KEY_BITS_MAX = 8192
KID_LENGTH_MAX = 256
ERROR_LENGTH_MAX = 300

Fetch = Callable[[], Awaitable[bytes]]


class KeySetUnusable(Exception):
    """The key set cannot be read, or has no key that can be used."""


class KeyRing:
    """The keys by their names."""

    def __init__(self, fetch: Fetch, *, clock: Clock, age_max: timedelta) -> None:
        self._fetch = fetch
        self._clock = clock
        self._seconds_max = age_max.total_seconds()
        self._keys: Mapping[str, RSAPublicKey] | None = None
        self._read_at = 0.0
        self._asked_at: float | None = None
        self._task: asyncio.Task[None] | None = None

    async def key(self, kid: str) -> RSAPublicKey | None:
        """Return the key of this name; None if there is none. Raises Unavailable without a set that is recent enough.

        An unknown name waits for the set to be read again, at most once in ASK_SECONDS_MIN.
        """
        is_old = self._keys is None or self._clock.monotonic() - self._read_at >= REFRESH_SECONDS
        if is_old or kid not in (self._keys or ()):
            self._ask()
            is_usable = self._keys is not None and kid in self._keys and not self._is_expired
            if self._task is not None and not is_usable:
                # Shielded: others wait for the same answer.
                await asyncio.shield(self._task)
        if self._keys is None or self._is_expired:
            raise Unavailable("the keys that verify tokens cannot be read: try again later")
        return self._keys.get(kid)

    @property
    def _is_expired(self) -> bool:
        return self._clock.monotonic() - self._read_at > self._seconds_max

    def _ask(self) -> None:
        now = self._clock.monotonic()
        is_soon = self._asked_at is not None and now - self._asked_at < ASK_SECONDS_MIN
        if self._task is None and not is_soon:
            self._asked_at = now
            self._task = asyncio.create_task(self._read(), name="key set")
            self._task.add_done_callback(self._end)

    async def _read(self) -> None:
        try:
            async with asyncio.timeout(FETCH_SECONDS_MAX):
                content = await self._fetch()
            keys = await asyncio.to_thread(parse_key_set, content)
        except (KeySetUnusable, SettingError, OSError, TimeoutError, aiohttp.ClientError) as error:
            # A provider's garbage may be quoted in it.
            text = (str(error) or repr(error))[:ERROR_LENGTH_MAX]
            log.warning("key_set_not_read", error=text, keeps_last=self._keys is not None)
            return
        if self._keys is None or self._keys.keys() != keys.keys():
            log.info("key_set_read", keys=sorted(keys))
        self._keys, self._read_at = keys, self._clock.monotonic()

    def _end(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("key_set_failed", exc_info=error)


def parse_key_set(content: bytes) -> dict[str, RSAPublicKey]:
    """Return the RSA signature keys of a set by name; raises KeySetUnusable where there is none, or a private one."""
    if len(content) > KEY_SET_BYTES_MAX:
        raise KeySetUnusable(f"the key set is longer than {KEY_SET_BYTES_MAX} bytes")
    try:
        found = msgspec.json.decode(content)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise KeySetUnusable(f"the key set is not JSON: {error}") from None
    listed = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(listed, list) or len(listed) > KEYS_MAX:
        raise KeySetUnusable(f"the key set must be an object with a list 'keys' of at most {KEYS_MAX}")
    keys: dict[str, RSAPublicKey] = {}
    for member in listed:
        if not isinstance(member, dict) or not _is_for_signatures(member):
            continue
        kid = member.get("kid")
        if not isinstance(kid, str) or not 1 <= len(kid) <= KID_LENGTH_MAX:
            raise KeySetUnusable(f"a key has no kid of 1 to {KID_LENGTH_MAX} characters")
        if kid in keys:
            raise KeySetUnusable(f"two keys have the kid {kid!r}")
        keys[kid] = _public_key(kid, member)
    if not keys:
        raise KeySetUnusable("the key set has no RSA key for RS256 signatures")
    return keys


def file_source(path: Path) -> Fetch:
    """Return a function that reads the file in a thread."""

    def read() -> bytes:
        with path.open("rb") as file:
            return file.read(KEY_SET_BYTES_MAX + 1)

    return lambda: asyncio.to_thread(read)


def local_source(folder: Path) -> Fetch:
    """Return a function that reads the data folder's own key set in a thread; the first read makes a key pair."""

    def read() -> bytes:
        local_key(folder)
        return (folder / KEY_SET_FILE).read_bytes()

    return lambda: asyncio.to_thread(read)


def url_source(url: str) -> Fetch:
    """Return a function that fetches the URL; a redirect is an error, because it could lead anywhere."""

    async def fetch() -> bytes:
        timeout = aiohttp.ClientTimeout(total=FETCH_SECONDS_MAX)
        async with (
            aiohttp.ClientSession(timeout=timeout, headers={"Accept-Encoding": "identity"}) as session,
            session.get(url, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise KeySetUnusable(f"the key set's URL answered {response.status}")
            content = bytearray()
            async for chunk in response.content.iter_chunked(KEY_SET_BYTES_MAX):
                content += chunk
                if len(content) > KEY_SET_BYTES_MAX:
                    break
            return bytes(content)

    return fetch


def _is_for_signatures(member: dict[str, Any]) -> bool:
    """Whether this is an RSA key for RS256 signatures; a provider may have others in the same set."""
    operations = member.get("key_ops")
    return (
        member.get("kty") == "RSA"
        and member.get("use", "sig") == "sig"
        and member.get("alg", "RS256") == "RS256"
        and (operations is None or (isinstance(operations, list) and "verify" in operations))
    )


def _public_key(kid: str, member: dict[str, Any]) -> RSAPublicKey:
    if member.keys() & {"d", "p", "q", "dp", "dq", "qi", "oth"}:
        raise KeySetUnusable(f"the key {kid!r} is a private key: publish its public half only, and replace it")
    try:
        key = jwt.algorithms.RSAAlgorithm.from_jwk(member)
    except (jwt.InvalidKeyError, ValueError, TypeError, KeyError) as error:
        raise KeySetUnusable(f"the key {kid!r} cannot be read: {error}") from None
    if not isinstance(key, RSAPublicKey) or not KEY_BITS_MIN <= key.key_size <= KEY_BITS_MAX:
        raise KeySetUnusable(f"the key {kid!r} must have {KEY_BITS_MIN} to {KEY_BITS_MAX} bits")
    return key
