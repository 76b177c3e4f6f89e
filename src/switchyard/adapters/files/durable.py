"""Durable file operations that the standard library lacks."""

import os
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
    draft = path.with_name(path.name + ".new")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
    try:
        os.fchmod(descriptor, FILE_MODE)
        os.write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    draft.replace(path)
    sync_folder(path.parent)
