"""The key pair of the data folder: a private key that signs local tokens, and the key set that verifies them.

For local use and small installations; elsewhere an identity provider signs, and only its key set is configured.
"""

import base64
import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from switchyard.adapters.files.durable import replace_file
from switchyard.domain.errors import SettingError

KEY_FILE = "pdca_key.pem"
KEY_SET_FILE = "pdca_jwks.json"
# The least that RS256 allows, and enough until 2030; the keys of a data folder are easily replaced.
KEY_BITS = 2048
# Public keys that are kept for tokens that were signed before the last `keys new`.
KEYS_MAX = 5


class SigningKey(NamedTuple):
    """A private key and the name under which its public half is in the key set."""

    kid: str
    pem: bytes


def local_key(folder: Path) -> SigningKey:
    """The private key of the folder; makes the pair if there is none."""
    with _alone(folder):
        path = folder / KEY_FILE
        if not path.exists():
            return _new_key(folder)
        pem = path.read_bytes()
        public = _public_jwk(_loaded(path, pem))
        if public["kid"] not in {key.get("kid") for key in _key_set(folder)}:
            # A process ended between the two files.
            _write_key_set(folder, public)
        return SigningKey(public["kid"], pem)


def new_key(folder: Path) -> SigningKey:
    """Make a key pair; the new key signs from now on, and the key set keeps the last public keys before it."""
    with _alone(folder):
        return _new_key(folder)


def _new_key(folder: Path) -> SigningKey:
    from cryptography.hazmat.primitives.asymmetric import rsa
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = _public_jwk(key)
    # The key set first: a token must not be signed with a key that cannot be verified yet.
    _write_key_set(folder, public)
    replace_file(folder / KEY_FILE, pem)
    return SigningKey(public["kid"], pem)


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep other threads and processes from changing the two files meanwhile."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _write_key_set(folder: Path, public: dict[str, str]) -> None:
    others = [key for key in _key_set(folder) if key.get("kid") != public["kid"]]
    keys = [public, *others][:KEYS_MAX]
    replace_file(folder / KEY_SET_FILE, msgspec.json.format(msgspec.json.encode({"keys": keys})) + b"\n")


def _key_set(folder: Path) -> list[dict[str, Any]]:
    try:
        found = msgspec.json.decode((folder / KEY_SET_FILE).read_bytes(), type=dict[str, list[dict[str, Any]]])
    except FileNotFoundError:
        return []
    except msgspec.MsgspecError as error:
        raise SettingError(str(folder / KEY_SET_FILE), f"is no key set: {error}; delete it to make a new one") from None
    return found.get("keys", [])


def _loaded(path: Path, pem: bytes) -> Any:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(pem, password=None)
    except (TypeError, ValueError) as error:
        raise SettingError(str(path), f"is no private key: {error}; `switchyard keys new` makes another one") from None


def _public_jwk(key: Any) -> dict[str, str]:
    """The public key as a JSON Web Key, named by its thumbprint (RFC 7638)."""
    numbers = key.public_key().public_numbers()
    members = {"e": _number(numbers.e), "kty": "RSA", "n": _number(numbers.n)}
    digest = hashlib.sha256(msgspec.json.encode(members)).digest()
    return {**members, "kid": _encoded(digest), "use": "sig", "alg": "RS256"}


def _number(value: int) -> str:
    return _encoded(value.to_bytes((value.bit_length() + 7) // 8, "big"))


def _encoded(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
