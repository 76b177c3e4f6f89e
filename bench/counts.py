"""What one order costs in instructions and in Python calls, by process and thread.

A time depends on the machine and on what else runs there; these counts hardly do. Instructions are those of user space,
counted by Valgrind's Callgrind in every process of the server. Calls are those of Python functions, counted by a
profiler in every thread. Both are counted while orders are posted and while there is nothing to do: what costs the same
each second is subtracted. `bench/observer` runs inside the server's processes and tells their threads apart.
"""

import asyncio
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Generic, Literal, NamedTuple, Protocol, Self, TypeVar

import aiohttp

from bench.bus.measure import not_booked, wait_until_none
from bench.contenders import Contender
from bench.load import tokens
from bench.measure import Bench
from bench.processes import BenchError, free_port
from bench.report import Part
from bench.stores import SqliteStore, check_filled, count_orders, wait_until_finished
from bench.tables import Section

OBSERVER = Path(__file__).parent / "observer"
CLIENTS = 64
# Fills caches and prepares statements, and Python specialises the code that runs.
WARM_UP_ORDERS = 192
IDLE_SECONDS = 15
# After the start and after the last order: periodic work of both has ended.
SETTLE_SECONDS = 5.0
# Of pauses and timeouts under Valgrind. Its own slowdown is a multiple, but polls that an order waits for get longer
# too. Work that repeats each second then has a few percent of the instructions, and they are subtracted.
SLOWDOWN = 10.0
# The books pause as long as their last page took, and Valgrind makes both longer.
BOOKS_STALLED_SECONDS_MAX = 900.0
ANSWER_SECONDS_MAX = 600.0
# Less than the server's 75 s: it must not close a connection on which the next order is posted.
KEEP_ALIVE_SECONDS = 60.0
VGDB_SECONDS_MAX = 120.0
SNAPSHOT_SECONDS_MAX = 30.0
POLL_SECONDS = 0.05
# Crosses the market, and cannot expire while Valgrind slows the server down.
FILLING_ORDER = (
    '{"symbol":"USDJPY","side":"BUY","type":"LIMIT","qty":1000,"price":200,"timeInForce":"GTC","strategy":"bench"}'
)
COMMITS = re.compile(r"^journal_group_size_count (\S+)", re.MULTILINE)
LWP = re.compile(r"^Thread (\d+): status = .* \(lwpid (\d+)\)", re.MULTILINE)
THREAD = re.compile(r"^thread: (\d+)", re.MULTILINE)
TOTALS = re.compile(r"^totals: (\d+)", re.MULTILINE)

Work = Literal["hello", "accepted, no books", "accepted", "filled, no books", "filled"]
WORKS: tuple[Work, ...] = ("hello", "accepted, no books", "accepted", "filled, no books", "filled")
PACKAGE = "switchyard/"
# Of the calls of a function per order: some are made once for several orders that share a commit.
ON_THE_WAY_MIN = 0.5
ROWS_SHOWN = 20
MAIN_ROLE = "event loop"
BOOKS_ROLE, OTHER_ROLE = "books", "rest"
ROLES = {"sqlite-writer": "journal writer", "sqlite-reader": "readers", "paper-": "paper exchange"}
ROLE_ORDER = (MAIN_ROLE, *ROLES.values(), BOOKS_ROLE, OTHER_ROLE)


class Thread(NamedTuple):
    """Where something was counted."""

    process: str
    role: str


class Call(NamedTuple):
    """A function that a thread called."""

    thread: Thread
    file: str
    """From the folder of its package or library."""
    function: str
    line: int

    @property
    def is_own(self) -> bool:
        """Whether it is one of Switchyard's."""
        return self.file.startswith(PACKAGE)


Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Process:
    """One process of the server, with what its observer has written about it."""

    folder: Path
    pid: int

    def thread(self, native_id: int) -> Thread:
        """Return the role of one of its threads."""
        return Thread(self.name, self._role(native_id))

    @property
    def name(self) -> str:
        """The program and its subcommand, such as `switchyard up`."""
        words = json.loads((self.folder / f"{self.pid}.process").read_text("utf-8"))
        return " ".join([word for word in words if not word.startswith("-")][:2])

    def _role(self, native_id: int) -> str:
        if native_id == self.pid:
            return MAIN_ROLE
        named = self.folder / f"{self.pid}.{native_id}.thread"
        name, _, path = named.read_text("utf-8").partition(" ") if named.exists() else ("", "", "")
        if Path(path).stem == "backoffice":
            return BOOKS_ROLE
        return next((role for prefix, role in ROLES.items() if name.startswith(prefix)), OTHER_ROLE)


