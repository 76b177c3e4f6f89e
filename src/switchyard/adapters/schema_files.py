"""Numbered schema files: what a database must have run, in which order."""

from importlib import resources
from typing import NamedTuple

from switchyard.domain.errors import SchemaMismatch


class SchemaFile(NamedTuple):
    """One step of the schema's history; a file that has landed is never edited again."""

    number: int
    name: str
    sql: str


def schema_files(package: str) -> list[SchemaFile]:
    """The package's `schema/NNNN_*.sql` in order."""
    folder = resources.files(package) / "schema"
    found = sorted((entry for entry in folder.iterdir() if entry.name.endswith(".sql")), key=lambda entry: entry.name)
    files = [SchemaFile(int(entry.name[:4]), entry.name, entry.read_text("utf-8")) for entry in found]
    assert [file.number for file in files] == list(range(1, len(files) + 1)), f"schema files of {package} have a gap"
    return files


def check_version(found: int, needed: int) -> None:
    """Refuse to run on another schema than the one this version was written for."""
    if found < needed:
        raise SchemaMismatch(
            f"the database's schema is at version {found}, this Switchyard needs {needed}: run `switchyard db upgrade`"
        )
    if found > needed:
        raise SchemaMismatch(
            f"the database's schema is at version {found}, newer than the {needed} this Switchyard knows: "
            "run a newer Switchyard"
        )
