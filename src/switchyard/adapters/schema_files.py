"""Schema files: steps that a database runs once and in order, and programs that every upgrade puts in place anew."""

from importlib import resources
from typing import NamedTuple

from switchyard.domain.errors import SchemaMismatch


class SchemaFile(NamedTuple):
    """One step of the schema's history; a step that has landed is never edited again."""

    number: int
    name: str
    sql: str


def schema_files(package: str) -> list[SchemaFile]:
    """The package's `schema/NNNN_*.sql` in order."""
    files = [SchemaFile(int(name[:4]), name, sql) for name, sql in _sql_files(package, "schema")]
    assert [file.number for file in files] == list(range(1, len(files) + 1)), f"schema files of {package} have a gap"
    return files


def programs(package: str) -> list[str]:
    """The package's `schema/programs/*.sql`: functions, triggers and views, which replace what was there before.

    They are run with the steps of an upgrade, so that a program that changes needs a new step, if only an empty one.
    """
    return [sql for _, sql in _sql_files(package, "schema/programs")]


def _sql_files(package: str, folder: str) -> list[tuple[str, str]]:
    entries = (resources.files(package) / folder).iterdir()
    return sorted((entry.name, entry.read_text("utf-8")) for entry in entries if entry.name.endswith(".sql"))


def check_version(found: int, needed: int) -> None:
    """Reject to run on another schema than the one this version was written for."""
    if found < needed:
        raise SchemaMismatch(
            f"the database's schema is at version {found}, this Switchyard needs {needed}: run `switchyard db upgrade`"
        )
    if found > needed:
        raise SchemaMismatch(
            f"the database's schema is at version {found}, newer than the {needed} this Switchyard knows: "
            "run a newer Switchyard"
        )
