"""Files that survive a power cut and that nobody else reads: modes, locks, replacement, free space."""

import asyncio
import contextlib
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path

import structlog

from switchyard.domain.errors import SettingError
from switchyard.ports.files import DiskSpace

log = structlog.get_logger()

FILE_MODE = 0o600
FOLDER_MODE = 0o700
# What the data folder contains, by the beginning of the name; `lost+found` is in the root of a new volume.
_OWN_NAMES = (
    "switchyard.db",
    "backoffice.db",
    "breaks.db",
    "pdca",
    "jwt_secret",
    "journal_key",
    "bus_key",
    "head.json",
    "control.sock",
    "venues",
    "gateway",
    "lost+",
)


def make_folder(folder: Path) -> None:
    """Create the folder and the missing ones above it for the owner only; existing ones are left as they are."""
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for each in reversed(missing):
        each.mkdir(FOLDER_MODE, exist_ok=True)
        # mkdir subtracts the umask, which may hide the folder from its owner too.
        each.chmod(FOLDER_MODE)


def create_file(path: Path) -> None:
    """Create the file empty if it is missing.

    An existing file is never opened here: closing it would release the locks that SQLite holds on it in this process.
    """
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
    except FileExistsError:
        return
    try:
        os.fchmod(descriptor, FILE_MODE)
    finally:
        os.close(descriptor)


def prepare_data_folder(folder: Path) -> None:
    """Create the data folder or take away what others may do in it; raises SettingError if it cannot be used."""
    try:
        make_folder(folder)
        if not folder.is_dir():
            raise _unusable(folder, "is a file, not a folder")
        if folder.stat().st_mode & stat.S_ISVTX:
            raise _unusable(folder, "is shared by all users of this machine")
        probe = folder / ".writable"
        create_file(probe)
        probe.unlink(missing_ok=True)
        tighten(folder)
    except OSError as error:
        raise _unusable(folder, f"cannot be written: {error.strerror or error}") from None


def tighten(folder: Path) -> None:
    """Restrict a data folder that an earlier version, or its owner, created with wider modes."""
    if any(not entry.name.startswith(_OWN_NAMES) for entry in folder.iterdir()):
        # Changing a folder that others use too could lock them out.
        if folder.stat().st_mode & 0o077:
            log.warning("data_folder_readable_by_others", path=str(folder), hint="use a folder of its own, mode 0700")
        return
    try:
        for path in _own_paths(folder):
            mode = FOLDER_MODE if path.is_dir() else FILE_MODE
            if stat.S_IMODE(path.stat().st_mode) != mode:
                path.chmod(mode)
    except PermissionError as error:
        log.warning("data_folder_mode_not_changed", path=str(error.filename), error=error.strerror)


def own_files(folder: Path) -> list[Path]:
    """The files in the data folder and its subfolders that are ours by their names."""
    return [
        path
        for path in _own_paths(folder)
        if path.is_file() and path.relative_to(folder).parts[0].startswith(_OWN_NAMES)
    ]


def _own_paths(folder: Path) -> Iterator[Path]:
    """The folder, its files and its two subfolders with theirs; no link is followed."""
    yield folder
    for path in folder.iterdir():
        if path.name.startswith("lost+") or path.is_symlink():
            continue
        yield path
        if path.is_dir():
            yield from (inner for inner in path.iterdir() if inner.is_file() and not inner.is_symlink())


def _unusable(folder: Path, problem: str) -> SettingError:
    return SettingError(
        "SWITCHYARD_DATA_DIR", f"{folder.absolute()} {problem}; set it to a folder that this user can write to"
    )


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


def lock_beside(path: Path) -> int | None:
    """Lock `<path>.lock` for this process and return its descriptor; none while another process holds the lock.

    The lock is released when the descriptor is closed or the process ends, however it ends. The lock file itself stays:
    removing it would let two processes lock two files of the same name.
    """
    make_folder(path.parent)
    lock = path.with_name(path.name + ".lock")
    create_file(lock)
    descriptor = os.open(lock, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


class LocalDisks:
    """ports.files.Disks over folders of this machine."""

    def __init__(self, folders: Mapping[str, Path]) -> None:
        self._folders = dict(folders)

    async def measure(self) -> Mapping[str, DiskSpace]:
        """The space of each folder, in a thread: a network file system may not answer."""
        return await asyncio.to_thread(self._measure)

    def _measure(self) -> dict[str, DiskSpace]:
        found: dict[str, DiskSpace] = {}
        for name, folder in self._folders.items():
            with contextlib.suppress(OSError):
                usage = shutil.disk_usage(_existing(folder))
                found[name] = DiskSpace(usage.free, usage.total)
        return found


def _existing(folder: Path) -> Path:
    """The folder, or the nearest one above it: it may be created later."""
    folder = folder.absolute()
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
