"""`make bench`: measures every server under the same load, in one run on one machine."""

import signal
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from bench.appends import Appends, appends_section
from bench.bus.report import BusStep, bus_section
from bench.checkouts import base_checkout, this_checkout
from bench.counts import Calls, Instructions, counts_sections, valgrind_facts
from bench.drain.report import Drain, drain_section
from bench.facts import busy_share, load_facts, machine_facts, postgres_facts
from bench.growth.plot import growth_svg
from bench.growth.report import Growth, growth_section
from bench.keys import key_figures
from bench.latency import Stages, stages_section
from bench.lookups import LookupRow, lookup_section, measure_lookups
from bench.measure import Bench
from bench.options import Options, parsed_options
from bench.overload import Overload, overload_section
from bench.plan import Result, measurements
from bench.processes import BenchError, allow_many_files
from bench.report import Row, orders_section
from bench.stored import Stored, stored_section
from bench.stores import PostgresStore
from bench.tables import Section, print_section, section_markdown
from tests.support.postgres import PostgresServer

# Parts that need none of the servers; run alone, they need nothing installed.
WITHOUT_SERVERS = {"keys", "cache"}
WITHOUT_WRK = WITHOUT_SERVERS | {"drain", "rebuild", "counts", "latency", "appends"}
# How long the CPU use of other processes is sampled before each measurement.
QUIET_SECONDS = 1.0


def main() -> int:
    """Run the measurements and print them; returns 0 if every measurement completed, whether or not goals are met."""
    options = parsed_options()
    # The default action of SIGTERM would end this process at once and leave its servers running.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # Without a terminal, rich would fold the tables to 80 columns.
    console = Console() if sys.stdout.isatty() else Console(width=200)
    facts = key_figures() if "keys" in options.only else {}
    lookups = measure_lookups(options.seconds) if "cache" in options.only else []
    results: list[Result] = []
    succeeded = True
    if not set(options.only) <= WITHOUT_SERVERS:
        try:
            more_facts, succeeded = _measure(console, options, results)
            facts = more_facts | facts
        except BenchError as error:
            console.print(f"{error}", style="red", markup=False, highlight=False)
            return 1
    _show(console, facts, _sections(results, lookups), options.out)
    grown = [result for result in results if isinstance(result, Growth)]
    if options.plot is not None and grown:
        options.plot.write_text(growth_svg(grown), "utf-8")
    return 0 if succeeded else 1


def _measure(console: Console, options: Options, results: list[Result]) -> tuple[dict[str, str], bool]:
    """Add the results of all measurements; returns the facts of the run, and whether every measurement completed."""
    allow_many_files()
    # Fails before the first measurement if wrk, Valgrind or the base is missing.
    facts = {} if set(options.only) <= WITHOUT_WRK else load_facts()
    if "counts" in options.only:
        facts |= valgrind_facts()
    checkouts = {False: this_checkout()}
    if options.base is not None:
        checkouts[True] = base_checkout(options.base)
        facts["before"] = checkouts[True].commit
    other_load = [0.0]
    succeeded = True
    with tempfile.TemporaryDirectory(prefix="switchyard-bench-") as folder, PostgresServer() as server:
        facts = machine_facts(Path(folder)) | facts | postgres_facts(PostgresStore(server.url()))
        bench = Bench(Path(folder), options.seconds, lambda: _new_database(server), checkouts)
        for measurement in measurements(bench, options, results):
            other_load.append(busy_share(QUIET_SECONDS))
            title = f"{measurement.title} (other processes use {other_load[-1]:.0%})"
            console.print(title, style="dim", highlight=False)
            try:
                results.extend(measurement.results)
            except BenchError as error:
                succeeded = False
                console.print(f"  {error}", style="red", markup=False, highlight=False)
    facts["others"] = f"used up to {max(other_load):.0%} of the cores just before a measurement"
    return facts, succeeded


def _sections(results: Sequence[Result], lookups: Sequence[LookupRow]) -> list[Section]:
    return [
        orders_section([result for result in results if isinstance(result, Row)]),
        stages_section([result for result in results if isinstance(result, Stages)]),
        stored_section([result for result in results if isinstance(result, Stored)]),
        overload_section([result for result in results if isinstance(result, Overload)]),
        appends_section([result for result in results if isinstance(result, Appends)]),
        drain_section([result for result in results if isinstance(result, Drain)]),
        bus_section([result for result in results if isinstance(result, BusStep)]),
        growth_section([result for result in results if isinstance(result, Growth)]),
        lookup_section(lookups),
        *counts_sections([result for result in results if isinstance(result, Instructions | Calls)]),
    ]


def _show(console: Console, facts: Mapping[str, str], sections: Sequence[Section], out: Path | None) -> None:
    for name, text in facts.items():
        console.print(f"[bold]{name:>10}[/]  {text}", highlight=False)
    for section in sections:
        print_section(console, section)
    if out is not None:
        lines = "".join(f"- {name}: {text}\n" for name, text in facts.items())
        out.write_text(lines + "".join(section_markdown(section) for section in sections), "utf-8")


@contextmanager
def _new_database(server: PostgresServer) -> Iterator[str]:
    """Create a database for one measurement after a checkpoint, and drop it afterwards."""
    maintenance = PostgresStore(server.url())
    maintenance.rows("CHECKPOINT")
    url = server.create_database()
    try:
        yield url
    finally:
        maintenance.rows(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")


if __name__ == "__main__":
    sys.exit(main())
