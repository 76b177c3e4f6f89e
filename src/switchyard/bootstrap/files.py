"""The audit and head files that the settings name."""

from pathlib import Path

from switchyard.adapters.files.audit_file import LocalAuditFile
from switchyard.adapters.files.head_file import LocalHeadFile, head_path_of
from switchyard.settings import Settings


def audit_files(path: Path) -> tuple[LocalAuditFile, LocalHeadFile]:
    """An audit file and its head file."""
    return LocalAuditFile(path), LocalHeadFile(head_path_of(path))


def worker_head_path(settings: Settings) -> Path:
    """The head file of a worker, which has no audit file."""
    return settings.data_dir / "head.json"


def move_files_aside(settings: Settings, epoch: int) -> None:
    """Rename the audit and head files that describe the journal before the epoch, so that new ones are started."""
    for path in (settings.audit_path, head_path_of(settings.audit_path), worker_head_path(settings)):
        if path.exists():
            path.rename(path.with_name(f"{path.name}.before-epoch-{epoch}"))
