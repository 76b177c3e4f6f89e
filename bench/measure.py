"""The measurements: each on a fresh server and database, warmed up, loaded, stopped, and checked by counting."""

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
# Enough to keep groups filled, few enough that answers stay quick.
END_TO_END_CONNECTIONS = 64


@dataclass(frozen=True)
class Bench:
    """What all measurements of one run share."""

    folder: Path
    seconds: int
    new_database: Callable[[], AbstractContextManager[str]]
    """Makes a PostgreSQL database and yields its address."""
    secret: str = field(default_factory=lambda: secrets.token_hex(32))

    def accept(self, part: Part, connections: int) -> Iterator[Row]:
        """How many orders a second are accepted, and how quickly each."""
        bearer = tokens(self.secret)
        with self._fresh(part, worker=False) as contender:
            with contender.serving() as url:
                warm_up = post_orders(url, bearer, connections, WARM_UP_SECONDS)
                load = post_orders(url, bearer, connections, self.seconds)
            if contender.store is not None:
                # wrk leaves at the end of each run with up to one order per connection under way.
                _check_count(count_orders(contender.store), warm_up.answers + load.answers, 2 * connections)
        yield Row(part, "accept", connections, load.per_second, load.p50_ms, load.p99_ms)

    def end_to_end(self, part: Part) -> Iterator[Row]:
        """How many orders a second come to their end, and how long one takes at half that load."""
        bearer = tokens(self.secret)
        with self._fresh(part, worker=True) as contender, contender.serving() as url:
            store = contender.store
            assert store is not None, "only a server that keeps orders can finish them"
            post_orders(url, bearer, END_TO_END_CONNECTIONS, WARM_UP_SECONDS)
            wait_until_finished(store)

            began = datetime.now(UTC)
            load = post_orders(url, bearer, END_TO_END_CONNECTIONS, self.seconds)
            wait_until_finished(store)
            times = store.times(began)
            _check_count(len(times), load.answers, END_TO_END_CONNECTIONS)
            # The end is taken from the rows, not from the poll that noticed it: polls are rare so as not to disturb.
            sustained = len(times) / (max(final for _, final in times) - began).total_seconds()
            yield Row(part, "end to end", END_TO_END_CONNECTIONS, sustained)

            began = datetime.now(UTC)
            posted = uvloop.run(post_orders_steadily(url, bearer, sustained / 2, self.seconds))
            wait_until_finished(store)
            times = store.times(began)
            _check_count(len(times), posted, 0)
            # The pace that was kept, which is less than asked for where the poster itself is too slow.
            kept = posted / (max(accepted for accepted, _ in times) - began).total_seconds()
            took_ms = [(final - accepted).total_seconds() * 1e3 for accepted, final in times]
            yield Row(part, "half load", PACED_CONNECTIONS, kept, statistics.median(took_ms), percentile(took_ms, 99))

    @contextmanager
    def _fresh(self, part: Part, *, worker: bool) -> Iterator[Contender]:
        """A server that has seen no order yet; its files and its database outlive it until the block ends."""
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


def _check_count(kept: int, answered: int, under_way_max: int) -> None:
    """Every acceptance must be in the database, and nothing else but what was under way when the load ended."""
    if not answered <= kept <= answered + under_way_max:
        raise BenchError(f"{answered} orders were accepted, {kept} are in the database")
