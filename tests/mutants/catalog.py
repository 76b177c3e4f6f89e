"""The mutants: the rules of Switchyard, each broken by a small edit, with the tests that must then fail.

Reads `*.toml` of this folder; renders the table of docs/evidence/second-executions.md. An edit replaces text that must
occur exactly once in its file, so that code that moves takes its mutants along.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path

import msgspec

ROOT = Path(__file__).parents[2]
PACKAGE = "src/switchyard"
PAGE = ROOT / "docs" / "evidence" / "second-executions.md"
# In the order of the table.
FILES = ("second_executions.toml", "credentials.toml", "planted.toml")

_TABLE_HEAD = "| fault | mutant | tests that fail |\n|---|---|---|\n"


class DoesNotApply(Exception):
    """The source has changed: the mutant's edit must be written anew."""


class Edit(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Text in a file below `src/switchyard`, and what takes its place."""

    file: str
    old: str
    new: str

    def applied(self, text: str) -> str:
        """The file's text after the edit; raises DoesNotApply."""
        count = text.count(self.old)
        if count != 1:
            raise DoesNotApply(f"{self.file} has the old text {count} times instead of once:\n{self.old}")
        return text.replace(self.old, self.new)


class Mutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One broken rule."""

    name: str
    """A sentence in kebab case: what the code does now."""
    edit: tuple[Edit, ...]
    fails: tuple[str, ...]
    """Tests below `tests/`, all of which must fail; of a parametrised test without brackets, at least one case."""
    also: tuple[str, ...] = ()
    """Tests of real processes that fail too; they are run with `--all` only, because they are slow."""

    def sources(self, root: Path) -> dict[Path, str]:
        """The edited files with their new text; raises DoesNotApply."""
        texts: dict[Path, str] = {}
        for edit in self.edit:
            path = root / PACKAGE / edit.file
            if path not in texts and not path.is_file():
                raise DoesNotApply(f"{self.name}: {PACKAGE}/{edit.file} does not exist")
            try:
                texts[path] = edit.applied(texts.get(path) or path.read_text())
            except DoesNotApply as error:
                raise DoesNotApply(f"{self.name}: {error}") from None
        return texts


class Fault(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A way in which orders could be executed twice, lost or stuck, and the mutants that open it."""

    title: str
    mutant: tuple[Mutant, ...]


class _Catalog(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fault: tuple[Fault, ...]


def faults() -> list[Fault]:
    """All faults, in the order of the table."""
    folder = Path(__file__).parent
    return [fault for name in FILES for fault in msgspec.toml.decode((folder / name).read_bytes(), type=_Catalog).fault]


def mutants() -> list[Mutant]:
    """All mutants."""
    return [mutant for fault in faults() for mutant in fault.mutant]


def page() -> str:
    """The text of the page, with the table of today's mutants."""
    prose, head, _ = PAGE.read_text().partition(_TABLE_HEAD)
    assert head, f"{PAGE} has no table of mutants"
    return prose + head + "".join(itertools.chain.from_iterable(map(_lines, faults())))


def _lines(fault: Fault) -> Iterator[str]:
    title = fault.title
    for mutant in fault.mutant:
        files = dict.fromkeys(edit.file for edit in mutant.edit)
        edited = "<br>".join(f"`{file}`" for file in files)
        tests = "<br>".join([*(f"`{test}`" for test in mutant.fails), *(f"`{test}` (`--all`)" for test in mutant.also)])
        yield f"| {title} | `{mutant.name}`<br>{edited} | {tests} |\n"
        title = ""
