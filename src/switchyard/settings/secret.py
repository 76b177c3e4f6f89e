"""Secrets: configured ones must be good, missing ones are made and kept."""

import os
import secrets
from pathlib import Path

from switchyard.domain.errors import SettingError
from switchyard.settings.table import Settings

SECRET_LENGTH_MIN = 32
# Names that samples and tutorials use; a gateway that signs with one of them is open to everyone.
_WELL_KNOWN_SECRETS = ("secret", "changeme", "change-me", "password", "default", "dev-secret", "your-256-bit-secret")


def jwt_secret(settings: Settings) -> str:
    """The configured secret, else the one under the data folder, made on first use."""
    return settings.jwt_secret or _kept_secret(settings.data_dir / "jwt_secret")


def journal_key(settings: Settings) -> bytes:
    """The key of the signed head, configured or kept under the data folder."""
    return (settings.journal_key or _kept_secret(settings.data_dir / "journal_key")).encode()


def _kept_secret(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    made = secrets.token_hex(32)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        kept = path.read_text("ascii").strip()
        if len(kept) >= SECRET_LENGTH_MIN:
            return kept
        raise SettingError(str(path), "holds no usable secret; delete it to have a new one made") from None
    with os.fdopen(descriptor, "w") as file:
        file.write(made + "\n")
        file.flush()
        os.fsync(descriptor)
    return made


def check_secret(name: str, secret: str) -> None:
    """Reject a secret that others can guess."""
    if any(secret.lower().startswith(known) for known in _WELL_KNOWN_SECRETS):
        raise SettingError(name, "is a well-known value; use a random one, e.g. from `openssl rand -hex 32`")
    if len(secret.encode()) < SECRET_LENGTH_MIN:
        raise SettingError(name, f"must have at least {SECRET_LENGTH_MIN} bytes")
