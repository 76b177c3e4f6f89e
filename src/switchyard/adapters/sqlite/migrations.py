"""The schema version of a SQLite file: checked before the first read, changed by `upgrade` only."""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import apsw

from switchyard.adapters.installation import random_installation
from switchyard.adapters.schema_files import check_version, programs, schema_files
from switchyard.adapters.sqlite.append import program_fragments
from switchyard.adapters.sqlite.connections import connect, hold_alone
from switchyard.adapters.sqlite.identity import set_installation


def check(connection: apsw.Connection) -> None:
    """Raise SchemaMismatch unless the file has the schema version that this code needs."""
    check_version(_version(connection), len(schema_files(__package__)))


def is_new(path: Path) -> bool:
    """Whether the file is missing or has no schema, as an interrupted first start leaves it."""
    with _locked(path) as connection:
        # Version 0 is not enough: another program's database has it too.
        return _version(connection) == 0 and connection.execute("SELECT count(*) FROM sqlite_schema").get == 0


def upgrade(path: Path) -> int:
    """Apply the missing steps and all programs in one transaction; returns the version."""
    files = schema_files(__package__)
    with _locked(path) as connection:
        version = _version(connection)
        if version > len(files):
            check_version(version, len(files))
        if version < len(files):
            with connection:
                for file in files[version:]:
                    connection.execute(file.sql)
                for program in programs(__package__, program_fragments()):
                    connection.execute(program)
                if version == 0:
                    set_installation(connection, random_installation())
                connection.execute(f"PRAGMA user_version = {len(files)}")
    return len(files)


def _version(connection: apsw.Connection) -> int:
    version: int = connection.execute("PRAGMA user_version").get
    return version


@contextmanager
def _locked(path: Path) -> Iterator[apsw.Connection]:
    lock = hold_alone(path)
    try:
        with closing(connect(path)) as connection:
            yield connection
    finally:
        os.close(lock)
