"""Secrets: checks configured ones, and creates missing ones in the data folder."""

import os
import secrets
from pathlib import Path

from switchyard.domain.errors import SettingError
from switchyard.settings.table import Settings

SECRET_LENGTH_MIN = 32
# Values from samples and tutorials; anyone could forge tokens signed with them.
_WELL_KNOWN_SECRETS = ("secret", "changeme", "change-me", "password", "default", "dev-secret", "your-256-bit-secret")


def jwt_secret(settings: Settings) -> str:
    """The configured token secret, else the one in the data folder, which is created on first use."""
    return settings.jwt_secret or _stored_secret(settings.data_dir / "jwt_secret")


def journal_key(settings: Settings) -> bytes:
    """The configured journal key, else the one in the data folder, which is created on first use."""
    return (settings.journal_key or _stored_secret(settings.data_dir / "journal_key")).encode()


def _stored_secret(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    new_secret = secrets.token_hex(32)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        stored = path.read_text("ascii").strip()
        if len(stored) >= SECRET_LENGTH_MIN:
            return stored
        raise SettingError(str(path), "contains no valid secret; delete the file to create a new one") from None
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
