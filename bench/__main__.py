"""`make bench`: every server under the same load, in one run, on one machine."""

import argparse
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

from rich.console import Console

from bench.drain.measure import ROWS, drain, queues
from bench.drain.report import Drain, drains_markdown, print_drains
from bench.facts import busy_share, load_facts, machine_facts, postgres_facts
from bench.keys import key_figures
from bench.lookups import LookupRow, lookups_markdown, measure_lookups, print_lookups
from bench.measure import Bench
from bench.processes import BenchError
from bench.report import NAMES, Part, Row, markdown, print_report
from bench.stores import PostgresStore
from tests.support.postgres import PostgresServer

PARTS: tuple[Part, ...] = get_args(Part)
END_TO_END = "e2e"
KEYS = "keys"
CACHE = "cache"
DRAIN = "drain"
# How long to watch before each measurement whether somebody else is at work on this machine.
QUIET_SECONDS = 1.0
END_TO_END_PARTS: tuple[Part, ...] = ("sqlite", "postgres")


def main() -> int:
    """Measure and show; 0 when every measurement could be made, whatever came out."""
    options = _options()
    # Without this a SIGTERM would end this process at once and leave its servers behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # Sent to a file, the table must not be folded to the width of a terminal that is not there.
    console = Console() if sys.stdout.isatty() else Console(width=120)
    # These need none of the servers below, so that alone they need nothing installed.
    keys = key_figures() if KEYS in options.only else {}
    lookups = measure_lookups(options.seconds) if CACHE in options.only else []
    if set(options.only) <= {KEYS, CACHE}:
        _show(console, keys, [], [], lookups, options.out)
        return 0
    rows: list[Row] = []
    drains: list[Drain] = []
    others: list[float] = []
    failed = False
    try:
        # Without wrk the drain can still be measured; anything else had better fail before it begins.
        load = {} if set(options.only) <= {KEYS, CACHE, DRAIN} else load_facts()
        with tempfile.TemporaryDirectory(prefix="switchyard-bench-") as folder, PostgresServer() as server:
            facts = machine_facts(Path(folder)) | load | postgres_facts(PostgresStore(server.url())) | keys
            bench = Bench(Path(folder), options.seconds, lambda: new_database(server))
            for title, measured in _measurements(bench, options):
                others.append(busy_share(QUIET_SECONDS))
                console.print(f"{title} (others use {others[-1]:.0%})", style="dim", highlight=False)
                try:
                    for result in measured:
                        drains.append(result) if isinstance(result, Drain) else rows.append(result)
                except BenchError as error:
                    failed = True
                    console.print(f"  {error}", style="red", markup=False, highlight=False)
    except BenchError as error:
        console.print(f"{error}", style="red", markup=False, highlight=False)
        return 1
    facts["others"] = f"used up to {max(others):.0%} of the cores just before a measurement"
    _show(console, facts, rows, drains, lookups, options.out)
    return 1 if failed else 0


def _show(
    console: Console,
    facts: dict[str, str],
    rows: list[Row],
    drains: list[Drain],
    lookups: list[LookupRow],
    out: Path | None,
) -> None:
    print_report(console, facts, rows)
    print_drains(console, drains)
    print_lookups(console, lookups)
    if out is not None:
        out.write_text(markdown(facts, rows) + drains_markdown(drains) + lookups_markdown(lookups), "utf-8")


@contextmanager
def new_database(server: PostgresServer) -> Iterator[str]:
    """A database for one measurement, which neither pays for the writes of the one before nor leaves any behind."""
    maintenance = PostgresStore(server.url())
    maintenance.rows("CHECKPOINT")
    url = server.create_database()
    try:
        yield url
    finally:
        maintenance.rows(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")


def _measurements(bench: Bench, options: argparse.Namespace) -> Iterator[tuple[str, Iterator[Row | Drain]]]:
    """The servers in turn at each level, so that a machine that drifts drifts for all of them."""
    for level in options.connections:
        for part in PARTS:
            if part in options.only:
                yield f"{NAMES[part]}, accept, {level} at once", bench.accept(part, level)
    if END_TO_END in options.only:
        for part in END_TO_END_PARTS:
            yield f"{NAMES[part]}, end to end", bench.end_to_end(part)
    if DRAIN in options.only:
        for queue in queues():
            yield (
                f"{queue.name}, drain of {options.rows:,}",
                drain(queue, options.rows, bench.folder, bench.new_database),
            )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    choices = [*PARTS, END_TO_END, KEYS, CACHE, DRAIN]
    parser.add_argument("--seconds", type=_natural, default=8, help="length of each measurement (%(default)s)")
    parser.add_argument("--connections", type=_naturals, default=[1, 64, 256], help="levels, default 1,64,256")
    parser.add_argument("--rows", type=_natural, default=ROWS, help="rows of each drain (%(default)s)")
    parser.add_argument("--only", type=_names, default=choices, help=f"some of {','.join(choices)}")
    parser.add_argument("--out", type=Path, help="also write the table to this file, as Markdown")
    options = parser.parse_args()
    if unknown := set(options.only) - set(choices):
        parser.error(f"--only: no such part: {', '.join(sorted(unknown))}")
    return options


def _natural(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def _naturals(text: str) -> list[int]:
    return [_natural(part) for part in text.split(",")]


def _names(text: str) -> list[str]:
    return text.split(",")


if __name__ == "__main__":
    sys.exit(main())
