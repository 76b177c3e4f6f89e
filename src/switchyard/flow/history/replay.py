"""replay: an audit file as proof (the same state, the same digest) or as the source of a new database."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from pathlib import Path
from typing import cast

import msgspec

from switchyard.domain.errors import SwitchyardError
from switchyard.domain.events import EventType, JournalEvent
from switchyard.domain.orders import Order
from switchyard.domain.replay import AuditLine, Replay, ReplayMismatch, StateDigest, state_digest
from switchyard.flow.history.verify import HASH_BYTES, READ_BUFFER_BYTES, ChainWalk
from switchyard.ports.journal import Head
from switchyard.ports.rebuild import PlacedEvent, RebuildTarget

# Some megabytes of lines: enough that a batch's fixed costs do not count.
BATCH = 5_000


class NotEmpty(SwitchyardError):
    """The database to rebuild into has a history of its own."""


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay has made of a file."""

    events: int
    orders: int
    seq: int
    digest: str
    partial_bytes: int
    """Length of a last line that was never finished, and was left out."""


async def replay(path: Path, target: RebuildTarget | None = None) -> ReplayResult:
    """Fold the file, checking its chain and every step, and write the outcome into an empty database if there is one.

    Events pass by in batches, but the rows are held in memory until the last of them has come: about a
    gigabyte for a million orders. An attempt without an outcome stays `sending` under its old worker, so that
    recovery at start finds it as the orphan it is.
    """
    if target is not None and not await target.is_empty():
        raise NotEmpty("the database is not empty: a rebuild needs a fresh one")
    fold = Replay()
    file = await asyncio.to_thread(path.open, "rb", READ_BUFFER_BYTES)
    try:
        walk = ChainWalk(file)
        lines = iter(walk)
        while batch := await asyncio.to_thread(_fold, fold, lines):
            if target is not None:
                await target.load_events([_placed(line, raw) for line, raw in batch])
    finally:
        file.close()
    last = walk.last
    if fold.within_change:
        assert last is not None
        raise ReplayMismatch(
            last.seq, "the file ends between a report and its order's update: remove the last line to replay the rest"
        )
    if target is not None and last is not None:
        await target.load_state(
            fold.orders.values(),
            fold.outbox.values(),
            fold.keys.values(),
            fold.positions.values(),
            fold.executions.values(),
        )
        await target.set_head(last.shard, Head(last.epoch, last.seq, last.hash), last.at)
    return ReplayResult(
        events=walk.lines,
        orders=len(fold.orders),
        seq=0 if last is None else last.seq,
        digest=state_digest(fold.sorted_orders()),
        partial_bytes=walk.partial_bytes,
    )


async def live_digest(orders: AsyncIterator[Order]) -> str:
    """The digest of a database's orders, to be held against a replay's."""
    digest = StateDigest()
    async for order in orders:
        digest.add(order)
    return digest.hexdigest()


def _fold(fold: Replay, lines: Iterator[tuple[AuditLine, bytes]]) -> list[tuple[AuditLine, bytes]]:
    batch = list(islice(lines, BATCH))
    for line, _ in batch:
        fold.apply(line)
    return batch


def _placed(line: AuditLine, raw: bytes) -> PlacedEvent:
    kind = cast(EventType, line.type)  # the fold knows all types, or it would have rejected the line
    text = raw[:-HASH_BYTES].decode()
    event = JournalEvent(line.seq, line.at, kind, line.account_id, line.order_id, text, line.hash)
    return PlacedEvent(line.epoch, line.shard, event)
