"""`make bench`: measures every server under the same load, in one run on one machine."""

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
# How long the CPU use of other processes is sampled before each measurement.
QUIET_SECONDS = 1.0
END_TO_END_PARTS: tuple[Part, ...] = ("sqlite", "postgres")


def main() -> int:
    """Run the measurements and print them; returns 0 if every measurement completed, whether or not goals are met."""
    options = _options()
    # The default action of SIGTERM would end this process at once and leave its servers running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # Without a terminal, rich would fold the table to 80 columns.
    console = Console() if sys.stdout.isatty() else Console(width=120)
    # These parts need none of the servers below; run alone, they need nothing installed.
    keys = key_figures() if KEYS in options.only else {}
    lookups = measure_lookups(options.seconds) if CACHE in options.only else []
    if set(options.only) <= {KEYS, CACHE}:
        _show(console, keys, [], [], lookups, options.out)
        return 0
    rows: list[Row] = []
    drains: list[Drain] = []
    other_load: list[float] = []
    failed = False
    try:
        # The drain needs no wrk; any other part fails here if wrk is missing, before a measurement starts.
        load = {} if set(options.only) <= {KEYS, CACHE, DRAIN} else load_facts()
        with tempfile.TemporaryDirectory(prefix="switchyard-bench-") as folder, PostgresServer() as server:
            facts = machine_facts(Path(folder)) | load | postgres_facts(PostgresStore(server.url())) | keys
            bench = Bench(Path(folder), options.seconds, lambda: new_database(server))
            for title, results in _measurements(bench, options):
                other_load.append(busy_share(QUIET_SECONDS))
                console.print(f"{title} (other processes use {other_load[-1]:.0%})", style="dim", highlight=False)
                try:
                    for result in results:
                        drains.append(result) if isinstance(result, Drain) else rows.append(result)
                except BenchError as error:
                    failed = True
                    console.print(f"  {error}", style="red", markup=False, highlight=False)
    except BenchError as error:
        console.print(f"{error}", style="red", markup=False, highlight=False)
        return 1
    facts["others"] = f"used up to {max(other_load):.0%} of the cores just before a measurement"
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
    """Create a database for one measurement after a checkpoint, and drop it afterwards."""
    maintenance = PostgresStore(server.url())
    maintenance.rows("CHECKPOINT")
    url = server.create_database()
    try:
        yield url
    finally:
        maintenance.rows(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")


def _measurements(bench: Bench, options: argparse.Namespace) -> Iterator[tuple[str, Iterator[Row | Drain]]]:
    """Yield the measurements; the servers alternate at each level, so that a drift of the machine affects them all."""
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
    parser.add_argument("--seconds", type=_positive, default=8, help="length of each measurement (%(default)s)")
    parser.add_argument("--connections", type=_positives, default=[1, 64, 256], help="levels, default 1,64,256")
    parser.add_argument("--rows", type=_positive, default=ROWS, help="rows of each drain (%(default)s)")
    parser.add_argument("--only", type=_names, default=choices, help=f"some of {','.join(choices)}")
    parser.add_argument("--out", type=Path, help="also write the table to this file, as Markdown")
    options = parser.parse_args()
    if unknown := set(options.only) - set(choices):
        parser.error(f"--only: no such part: {', '.join(sorted(unknown))}; choose from {', '.join(choices)}")
    return options


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def _positives(text: str) -> list[int]:
    return [_positive(part) for part in text.split(",")]


def _names(text: str) -> list[str]:
    return text.split(",")


if __name__ == "__main__":
    sys.exit(main())
