"""Which measurements a run takes, and in which order.

Servers that are compared alternate, so that a drift of the machine affects them all.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from bench.appends import ROUNDS, Appends, measure_appends
from bench.bus.measure import measure_bus
from bench.bus.rebuild import measure_rebuild
from bench.bus.report import BusStep
from bench.counts import CLIENTS, WORKS, Calls, Instructions, measure_calls, measure_instructions
from bench.drain.measure import drain, queues
from bench.drain.report import Drain
from bench.growth.measure import measure_growth
from bench.growth.report import Growth
from bench.latency import PER_SECOND, Stages, measure_stages
from bench.measure import Bench
from bench.options import ACCEPTING, Options
from bench.overload import Overload, measure_overload
from bench.report import NAMES, WORKING_PEERS, Part, Row, medians, server_name
from bench.stored import Stored

Result = Row | Stored | Overload | Drain | BusStep | Growth | Instructions | Calls | Stages | Appends

ENGINES: tuple[Part, ...] = ("sqlite", "postgres")
# Enough to fill commit groups; the comparison is of the streams, not of the levels.
STREAMS_CONNECTIONS = 64
RULES_CONNECTIONS = 64


class Measurement(NamedTuple):
    title: str
    results: Iterator[Result]


def measurements(bench: Bench, options: Options, done: Sequence[Result]) -> Iterator[Measurement]:
    """Yield the measurements; `done` has the results so far, from which the rate of the half load comes."""
    bases = (True, False) if options.base else (False,)
    for _ in range(options.rounds):
        yield from _accept(bench, options, bases)
        if "risk" in options.only:
            yield from _with_rules(bench, options)
        yield from _end_to_end(bench, options, bases)
    for _ in range(options.rounds):
        if "half" in options.only:
            yield from _half_load(bench, options, bases, done)
    if "latency" in options.only:
        for part in ENGINES:
            for is_base in bases:
                title = f"{server_name(part, is_base=is_base)}, latency to a broker"
                rate = options.rate or PER_SECOND
                yield Measurement(title, measure_stages(bench, part, rate, is_base=is_base))
    if "overload" in options.only:
        for part in ENGINES:
            for is_base in bases:
                name = server_name(part, is_base=is_base)
                yield Measurement(f"{name}, overload", measure_overload(bench, part, is_base=is_base))
    if "drain" in options.only:
        for queue in queues():
            title = f"{queue.name}, drain of {options.rows:,}"
            yield Measurement(title, drain(queue, options.rows, bench.folder, bench.new_database))
    if "bus" in options.only:
        yield Measurement("orders, relay and back office together", measure_bus(bench))
    if "rebuild" in options.only:
        title = f"rebuild of {options.entries:,} entries"
        yield Measurement(title, measure_rebuild(options.entries, bench.folder, bench.new_database))
    if "appends" in options.only:
        for number in range(ROUNDS):
            for is_base in bases:
                title = f"appends{' of the base' if is_base else ''}, round {number + 1}"
                yield Measurement(title, measure_appends(bench, is_base=is_base))
    if "counts" in options.only:
        yield from _counts(bench, options, bases)
    if "growth" in options.only:
        for part in ENGINES:
            yield Measurement(f"{NAMES[part]}, growth", measure_growth(bench, part, options.growth))


def _accept(bench: Bench, options: Options, bases: Sequence[bool]) -> Iterator[Measurement]:
    for level in options.connections:
        for part in ACCEPTING:
            if part in options.only:
                for is_base in bases if part in ENGINES else (False,):
                    title = f"{server_name(part, is_base=is_base)}, accept, {level} at once"
                    yield Measurement(title, bench.accept(part, level, is_base=is_base))
    if "streams" in options.only:
        for part in ENGINES:
            if part not in options.only or STREAMS_CONNECTIONS not in options.connections:
                title = f"{NAMES[part]}, accept, {STREAMS_CONNECTIONS} at once"
                yield Measurement(title, bench.accept(part, STREAMS_CONNECTIONS))
            title = f"{NAMES[part]}, accept, {options.streams:,} idle streams"
            yield Measurement(title, bench.accept(part, STREAMS_CONNECTIONS, streams=options.streams))


def _with_rules(bench: Bench, options: Options) -> Iterator[Measurement]:
    for part in ENGINES:
        for rules in (False, True):
            if rules or part not in options.only or RULES_CONNECTIONS not in options.connections:
                title = f"{NAMES[part]}, accept, {'every rule' if rules else 'no rule'}"
                yield Measurement(title, bench.accept(part, RULES_CONNECTIONS, rules=rules))


def _end_to_end(bench: Bench, options: Options, bases: Sequence[bool]) -> Iterator[Measurement]:
    if "e2e" in options.only:
        for part in ENGINES:
            for is_base in bases:
                title = f"{server_name(part, is_base=is_base)}, end to end"
                yield Measurement(title, bench.end_to_end(part, is_base=is_base))
        for part in WORKING_PEERS:
            yield Measurement(f"{NAMES[part]}, end to end", bench.end_to_end(part))
    if "paper" in options.only:
        for part in ENGINES:
            for is_base in bases:
                title = f"{server_name(part, is_base=is_base)}, end to end at the paper exchange"
                yield Measurement(title, bench.end_to_end_on_paper(part, is_base=is_base))


def _half_load(bench: Bench, options: Options, bases: Sequence[bool], done: Sequence[Result]) -> Iterator[Measurement]:
    for part in ENGINES:
        rate = options.rate or _half_rate(part, bool(options.base), done)
        if rate is None:
            continue  # the end-to-end measurement failed
        for is_base in bases:
            title = f"{server_name(part, is_base=is_base)}, {rate:,.0f} per second"
            yield Measurement(title, bench.half_load(part, rate, is_base=is_base))


def _counts(bench: Bench, options: Options, bases: Sequence[bool]) -> Iterator[Measurement]:
    for work in WORKS:
        for is_base in bases if work != "hello" else (False,):
            name = server_name("hello" if work == "hello" else "sqlite", is_base=is_base)
            results = measure_instructions(bench, work, options.orders, is_base=is_base)
            yield Measurement(f"{name}, instructions of {options.orders:,} orders, {work}", results)
    for clients in (CLIENTS, 1):
        for is_base in bases:
            name = server_name("sqlite", is_base=is_base)
            calls = measure_calls(bench, clients, options.orders, is_base=is_base)
            yield Measurement(f"{name}, Python calls of {options.orders:,} orders, {clients} at once", calls)


def _half_rate(part: Part, of_base: bool, done: Sequence[Result]) -> float | None:
    """Half of the end-to-end rate: of the base if it is measured, so that both get the same load, else of its own."""
    for row in medians([result for result in done if isinstance(result, Row)]):
        if (row.part, row.kind, row.is_base) == (part, "end to end", of_base):
            return row.per_second / 2
    return None
