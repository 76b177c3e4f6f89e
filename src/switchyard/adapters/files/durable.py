"""Durable file operations that the standard library lacks."""

import os
import secrets
from pathlib import Path

from switchyard.adapters.files.private import FILE_MODE


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable: fsync of a new file covers its content only."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, content: bytes) -> None:
    """Put the content in place of the file's; a crash leaves either the old content or the new."""
    # An unpredictable name, and a file that must be new: a link in its place would lead the content elsewhere.
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}.new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, FILE_MODE)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(descriptor, FILE_MODE)
            file.write(content)
            file.flush()
            os.fsync(descriptor)
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(path.parent)
