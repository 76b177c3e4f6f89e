"""More load than a server can execute: how many orders it still fills, how fast it answers, and what memory it needs.

Runs against the default set-up, `up` with the paper exchange, with market orders, which expire if they wait too long.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial

from bench.load import MARKET_ORDER, Load, post_at_rate, press_orders, tokens
from bench.measure import END_TO_END_CONNECTIONS, WARM_UP_SECONDS, Bench, sustained
from bench.memory import MIB, resident_bytes, watched
from bench.open_loop import Answers
from bench.report import Part, server_name
from bench.stores import FILLED, Store, wait_until_finished
from bench.tables import Goal, Section, at_least, below

# Closed loops in which the queue stays short; the best of them is the capacity.
CAPACITY_CONNECTIONS = (16, 64)
CLOSED_LOOPS = (64, 192, 512)
OPEN_LOOP_FACTOR = 3
# More than may wait for a second, so that a request that is due finds a free one.
OPEN_LOOP_CONNECTIONS = 3_600
# Market orders expire after 2.5 s in the queue; after this time the queue is as long as it gets.
RAMP_SECONDS = 3
# An open loop that posts less than this share of its rate was not the load that it should have been.
GENERATOR_SHARE_MIN = 0.95
USEFUL_RATIO_MIN = 0.9
P99_MS_MAX = 1_500.0
# Buffers and caches fill up once; a queue without a bound grows by much more.
MEMORY_RATIO_MAX = 1.5
HEADINGS = (
    "server",
    "load",
    "answers",
    "posted per second",
    "fills per second",
    "capacity",
    "× capacity",
    "× before",
    "p99 ms",
    "MiB before, most, after",
)


@dataclass(frozen=True)
class Answered:
    """What both kinds of load report."""

    started_at: float
    statuses: Mapping[int, int]
    unanswered: int
    posted_per_second: float
    p99_ms: float
    """Over all answers, whatever their status."""
    shortfall: str = ""
    """Why the load was smaller than intended, if it was."""


@dataclass(frozen=True)
class Overload:
    """One level of load."""

    part: Part
    is_base: bool
    load: str
    answered: Answered
    fills_per_second: float
    capacity: float
    before_bytes: int
    most_bytes: int
    after_bytes: int

    @property
    def useful(self) -> float:
        return self.fills_per_second / self.capacity

    @property
    def name(self) -> str:
        return f"{server_name(self.part, is_base=self.is_base)}, {self.load}"


def measure_overload(bench: Bench, part: Part, *, is_base: bool = False) -> Iterator[Overload]:
    """Measure the capacity of one server, then load it more at each level; it is not restarted in between."""
    bearer = tokens(bench.secret)
    seconds = RAMP_SECONDS + bench.seconds
    with bench.fresh(part, worker=True, is_base=is_base, venue=None) as contender, contender.serving() as server:
        store = contender.store
        assert store is not None, "Switchyard has a database"
        press_orders(server.url, bearer, END_TO_END_CONNECTIONS, WARM_UP_SECONDS)
        wait_until_finished(store)
        capacity = max(
            _sustained(server.url, bearer, connections, bench.seconds, store) for connections in CAPACITY_CONNECTIONS
        )

        def closed_loop(connections: int) -> Answered:
            started_at = time.time()
            return _of_wrk(press_orders(server.url, bearer, connections, seconds), started_at)

        def open_loop() -> Answered:
            rate = OPEN_LOOP_FACTOR * capacity
            connections = OPEN_LOOP_CONNECTIONS
            return _of_rate(post_at_rate(server.url, bearer, rate, seconds, connections, MARKET_ORDER), rate)

        levels: list[tuple[str, Callable[[], Answered]]] = [
            (f"{connections} connections", partial(closed_loop, connections)) for connections in CLOSED_LOOPS
        ]
        for load, apply in [*levels, (f"{OPEN_LOOP_FACTOR} × capacity", open_loop)]:
            before_bytes = resident_bytes(server.pid)
            with watched(server.pid) as peak:
                answered = apply()
                wait_until_finished(store)
            fills_per_second = _fills_per_second(store, answered.started_at, bench.seconds)
            memory = before_bytes, peak.bytes, resident_bytes(server.pid)
            yield Overload(part, is_base, load, answered, fills_per_second, capacity, *memory)


def overload_section(results: Sequence[Overload]) -> Section:
    rows = [_cells(result, results) for result in results]
    notes = [f"{result.name}: {result.answered.shortfall}" for result in results if result.answered.shortfall]
    return Section("Overload with market orders", HEADINGS, rows, list(_goals(results)), text_columns=3, notes=notes)


def _sustained(url: str, bearer: Sequence[str], connections: int, seconds: int, store: Store) -> float:
    started = datetime.now(UTC)
    press_orders(url, bearer, connections, seconds)
    wait_until_finished(store)
    return sustained(store.orders(started), started)


def _of_wrk(load: Load, started_at: float) -> Answered:
    return Answered(started_at, load.statuses, load.socket_errors, load.per_second, load.p99_ms)


def _of_rate(answers: Answers, rate: float) -> Answered:
    shortfall = ""
    if answers.posted_per_second < GENERATOR_SHARE_MIN * rate:
        shortfall = (
            f"posted {answers.posted_per_second:,.0f} of {rate:,.0f} per second; "
            f"the generator used {answers.busy_share:.0%} of a core, and orders waited "
            f"for one of its {OPEN_LOOP_CONNECTIONS:,} connections"
        )
    return Answered(
        answers.started_at,
        answers.statuses,
        answers.unanswered,
        answers.posted_per_second,
        answers.p99_ms,
        shortfall,
    )


def _fills_per_second(store: Store, started_at: float, seconds: int) -> float:
    """Fills of the full queue; those before it is full or after the end of the load do not count."""
    started = datetime.fromtimestamp(started_at, UTC)
    first = started + timedelta(seconds=RAMP_SECONDS)
    last = first + timedelta(seconds=seconds)
    orders = store.orders(started)
    return sum(order.status == FILLED and first <= order.updated_at < last for order in orders) / seconds


def _cells(result: Overload, results: Sequence[Overload]) -> tuple[str, ...]:
    answered = result.answered
    answers = [f"{count:,} × {status}" for status, count in sorted(answered.statuses.items())]
    if answered.unanswered:
        answers.append(f"{answered.unanswered:,} unanswered")
    memory = (result.before_bytes, result.most_bytes, result.after_bytes)
    return (
        server_name(result.part, is_base=result.is_base),
        result.load,
        ", ".join(answers),
        f"{answered.posted_per_second:,.0f}",
        f"{result.fills_per_second:,.0f}",
        f"{result.capacity:,.0f}",
        f"{result.useful:.2f}",
        _before_ratio(result, results),
        f"{answered.p99_ms:,.0f}",
        ", ".join(f"{size / MIB:,.0f}" for size in memory),
    )


def _before_ratio(result: Overload, results: Sequence[Overload]) -> str:
    for other in results:
        if (other.part, other.load) == (result.part, result.load) and other.is_base and not result.is_base:
            return f"{result.fills_per_second / other.fills_per_second:.2f}" if other.fills_per_second else "∞"
    return ""


def _goals(results: Sequence[Overload]) -> Iterator[Goal]:
    new = [result for result in results if not result.is_base]
    for result in new:
        p99_ms = result.answered.p99_ms
        yield at_least(f"{result.name}: fills {result.useful:.2f} × capacity", result.useful, USEFUL_RATIO_MIN)
        yield below(f"{result.name}: answers have p99 {p99_ms:,.0f} ms", p99_ms, P99_MS_MAX)
    for part in dict.fromkeys(result.part for result in new):
        levels = [result for result in new if result.part == part]
        growth = max(level.most_bytes for level in levels) / levels[0].before_bytes
        name = server_name(part, is_base=False)
        yield below(f"{name}: over all levels memory grows to {growth:.2f} × before", growth, MEMORY_RATIO_MAX)
