"""How a file of the back office is opened: by one process alone, with the schema of this version."""

from pathlib import Path

import apsw

from switchyard.adapters.sqlite.connections import Connections, create_schema
from switchyard.domain.errors import AlreadyRunning, CannotStart


def opened(
    path: Path, content: str, schema: str, version: int, *, other_version: str = "", unreadable: str
) -> Connections:
    """Open the file, or create it, and lock it for this process; the texts say what to do with a file of the past."""
    try:
        connections = Connections(path)
    except AlreadyRunning:
        raise kept_elsewhere(path, content) from None
    except apsw.Error as error:
        raise CannotStart(f"{path} cannot be read: {error}. {unreadable}") from error
    try:
        create_schema(connections.writer, schema, version, f"{path} has no {content}", other_version)
    except apsw.Error as error:
        connections.close()
        raise CannotStart(f"{path} cannot be read: {error}. {unreadable}") from error
    except BaseException:
        connections.close()
        raise
    return connections


def kept_elsewhere(path: Path, content: str) -> AlreadyRunning:
    """The error of a file that another process has locked."""
    return AlreadyRunning(
        f"another process keeps the {content} in {path}: stop it, or set SWITCHYARD_BACKOFFICE=false for this one"
    )
