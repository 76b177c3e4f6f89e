"""The measurements. Each starts a new server and database, warms up, applies load, and checks the row counts."""

import secrets
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import assert_never

import uvloop

from bench import contenders
from bench.contenders import Contender
from bench.facts import percentile
from bench.load import PACED_CONNECTIONS, post_orders, post_orders_steadily, tokens
from bench.processes import BenchError
from bench.report import Part, Row
from bench.stores import count_orders, wait_until_finished
from tests.support.redis import RedisServer

WARM_UP_SECONDS = 1
# Enough to fill commit groups, few enough to keep latency low.
END_TO_END_CONNECTIONS = 64


@dataclass(frozen=True)
class Bench:
    """The context that all measurements of one run share."""

    folder: Path
    seconds: int
    new_database: Callable[[], AbstractContextManager[str]]
    """Creates a PostgreSQL database and yields its URL."""
    secret: str = field(default_factory=lambda: secrets.token_hex(32))

    def accept(self, part: Part, connections: int) -> Iterator[Row]:
        """Measure the accept rate and latency."""
        bearer = tokens(self.secret)
        with self._fresh(part, worker=False) as contender:
            with contender.serving() as url:
                warm_up = post_orders(url, bearer, connections, WARM_UP_SECONDS)
                load = post_orders(url, bearer, connections, self.seconds)
            if contender.store is not None:
                # Each wrk run may end with one unanswered order per connection.
                _check_count(count_orders(contender.store), warm_up.answers + load.answers, 2 * connections)
        yield Row(part, "accept", connections, load.per_second, load.p50_ms, load.p99_ms)

    def end_to_end(self, part: Part) -> Iterator[Row]:
        """Measure the rate at which orders become final, and the latency at half that rate."""
        bearer = tokens(self.secret)
        with self._fresh(part, worker=True) as contender, contender.serving() as url:
            store = contender.store
            assert store is not None, "end to end needs a server that stores orders"
            post_orders(url, bearer, END_TO_END_CONNECTIONS, WARM_UP_SECONDS)
            wait_until_finished(store)

            started = datetime.now(UTC)
            load = post_orders(url, bearer, END_TO_END_CONNECTIONS, self.seconds)
            wait_until_finished(store)
            times = store.times(started)
            _check_count(len(times), load.answers, END_TO_END_CONNECTIONS)
            # The end comes from the rows, not from the time of the poll: polls are rare, so that they do not add load.
            sustained = len(times) / (max(final for _, final in times) - started).total_seconds()
            yield Row(part, "end to end", END_TO_END_CONNECTIONS, sustained)

            started = datetime.now(UTC)
            posted = uvloop.run(post_orders_steadily(url, bearer, sustained / 2, self.seconds))
            wait_until_finished(store)
            times = store.times(started)
            _check_count(len(times), posted, 0)
            # The actual rate, which is below the target if the load generator is too slow.
            actual = posted / (max(accepted for accepted, _ in times) - started).total_seconds()
            took_ms = [(final - accepted).total_seconds() * 1e3 for accepted, final in times]
            yield Row(part, "half load", PACED_CONNECTIONS, actual, statistics.median(took_ms), percentile(took_ms, 99))

    @contextmanager
    def _fresh(self, part: Part, *, worker: bool) -> Iterator[Contender]:
        """Yield a new server without orders; its files and database exist until the block ends."""
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=self.folder)))
            match part:
                case "hello":
                    yield contenders.hello(folder)
                case "peer":
                    yield contenders.peer(folder, self.secret, stack.enter_context(self.new_database()))
                case "sqlite":
                    yield contenders.switchyard(folder, self.secret, None, worker=worker)
                case "postgres":
                    database_url = stack.enter_context(self.new_database())
                    yield contenders.switchyard(folder, self.secret, database_url, worker=worker)
                case "redis":
                    database_url = stack.enter_context(self.new_database())
                    redis_url = stack.enter_context(RedisServer()).url
                    yield contenders.switchyard(folder, self.secret, database_url, redis_url, worker=worker)
                case _:
                    assert_never(part)


def _check_count(stored: int, accepted: int, unanswered_max: int) -> None:
    """Check that the database has every accepted order, and besides them only unanswered ones from the end."""
    if not accepted <= stored <= accepted + unanswered_max:
        raise BenchError(f"{accepted} orders were accepted, {stored} are in the database")
