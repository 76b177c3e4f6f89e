"""The audit and head files that the settings name."""

from pathlib import Path

import structlog

from switchyard.adapters.files.audit_file import LocalAuditFile, path_before
from switchyard.adapters.files.head_file import LocalHeadFile, head_path_of
from switchyard.domain.errors import CannotStart, HistoryMismatch
from switchyard.domain.journal.lines import SignedHead, parse_head
from switchyard.flow.readers.head import head_content, place_of
from switchyard.ports.clock import Clock
from switchyard.ports.journal import Head, HeadFile
from switchyard.settings import Settings, journal_key

log = structlog.get_logger()


def audit_files(path: Path) -> tuple[LocalAuditFile, LocalHeadFile]:
    """An audit file and its head file."""
    return LocalAuditFile(path), LocalHeadFile(head_path_of(path))


def head_files(settings: Settings, installation: str) -> list[HeadFile]:
    """The copies of the journal's head: in the data folder, in the state folder, and on Redis where one is set."""
    state_path = settings.state_dir / f"head-{installation}.json"
    files: list[HeadFile] = [LocalHeadFile(_head_path(settings)), LocalHeadFile(state_path, is_shared=True)]
    redis_url = settings.idempotency.cache.redis_url
    if redis_url is not None:
        from switchyard.adapters.redis.installation import RedisHead  # loading the client takes long: see `caches.py`

        files.append(RedisHead(redis_url, installation))
    return files


def database_place(settings: Settings) -> str:
    """The place of the configured database, without credentials: the data folder, or the server and database name."""
    if settings.database_url is None:
        return str(settings.data_dir.absolute())
    address = settings.database_url.partition("://")[2].partition("?")[0]
    return "postgresql://" + address.rpartition("@")[2]


def check_none_is_missing(settings: Settings) -> None:
    """Raise CannotStart before a new database is created where the state folder knows one: that one is missing."""
    place = database_place(settings)
    for path in sorted(settings.state_dir.glob("head-*.json")):
        head = _readable_head(LocalHeadFile(path))
        if head is not None and head.database == place:
            raise CannotStart(
                f"there is no database in {place}, but there was one, up to seq {head.seq} ({path}). Mount its volume "
                "or put the database back; if a new database is meant, which knows none of the orders and keys of the "
                f"old one, remove {path}"
            )


def audit_head(path: Path) -> SignedHead | None:
    """The head beside an audit file, with an unchecked signature; none if there is no readable one."""
    return _readable_head(LocalHeadFile(head_path_of(path)))


def highest_place(settings: Settings, installation: str) -> Head:
    """The highest epoch and the highest number in the audit file and in all copies of the head."""
    audit, audit_head_file = audit_files(settings.audit_path)
    places = [Head(0, 0, "")]
    try:
        places.append(audit.last())
    except (OSError, HistoryMismatch) as error:
        log.warning("audit_file_not_read", path=audit.name, error=str(error))
    for file in (audit_head_file, *head_files(settings, installation)):
        head = _readable_head(file)
        if head is not None:
            places.append(place_of(head))
    return Head(max(place.epoch for place in places), max(place.seq for place in places), "")


def move_files_aside(settings: Settings, epoch: int) -> None:
    """Rename the audit and head files that describe the journal before the epoch, so that new ones are started."""
    for path in (settings.audit_path, head_path_of(settings.audit_path), _head_path(settings)):
        if path.exists():
            path.rename(path_before(path, epoch))


def write_heads(settings: Settings, installation: str, head: Head, clock: Clock) -> None:
    """Write the head to all copies that can be written; the others are written by the next process that runs."""
    content = head_content(head, 0, clock.now(), journal_key(settings), installation, database_place(settings))
    for file in head_files(settings, installation):
        try:
            with file.locked():
                file.write(content)
        except OSError as error:
            log.warning("head_write_failed", path=file.name, error=str(error))
        finally:
            file.close()


def _readable_head(file: HeadFile) -> SignedHead | None:
    try:
        return parse_head(file.name, file.read(), None)
    except (OSError, HistoryMismatch) as error:
        log.warning("head_not_read", path=file.name, error=str(error))
        return None


def _head_path(settings: Settings) -> Path:
    return settings.data_dir / "head.json"
