"""`make mutants`: breaks one rule after the other in a copy of the sources, and demands that its tests fail."""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path

from tests.mutants.catalog import PACKAGE, PAGE, ROOT, DoesNotApply, Mutant, faults, page
from tests.mutants.run import Copy, names

# For two cores.
RUNS_AT_ONCE = 2
CAUGHT = "caught"


def main() -> int:
    """Run the chosen mutants and print what became of each; returns 1 if one was not caught."""
    options = _options()
    if options.write_table:
        PAGE.write_text(page())
        return 0
    chosen = _chosen(options)
    if options.list:
        for mutant in chosen:
            _print(mutant.name)
        return 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        verdicts = _run(chosen, Path(folder).resolve(), options)
    not_caught = {name: verdict for name, verdict in verdicts.items() if verdict != CAUGHT}
    _print(f"\n{len(chosen)} mutants, {len(chosen) - len(not_caught)} caught")
    for name, verdict in not_caught.items():
        _print(f"{name}: {verdict}")
    return 1 if not_caught or not chosen else 0


def _run(chosen: Sequence[Mutant], folder: Path, options: argparse.Namespace) -> dict[str, str]:
    base = Copy(folder / "0")
    with ThreadPoolExecutor(options.n) as pool:
        tests = dict.fromkeys(test for mutant in chosen for test in _tests(mutant, options))
        by_file = [list(group) for _, group in groupby(sorted(tests), lambda test: test.partition("::")[0])]
        _print(f"{len(chosen)} mutants; first, their {len(tests)} tests without them")
        broken: dict[str, str] = {}
        for group, problems in zip(by_file, pool.map(lambda group: _unedited(base, group), by_file), strict=True):
            broken.update(problems)
            _print(f"  {'FAILED' if problems else 'passed'}  {group[0].partition('::')[0]}")

        def judged(numbered: tuple[int, Mutant]) -> str:
            number, mutant = numbered
            started_at = time.monotonic()
            verdict = _verdict(mutant, base, folder / str(number), broken, _tests(mutant, options))
            _print(f"  {verdict.partition(':')[0]:<15} {time.monotonic() - started_at:5.0f} s  {mutant.name}")
            return verdict

        verdicts = list(pool.map(judged, enumerate(chosen, 1)))
    return {mutant.name: verdict for mutant, verdict in zip(chosen, verdicts, strict=True)}


def _unedited(base: Copy, tests: list[str]) -> dict[str, str]:
    """The tests that do not pass on the sources as they are, and why."""
    ran = base.test(tests)
    if ran.problem is not None:
        return dict.fromkeys(tests, ran.problem)
    return {test: "fails without the edit" for test in tests if names(test, ran.failed)}


def _verdict(mutant: Mutant, base: Copy, folder: Path, broken: dict[str, str], tests: Sequence[str]) -> str:
    """`caught`, or what is wrong."""
    useless = [f"{test}: {broken[test]}" for test in tests if test in broken]
    if useless:
        return f"TEST IS BROKEN: {'; '.join(useless)}"
    copy = Copy(folder, base.folder)
    try:
        copy.edit(mutant)
    except DoesNotApply as error:
        return f"DOES NOT APPLY: {error}"
    ran = copy.test(list(tests))
    passed = [test for test in tests if not names(test, ran.failed)]
    if ran.problem is not None and passed:
        return f"NO RESULT: {ran.problem}"
    return f"SURVIVED: passed {', '.join(passed)}" if passed else CAUGHT


def _tests(mutant: Mutant, options: argparse.Namespace) -> tuple[str, ...]:
    return (*mutant.fails, *mutant.also) if options.all else mutant.fails


def _chosen(options: argparse.Namespace) -> list[Mutant]:
    found = [
        mutant
        for fault in faults()
        for mutant in fault.mutant
        if not options.k or any(_has(f"{fault.title} {mutant.name}", text) for text in options.k)
    ]
    if options.changed is None:
        return found
    changed = _changed_since(options.changed)
    return [one for one in found if not changed.isdisjoint(_files(one))]


def _has(words: str, text: str) -> bool:
    return text.lower().replace(" ", "-") in words.lower().replace(" ", "-")


def _files(mutant: Mutant) -> Iterable[str]:
    yield from (f"{PACKAGE}/{edit.file}" for edit in mutant.edit)
    yield from (f"tests/{test.partition('::')[0]}" for test in (*mutant.fails, *mutant.also))


def _changed_since(revision: str) -> set[str]:
    command = ["git", "diff", "--name-only", revision, "--", "src", "tests"]
    return set(subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines())


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("-k", nargs="+", metavar="TEXT", help="only mutants with one of these in their name or fault")
    parser.add_argument("-n", type=int, default=RUNS_AT_ONCE, metavar="RUNS", help="runs of pytest at once")
    parser.add_argument("--all", action="store_true", help="also the slow tests of real processes (`also`)")
    parser.add_argument("--changed", metavar="REVISION", help="only mutants whose files or tests differ from it")
    parser.add_argument("--list", action="store_true", help="print their names, run nothing")
    parser.add_argument("--write-table", action="store_true", help=f"write the table of {PAGE.relative_to(ROOT)}")
    return parser.parse_args()


def _print(line: str) -> None:
    print(line, flush=True)  # noqa: T201 - a command


if __name__ == "__main__":
    sys.exit(main())
