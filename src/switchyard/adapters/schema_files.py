"""Reads the schema files of an engine: numbered steps, run once, and programs, replaced by every upgrade."""

from collections.abc import Mapping
from importlib import resources
from typing import NamedTuple

from switchyard.adapters.tables import expanded
from switchyard.domain.errors import SchemaMismatch


class SchemaFile(NamedTuple):
    """One step of the schema's history; a released step is never edited."""

    number: int
    name: str
    sql: str


def schema_files(package: str) -> list[SchemaFile]:
    """The package's `schema/NNNN_*.sql`, in order."""
    files = [SchemaFile(int(name[:4]), name, sql) for name, sql in _sql_files(package, "schema")]
    assert [file.number for file in files] == list(range(1, len(files) + 1)), f"schema files of {package} have a gap"
    return files


def programs(package: str, fragments: Mapping[str, str]) -> list[str]:
    """The package's `schema/programs/*.sql` (functions, triggers, views), with their column lists inserted.

    An upgrade runs them after its steps, so a changed program needs a new step, even an empty one. Each program
    replaces its former version; a step that changes the parameters of a PostgreSQL function also drops the old one.
    """
    return [expanded(sql, fragments) for _, sql in _sql_files(package, "schema/programs")]


def _sql_files(package: str, folder: str) -> list[tuple[str, str]]:
    entries = (resources.files(package) / folder).iterdir()
    return sorted((entry.name, entry.read_text("utf-8")) for entry in entries if entry.name.endswith(".sql"))


def check_version(found: int, needed: int) -> None:
    """Raise SchemaMismatch unless the database has exactly the schema version that this code needs."""
    if found < needed:
        raise SchemaMismatch(
            f"the database schema has version {found}, this Switchyard needs {needed}: run `switchyard db upgrade`"
        )
    if found > needed:
        raise SchemaMismatch(
            f"the database schema has version {found}, newer than version {needed} of this Switchyard: "
            "run a newer Switchyard"
        )
