"""The mutants of `make mutants` fit today's sources and tests; they are run by that command alone."""

import re

import pytest

from tests.mutants.catalog import PAGE, ROOT, DoesNotApply, Edit, Mutant, mutants, page
from tests.mutants.run import names

MUTANTS = mutants()


def test_every_mutant_applies_to_the_source_of_today() -> None:
    for mutant in MUTANTS:
        for path, text in mutant.sources(ROOT).items():
            assert text != path.read_text(), mutant.name
            if path.suffix == ".py":
                compile(text, path, "exec")


def test_every_test_that_a_mutant_names_exists() -> None:
    missing = []
    for mutant in MUTANTS:
        assert mutant.fails, mutant.name
        for test in (*mutant.fails, *mutant.also):
            file, _, name = test.partition("::")
            path = ROOT / "tests" / file
            if not path.is_file() or f"def {name.partition('[')[0]}(" not in path.read_text():
                missing.append(f"{mutant.name}: {test}")
    assert not missing


def test_every_mutant_has_a_name_of_its_own_in_kebab_case() -> None:
    found = [mutant.name for mutant in MUTANTS]
    assert [name for name in found if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", name)] == []
    assert sorted(set(found)) == sorted(found)


@pytest.mark.parametrize(("old", "count"), [("no such text", "0 times"), ("import", "[2-9] times")])
def test_an_edit_that_does_not_fit_once_is_an_error_that_names_its_mutant(old: str, count: str) -> None:
    mutant = Mutant(name="one-is-two", edit=(Edit(file="domain/absent.py", old=old, new=""),), fails=())
    with pytest.raises(DoesNotApply, match=r"one-is-two: .*/domain/absent.py does not exist"):
        mutant.sources(ROOT)
    mutant = Mutant(name="one-is-two", edit=(Edit(file="domain/orders/outbox.py", old=old, new=""),), fails=())
    with pytest.raises(DoesNotApply, match=f"one-is-two: domain/orders/outbox.py has the old text {count}"):
        mutant.sources(ROOT)


def test_a_test_counts_as_failed_if_it_or_a_case_of_it_failed() -> None:
    failed = frozenset({"unit/a.py::test_one[sqlite]", "unit/a.py::test_two"})
    asked = ("unit/a.py::test_one", "unit/a.py::test_one[postgres]", "unit/a.py::test_two", "unit/a.py::test_tw")
    assert [names(test, failed) for test in asked] == [True, False, True, False]


def test_the_page_has_the_table_of_the_mutants_of_today() -> None:
    assert PAGE.read_text() == page(), "run: python -m tests.mutants --write-table"
