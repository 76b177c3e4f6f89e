"""Replays an audit file: folds its lines into rows, as a proof of the state or to rebuild a database.

Reads the audit file; writes only to an empty `RebuildTarget`, and only if one is given.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import islice
from typing import cast

import msgspec

from switchyard.domain.errors import SwitchyardError
from switchyard.domain.journal.events import EventType, JournalEvent
from switchyard.domain.journal.lines import AuditLine, SignedHead, StateDigest, hashed_text, state_digest
from switchyard.domain.journal.replay import Replay, ReplayMismatch
from switchyard.domain.orders.order import Order
from switchyard.flow.history.restore import rebuilding_marker
from switchyard.flow.history.verify import ChainWalk
from switchyard.ports.books import PlacedEvent, RebuildTarget, RebuiltIdentity
from switchyard.ports.files import AuditFile
from switchyard.ports.journal import Epoch, Head

# A few megabytes of lines: large enough that a batch's fixed costs do not matter.
BATCH = 5_000


class NotEmpty(SwitchyardError):
    """The database to rebuild already has events or rows."""


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """The counts and the state digest of a replayed file."""

    events: int
    orders: int
    seq: int
    digest: str
    partial_bytes: int
    """Length of an unfinished last line, which was left out."""


async def replay(
    source: AuditFile, target: RebuildTarget | None = None, head: SignedHead | None = None
) -> ReplayResult:
    """Verify and fold the file; with a target, write events and rows into that empty database.

    The database is left with the marker `restoring`, since orders may have been sent after the file's last line: no
    process starts on it before `declare_restored` has run. `head` is the file's signed head, which names the
    installation; without one the id comes from the file if it has a second epoch, else the database keeps its own.

    Events are loaded in batches. Rows are held in memory until the last event: about a gigabyte per million orders.
    An attempt without an outcome stays `sending` under its old worker, so that recovery at start treats it as orphaned.
    """
    if target is not None and not await target.is_empty():
        raise NotEmpty("the database is not empty: a rebuild needs an empty one")
    fold = Replay()
    epochs = [Epoch(1, 1, 0)]
    last_seq = 0
    walk = ChainWalk(source.lines())
    lines = iter(walk)
    while batch := await asyncio.to_thread(_fold, fold, lines):
        for line, _ in batch:
            if line.epoch > epochs[-1].epoch:
                epochs.append(Epoch(line.epoch, line.seq, last_seq))
            last_seq = line.seq
        if target is not None:
            await target.load_events([_placed(line, raw) for line, raw in batch])
    last = walk.last
    if fold.within_change:
        assert last is not None
        raise ReplayMismatch(
            last.seq,
            "the file ends between a report and its order's update: remove the last line and replay again",
        )
    if target is not None and last is not None:
        await target.load_state(
            fold.orders.values(),
            fold.outbox.values(),
            fold.keys.values(),
            fold.positions.values(),
            fold.executions.values(),
            fold.kills.rows.values(),
            fold.kills.orders,
        )
        await target.finish(
            RebuiltIdentity(
                shard=last.shard,
                head=Head(last.epoch, last.seq, last.hash),
                at=last.at,
                epochs=epochs,
                installation_id=fold.installation_id or (head.installation if head is not None else None) or None,
                tag=fold.tag,
                marker=rebuilding_marker(),
            )
        )
    return ReplayResult(
        events=walk.lines,
        orders=len(fold.orders),
        seq=0 if last is None else last.seq,
        digest=state_digest(fold.sorted_orders()),
        partial_bytes=walk.partial_bytes,
    )


async def live_digest(orders: AsyncIterator[Order]) -> str:
    """The digest of a database's orders, to compare with a replay's."""
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
    kind = cast(EventType, line.type)  # the fold rejects unknown types
    text = hashed_text(raw).decode()
    event = JournalEvent(line.seq, line.at, kind, line.account_id, line.order_id, text, line.hash)
    return PlacedEvent(line.epoch, line.shard, event)
