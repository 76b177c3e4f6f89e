"""Secrets: checks configured ones, and creates missing ones in the data folder."""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

import msgspec

from switchyard.domain.errors import SettingError
from switchyard.settings.parse import Secret, SecretNames
from switchyard.settings.table import Settings

SECRET_LENGTH_MIN = 32
# Values from samples and tutorials; anyone could forge tokens signed with them.
_WELL_KNOWN_SECRETS = ("secret", "changeme", "change-me", "password", "default", "dev-secret", "your-256-bit-secret")


def jwt_secret(settings: Settings, *, create: bool = True) -> str:
    """The configured token secret, else the one in the data folder; missing ones are created or an error.

    A command must not create one: no gateway would accept a token that is signed with it.
    """
    if settings.jwt_secret is not None:
        return settings.jwt_secret
    path = settings.data_dir / "jwt_secret"
    if not create and not path.exists():
        raise SettingError(
            "SWITCHYARD_DATA_DIR",
            f"{settings.data_dir.absolute()} has no jwt_secret to sign a token with; set it to the gateway's data "
            "folder (`switchyard up` makes the secret at its first start), or set JWT_HS256_SECRET or SWITCHYARD_TOKEN",
        )
    return _stored_secret(path)


def journal_key(settings: Settings, *, create: bool = True) -> bytes:
    """The configured journal key, else the one in the data folder; missing ones are created or an error."""
    if settings.journal_key is not None:
        return settings.journal_key.encode()
    path = settings.data_dir / "journal_key"
    if not create and not path.exists():
        raise SettingError(
            "SWITCHYARD_DATA_DIR",
            f"{settings.data_dir.absolute()} has no journal_key to check signatures with; set it to the gateway's data "
            "folder, or set SWITCHYARD_JOURNAL_KEY",
        )
    return _stored_secret(path).encode()


def bus_keys(settings: Settings) -> tuple[bytes, ...]:
    """The keys of messages on the bus: the first one signs, a message that one of them signed is genuine.

    On PostgreSQL several processes sign and check, each with a data folder of its own, so a key must be configured.
    """
    assert settings.kafka is not None, "the journal is the bus"
    key, previous = settings.kafka.key, settings.kafka.previous_key
    if key is None and settings.database_url is not None:
        raise SettingError(
            "SWITCHYARD_BUS_KEY",
            "is required with KAFKA_ENABLE on PostgreSQL: workers sign the messages on the topic with it, and back "
            "offices drop all others. Set it, or SWITCHYARD_BUS_KEY_FILE, to the same random value for every worker "
            "and back office, e.g. from `openssl rand -hex 32`; for ops/compose.yaml run ops/make_secrets.sh, which "
            "adds the missing file (docs/operate/kafka.md)",
        )
    current = key or _stored_secret(settings.data_dir / "bus_key")
    return (current.encode(),) if previous is None else (current.encode(), previous.encode())


def configured_secrets(settings: Settings) -> frozenset[str]:
    """Every secret of the settings, and the passwords in URLs among them, to mask them in logs."""
    return frozenset(_secrets_of(settings))


def _secrets_of(value: object) -> Iterator[str]:
    if isinstance(value, msgspec.Struct):
        for field in value.__struct_fields__:
            yield from _secrets_of(getattr(value, field))
    elif isinstance(value, tuple | SecretNames):
        for member in value.values() if isinstance(value, SecretNames) else value:
            yield from _secrets_of(member)
    elif isinstance(value, Secret) and "://" not in value:
        # Not `paper:` and the like, which are no secrets.
        yield from () if value.endswith(":") else (str(value),)
    elif isinstance(value, Secret):
        user, _, password = value.partition("://")[2].rpartition("@")[0].partition(":")
        # A service may take a token as the user name; the user of a database without a password is no secret.
        hidden = password or (user if "http" in value.partition("://")[0] else "")
        yield from {hidden, unquote(hidden)} - {""}


def _stored_secret(path: Path) -> str:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    new_secret = secrets.token_hex(32)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        stored = path.read_text("ascii").strip()
        if len(stored) >= SECRET_LENGTH_MIN:
            return stored
        raise SettingError(str(path), "contains no valid secret; delete the file to create a new one") from None
    os.fchmod(descriptor, 0o600)  # os.open subtracts the umask, which may hide the file from its owner too
    with os.fdopen(descriptor, "w") as file:
        file.write(new_secret + "\n")
        file.flush()
        os.fsync(descriptor)
    return new_secret


def check_secret(name: str, secret: str) -> None:
    """Raise SettingError for a secret that is well known or too short."""
    if any(secret.lower().startswith(known) for known in _WELL_KNOWN_SECRETS):
        raise SettingError(name, "is a well-known value; use a random one, e.g. from `openssl rand -hex 32`")
    if len(secret.encode()) < SECRET_LENGTH_MIN:
        raise SettingError(
            name, f"must have at least {SECRET_LENGTH_MIN} bytes; use a random value, e.g. from `openssl rand -hex 32`"
        )