def processes(folder: Path) -> list[Process]:
    """The observed processes that run, in the order of their start."""
    pids = sorted(int(path.stem) for path in folder.glob("*.process"))
    return [Process(folder, pid) for pid in pids if Path(f"/proc/{pid}").exists()]


@dataclass(frozen=True)
class Instructions:
    """The instructions of each order, and of each second without orders."""

    work: Work
    is_base: bool
    of_order: Mapping[Thread, float]
    of_idle_second: float
    commits: float
    """The journal's commits of each order: the fewer orders share a commit, the more each of them costs."""


@dataclass(frozen=True)
class Calls:
    """The calls of Python functions of each order that is filled."""

    clients: int
    is_base: bool
    of_order: Mapping[Call, float]
    commits: float
    """The journal's commits of each order."""


COMMITS_ORDERS = 100
COMMITS_NOTE = "compare 'before' and 'now' only at about the same number of commits: orders share the cost of each"
BESIDE: Mapping[str, Callable[[Instructions], float]] = {
    f"commits of {COMMITS_ORDERS} orders": lambda one: one.commits * COMMITS_ORDERS,
    "thousand instructions of a second without orders": lambda one: one.of_idle_second / 1e3,
}


def valgrind_facts() -> dict[str, str]:
    """The version of Valgrind; raises BenchError if it is not installed."""
    if shutil.which("valgrind") is None:
        raise BenchError("valgrind is not on the PATH: install Debian's package `valgrind` (apt-get install valgrind)")
    printed = subprocess.run(["valgrind", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return {"instructions": f"in user space, counted by Callgrind of {printed}"}


def measure_instructions(bench: Bench, work: Work, orders: int, *, is_base: bool) -> Iterator[Instructions]:
    """Count the instructions of one kind of work."""
    with _observed(bench, work, is_base=is_base) as (contender, folder):
        is_sent = work.startswith("filled")
        counted = _counted(bench, contender, Callgrind(folder), CLIENTS, orders, is_sent=is_sent)
    yield Instructions(work, is_base, counted.of_order, sum(counted.of_idle_second.values()), counted.commits)


def measure_calls(bench: Bench, clients: int, orders: int, *, is_base: bool) -> Iterator[Calls]:
    """Count the Python calls of an order that is filled."""
    with _observed(bench, "filled", is_base=is_base) as (contender, folder):
        counted = _counted(bench, contender, CallCounter(folder), clients, orders, is_sent=True)
    yield Calls(clients, is_base, counted.of_order, counted.commits)


@contextmanager
def _observed(bench: Bench, work: Work, *, is_base: bool) -> Iterator[tuple[Contender, Path]]:
    """Yield the server of the work and a folder for what its observer and Valgrind write."""
    part: Part = "hello" if work == "hello" else "sqlite"
    with bench.fresh(part, worker=work.startswith("filled"), is_base=is_base, venue=None) as contender:
        folder = contender.folder / "observed"
        folder.mkdir()
        environment = {
            **contender.environment,
            "PYTHONPATH": str(OBSERVER),
            "BENCH_OBSERVED": str(folder),
            "BENCH_PAUSES": str(SLOWDOWN),
        }
        if work in ("accepted", "filled"):
            environment |= {
                "SWITCHYARD_BACKOFFICE": "true",
                "SWITCHYARD_BACKOFFICE_PORT": str(free_port()),
                # A pass of the reconciliation in one of two windows would make them differ.
                "SWITCHYARD_RECONCILE_SEC": "3600",
            }
        yield replace(contender, environment=environment), folder


@dataclass(frozen=True)
class _Counted(Generic[Key]):
    """The counts of one order and of one second without orders, and the commits of an order."""

    of_order: dict[Key, float]
    of_idle_second: dict[Key, float]
    commits: float


def _counted(
    bench: Bench, contender: Contender, counting: "Counting[Key]", clients: int, orders: int, *, is_sent: bool
) -> _Counted[Key]:
    """Count in one server, first without orders and then with them."""

    def counted(run: Callable[[], None]) -> tuple[Counter[Key], float]:
        counting.take()
        started = time.monotonic()
        run()
        seconds = time.monotonic() - started
        return counting.take(), seconds

    store = contender.store
    contender = replace(
        contender,
        command=counting.command(contender.command),
        environment={**contender.environment, "BENCH_OBSERVE": counting.observes},
    )
    with contender.serving() as server, Clients(server.url, tokens(bench.secret), clients) as posting:

        def post(number: int) -> None:
            at_once = counting.unfinished_max if is_sent else number
            for first in range(0, number, at_once):
                posting.post(min(at_once, number - first))
                if is_sent and store is not None:
                    wait_until_finished(store)
                    check_filled(store.orders(datetime.fromtimestamp(0, UTC)))
            _wait_until_booked(contender)

        time.sleep(SETTLE_SECONDS)
        counting.begin()
        idle, idle_seconds = counted(lambda: time.sleep(IDLE_SECONDS))
        counting.slow_down()
        post(WARM_UP_ORDERS)
        commits = _commits(server.url)
        busy, busy_seconds = counted(lambda: post(orders))
        commits = (_commits(server.url) - commits) / orders
        if store is not None and count_orders(store) != WARM_UP_ORDERS + orders:
            raise BenchError("the database does not have the orders that were posted")
    of_idle_second = {key: number / idle_seconds for key, number in idle.items()}
    seconds = busy_seconds / counting.slowdown
    of_order = {key: (number - of_idle_second.get(key, 0.0) * seconds) / orders for key, number in busy.items()}
    return _Counted(of_order, of_idle_second, commits)


def _commits(url: str) -> float:
    """The group commits of the journal so far; none without a journal."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=ANSWER_SECONDS_MAX) as response:
        found = COMMITS.search(response.read().decode())
    return float(found[1]) if found else 0.0


def _wait_until_booked(contender: Contender) -> None:
    """Wait until the orders are in the books, if there are any, and until nothing follows them any more."""
    if contender.environment.get("SWITCHYARD_BACKOFFICE") == "true":
        store, books = contender.store, SqliteStore(contender.folder / "data", "backoffice.db")
        assert store is not None, "books have a journal"
        wait_until_none(lambda: not_booked(books, store), BOOKS_STALLED_SECONDS_MAX)
    time.sleep(SETTLE_SECONDS)


class Clients:
    """Connections that stay open, each of which posts its next order after the answer."""

    def __init__(self, url: str, bearer: Sequence[str], number: int) -> None:
        self._url, self._bearer, self._number = f"{url}/orders", bearer, number
        self._runner = asyncio.Runner()
        self._session: aiohttp.ClientSession | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._session is not None:
            self._runner.run(self._session.close())
        self._runner.close()

    def post(self, orders: int) -> None:
        """Post so many orders; raises BenchError if one is not accepted."""
        try:
            self._runner.run(self._post(orders))
        except aiohttp.ClientError as error:
            raise BenchError(f"an order was not answered: {error!r}") from error

    async def _post(self, orders: int) -> None:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=self._number, keepalive_timeout=KEEP_ALIVE_SECONDS)
            self._session = aiohttp.ClientSession(
                connector=connector, timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS_MAX)
            )
        session, label, numbers = self._session, secrets.token_hex(8), iter(range(orders))

        async def client() -> None:
            for number in numbers:
                headers = {
                    "Authorization": f"Bearer {self._bearer[number % len(self._bearer)]}",
                    "Content-Type": "application/json",
                    "Idempotency-Key": f"{label}-{number}",
                }
                async with session.post(self._url, data=FILLING_ORDER, headers=headers) as response:
                    answer = await response.text()
                    if response.status != 202:
                        raise BenchError(f"an order was not accepted: {response.status} {answer}")

        await asyncio.gather(*(client() for _ in range(self._number)))


class Counting(Protocol[Key]):
    """A way to count in a server and in the processes that it starts."""

    observes: str
    """What the observer inside does."""
    unfinished_max: int
    """Orders that may be under way: more than the admission window would be rejected after a second of waiting."""
    slowdown: float
    """How much slower the server is while orders are counted."""

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs the server."""
        ...

    def begin(self) -> None:
        """Begin to count."""
        ...

    def slow_down(self) -> None:
        """Make pauses and timeouts longer by the slowdown."""
        ...

    def take(self) -> Counter[Key]:
        """Return what was counted since the last call."""
        ...


class Callgrind:
    """Counts instructions."""

    observes = "threads"
    # At Valgrind's pace a full window of orders takes longer than the next request may wait.
    unfinished_max = CLIENTS
    slowdown = SLOWDOWN

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._prefix = f"--vgdb-prefix={folder}/vgdb"

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command under Valgrind."""
        options = ["--tool=callgrind", "--separate-threads=yes", "--instr-atstart=no", "--trace-children=yes"]
        options += [
            self._prefix,
            f"--log-file={self._folder}/valgrind.%p",
            f"--callgrind-out-file={self._folder}/counts.%p",
        ]
        return ["valgrind", *options, *command]

    def begin(self) -> None:
        """Count from now on: the start would take ten times as long."""
        for process in processes(self._folder):
            self._tell(process, "instrumentation", "on")

    def slow_down(self) -> None:
        """Make pauses longer: else work that repeats each second would be a third of the instructions."""
        for process in processes(self._folder):
            os.kill(process.pid, signal.SIGUSR2)
        time.sleep(SETTLE_SECONDS)

    def take(self) -> Counter[Thread]:
        """Return the instructions of each thread since the last call."""
        counts: Counter[Thread] = Counter()
        for process in processes(self._folder):
            numbers = {int(number): int(lwp) for number, lwp in LWP.findall(self._tell(process, "v.info", "scheduler"))}
            self._tell(process, "dump")
            for path in self._folder.glob(f"counts.{process.pid}.*"):
                text = path.read_text("utf-8", "replace")
                path.unlink()
                found, total = THREAD.search(text), TOTALS.search(text)
                if found and total:
                    counts[process.thread(numbers.get(int(found[1]), 0))] += int(total[1])
        return counts

    def _tell(self, process: Process, *words: str) -> str:
        command = ["vgdb", self._prefix, f"--pid={process.pid}", *words]
        completed = subprocess.run(command, capture_output=True, text=True, timeout=VGDB_SECONDS_MAX, check=False)
        if completed.returncode:
            raise BenchError(f"{' '.join(command)} exited with {completed.returncode}:\n{completed.stderr}")
        return completed.stdout


class CallCounter:
    """Counts calls of Python functions."""

    observes = "calls"
    unfinished_max = sys.maxsize
    slowdown = 1.0

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before: Counter[Call] = Counter()

    def command(self, command: Sequence[str]) -> list[str]:
        """Return the command as it is."""
        return list(command)

    def begin(self) -> None:
        """Do nothing: the observer counts from the start."""

    def slow_down(self) -> None:
        """Do nothing: what it costs to count is too little to matter."""

    def take(self) -> Counter[Call]:
        """Return the calls since the last call of this method."""
        counts: Counter[Call] = Counter()
        for process in processes(self._folder):
            written = self._folder / f"{process.pid}.calls"
            written.unlink(missing_ok=True)
            os.kill(process.pid, signal.SIGUSR2)
            deadline = time.monotonic() + SNAPSHOT_SECONDS_MAX
            while not written.exists():
                if time.monotonic() > deadline:
                    raise BenchError(f"{process.name} has not written its calls within {SNAPSHOT_SECONDS_MAX:.0f} s")
                time.sleep(POLL_SECONDS)
            threads: dict[int, Thread] = {}
            for native_id, path, function, line, number in json.loads(written.read_bytes()):
                thread = threads.get(native_id) or threads.setdefault(native_id, process.thread(native_id))
                counts[Call(thread, _short(path), function, line)] += number
        since, self._before = counts - self._before, counts
        return since


def _short(path: str) -> str:
    """The path of a source file from the folder of its package or library."""
    for folder in ("/src/switchyard/", "/site-packages/", "/python3.11/"):
        _, found, tail = path.rpartition(folder)
        if found:
            return f"{PACKAGE}{tail}" if "switchyard" in folder else tail
    return path


def counts_sections(results: Sequence[Instructions | Calls]) -> list[Section]:
    """The tables of what was counted, with those of the base as 'before'."""
    instructions = [result for result in results if isinstance(result, Instructions)]
    calls = [result for result in results if isinstance(result, Calls)]
    hello = next((sum(result.of_order.values()) for result in instructions if result.work == "hello"), None)
    return [
        Section(
            "Instructions of an order, in thousands",
            ("work", "process", "thread", "before", "now", "× before", "× hello"),
            [row for work in WORKS for row in _work_rows([one for one in instructions if one.work == work], hello)],
            text_columns=3,
        ),
        Section(
            "Beside the instructions of an order",
            ("work", "measured", "before", "now", "× before"),
            [
                (work, measured, *_compared({one.is_base: figure(one) for one in instructions if one.work == work}))
                for measured, figure in BESIDE.items()
                for work in dict.fromkeys(one.work for one in instructions)
            ],
            notes=[COMMITS_NOTE] if instructions else [],
        ),
        Section(
            "Python calls of an order that is filled",
            ("counted", "clients", "before", "now", "× before"),
            [
                row
                for clients in dict.fromkeys(one.clients for one in calls)
                for row in _calls_rows([one for one in calls if one.clients == clients])
            ],
        ),
        Section(
            f"Python calls of an order by package or library, at {CLIENTS} clients",
            ("package", "before", "now", "× before"),
            _most_called([one for one in calls if one.clients == CLIENTS], lambda call: (_package(call.file),)),
            text_columns=1,
        ),
        Section(
            f"Functions that an order calls most, at {CLIENTS} clients",
            ("function", "file", "before", "now", "× before"),
            _most_called([one for one in calls if one.clients == CLIENTS], lambda call: (call.function, call.file)),
        ),
    ]


def _work_rows(measured: Sequence[Instructions], hello: float | None) -> Iterator[tuple[str, ...]]:
    """One row for each thread and one for all, with the base beside the present code."""
    if not measured:
        return
    of_order = {one.is_base: one.of_order for one in measured}
    threads = sorted({thread for counts in of_order.values() for thread in counts}, key=_place)
    for thread in threads:
        figures = {is_base: counts.get(thread, 0.0) / 1e3 for is_base, counts in of_order.items()}
        yield (measured[0].work, thread.process, thread.role, *_compared(figures), "")
    totals = {is_base: sum(counts.values()) for is_base, counts in of_order.items()}
    in_hellos = f"{totals[False] / hello:.1f}" if hello and False in totals else ""
    yield (measured[0].work, "all", "all", *_compared({at: total / 1e3 for at, total in totals.items()}), in_hellos)


def _calls_rows(measured: Sequence[Calls]) -> Iterator[tuple[str, ...]]:
    """One row for each thread, for all of them, and for the functions and files on the way of an order."""
    clients = str(measured[0].clients)
    of_order = {one.is_base: one.of_order for one in measured}
    for thread in sorted({call.thread for counts in of_order.values() for call in counts}, key=_place):
        figures = {
            is_base: sum(number for call, number in counts.items() if call.thread == thread)
            for is_base, counts in of_order.items()
        }
        yield (f"{thread.process}, {thread.role}", clients, *_compared(figures))
    yield ("all", clients, *_compared({is_base: sum(counts.values()) for is_base, counts in of_order.items()}))
    own = {is_base: _on_the_way(counts) for is_base, counts in of_order.items()}
    functions = {is_base: float(len(calls)) for is_base, calls in own.items()}
    files = {is_base: float(len({file for file, *_ in calls})) for is_base, calls in own.items()}
    commits = {one.is_base: one.commits * COMMITS_ORDERS for one in measured}
    yield (f"commits of {COMMITS_ORDERS} orders", clients, *_compared(commits))
    yield ("functions of the package", clients, *_compared(functions))
    yield ("files of the package", clients, *_compared(files))


def _most_called(measured: Sequence[Calls], cells: Callable[[Call], tuple[str, ...]]) -> list[tuple[str, ...]]:
    """The rows with the most calls, of those that have the same text."""
    numbers: dict[bool, dict[tuple[str, ...], float]] = {}
    for one in measured:
        of_row = numbers.setdefault(one.is_base, {})
        for call, number in one.of_order.items():
            of_row[cells(call)] = of_row.get(cells(call), 0.0) + number
    now = numbers.get(False) or numbers.get(True) or {}
    return [
        (*text, *_compared({is_base: of_row.get(text, 0.0) for is_base, of_row in numbers.items()}))
        for text in sorted(now, key=now.__getitem__, reverse=True)[:ROWS_SHOWN]
    ]


def _package(file: str) -> str:
    """The part of Switchyard or the library that a source file belongs to, such as `flow/sending` or `asyncio`."""
    parts = file.split("/")
    if file.startswith(PACKAGE):
        return "/".join(parts[1:3] if len(parts) > 3 else parts[1:-1] or parts)
    return parts[0]


def _on_the_way(of_order: Mapping[Call, float]) -> set[tuple[str, str, int]]:
    """The functions of the package that most orders call; lambdas and comprehensions belong to their functions."""
    numbers: dict[tuple[str, str, int], float] = {}
    for call, number in of_order.items():
        if call.is_own and not call.function.endswith(">"):
            key = call.file, call.function, call.line
            numbers[key] = numbers.get(key, 0.0) + number
    return {key for key, number in numbers.items() if number >= ON_THE_WAY_MIN}


def _place(thread: Thread) -> tuple[str, int]:
    return thread.process, ROLE_ORDER.index(thread.role)


def _compared(figures: Mapping[bool, float]) -> tuple[str, str, str]:
    """The cells 'before', 'now' and their ratio; empty if one of them was not measured."""
    before, now = figures.get(True), figures.get(False)
    ratio = f"{now / before:.2f}" if before and now is not None else ""
    before_text, now_text = ("" if figure is None else f"{figure:,.0f}" for figure in (before, now))
    return before_text, now_text, ratio
