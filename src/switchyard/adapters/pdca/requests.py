"""Requests to recheck strategies in SQL, the same on both engines."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from switchyard.adapters.pdca.session import Dialect, Engine, Row, Session
from switchyard.adapters.pdca.strategies import of_tenants, selected, selection, tenant_list
from switchyard.adapters.tables import moment
from switchyard.domain.errors import IdempotencyConflict, InvalidField
from switchyard.domain.strategies.registry import StrategyKey, Tenants, tenants_digest
from switchyard.domain.strategies.requests import (
    Artifact,
    ItemError,
    ItemResult,
    Progress,
    RecheckItem,
    RecheckRequest,
    RunnerInfo,
    RunnerName,
)
from switchyard.ports.strategies import PAGE_MAX, Created, ItemPage, StoredRequest, UnknownStrategies

# Items of a request that names its strategies: each is a statement of its own. A bulk request has no such bound.
NAMED_ITEMS_MAX = 1_000

_CREATE = """
INSERT INTO pdca_requests
    (request_id, client_id, caller, operation, idempotency_key, digest, runner, batch, submitted_at, started_at,
    finished_at, run, body)
VALUES ($1, $2, $3, $4, $5, $6, $7, 0, NULL, NULL, NULL, $8, $9)
ON CONFLICT (client_id, caller, operation, idempotency_key) DO NOTHING RETURNING request_id
"""
_EARLIER = """
SELECT digest, body FROM pdca_requests
WHERE client_id = $1 AND caller = $2 AND operation = $3 AND idempotency_key = $4
"""
# The position before the first waiting item, the last one of all, and the last one of the caller.
_POSITIONS = """
SELECT
    (SELECT queue_position - 1 FROM pdca_items WHERE queue_position IS NOT NULL AND state = 'queued'
    ORDER BY queue_position LIMIT 1),
    (SELECT max(queue_position) FROM pdca_items WHERE queue_position IS NOT NULL),
    (SELECT max(queue_position) FROM pdca_items WHERE queue_position IS NOT NULL AND caller = $1)
"""
_ENQUEUE = """
UPDATE pdca_items SET caller = $3, queue_position = CAST($4 AS bigint) + number % CAST($5 AS integer)
WHERE request_id = $1 AND batch = $2
"""
_ITEM_COLUMNS = """
request_id, number, batch, tenant, strategy_id, strategy_created_at, state, generation, attempts, artifacts
"""
_ADD_ITEM = f"INSERT INTO pdca_items ({_ITEM_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, 'queued', 0, 0, '[]')"
_STORED = """
SELECT body, run, started_at, finished_at, caller,
    (SELECT count(*) FROM pdca_items AS item WHERE item.request_id = request.request_id),
    (SELECT count(*) FROM pdca_items AS item WHERE item.request_id = request.request_id AND state = 'queued'),
    (SELECT count(*) FROM pdca_items AS item WHERE item.request_id = request.request_id AND state = 'running'),
    (SELECT count(*) FROM pdca_items AS item WHERE item.request_id = request.request_id AND state = 'succeeded'),
    (SELECT count(*) FROM pdca_items AS item WHERE item.request_id = request.request_id AND state = 'failed')
FROM pdca_requests AS request
"""
# The items of some tenants, and when they began and ended.
_OWN = """
SELECT state, count(*), min(started_at), max(finished_at) FROM pdca_items
WHERE request_id = $1 AND {condition} GROUP BY state
"""
_ITEMS = """
SELECT tenant, strategy_id, state, attempts, started_at, finished_at, outcome, artifacts FROM pdca_items
WHERE request_id = $1 AND {condition} ORDER BY number LIMIT CAST($3 AS integer) OFFSET CAST($4 AS bigint)
"""
# The rows of a removed request go with it.
_REAP = """
DELETE FROM pdca_requests WHERE request_id IN (
    SELECT request_id FROM pdca_requests WHERE finished_at < $1 ORDER BY finished_at LIMIT CAST($2 AS integer)
) RETURNING request_id
"""
_request = msgspec.json.Decoder(RecheckRequest)
_run = msgspec.json.Decoder(RunnerInfo)
_result = msgspec.json.Decoder(ItemResult)
_error = msgspec.json.Decoder(ItemError)
_artifacts = msgspec.json.Decoder(tuple[Artifact, ...])


class SqlRequests:
    """ports.strategies.RecheckRequests."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def create(
        self,
        request: RecheckRequest,
        key: str,
        digest: str,
        strategy_ids: Sequence[str] | None,
        tenants: Tenants = None,
    ) -> Created:
        """Store the request with its items, or return the earlier one of the key."""
        names = (request.client_id, tenants_digest(tenants), request.operation, key)
        async with self._engine.writing() as session:
            run = msgspec.json.encode(RunnerInfo()).decode()
            body = msgspec.json.encode(request).decode()
            if not await session.rows(_CREATE, request.request_id, *names, digest, request.runner, run, body):
                [(earlier_digest, earlier)] = await session.rows(_EARLIER, *names)
                if earlier_digest != digest:
                    raise IdempotencyConflict(key)
                return Created(_request.decode(earlier), replayed=True)
            if strategy_ids is None:
                await self._add_selected(session, request, tenants)
            else:
                await self._add_named(session, request, strategy_ids, tenants)
            await enqueue_batch(session, self._engine.dialect, request, 0)
            # A filter that selects nothing leaves nothing to do.
            await session.rows(
                "UPDATE pdca_requests SET finished_at = $2, started_at = $2 WHERE request_id = $1 "
                "AND NOT EXISTS (SELECT 1 FROM pdca_items WHERE request_id = $1)",
                request.request_id,
                request.created_at,
            )
        return Created(request, replayed=False)

    async def request(self, request_id: str) -> StoredRequest | None:
        """The request with its progress."""
        async with self._engine.reading() as session:
            rows = await session.rows(f"{_STORED} WHERE request_id = $1", request_id)
        return _stored(rows[0]) if rows else None

    async def items(self, request_id: str, offset: int, limit: int, tenants: Tenants = None) -> ItemPage | None:
        """A page of its items."""
        condition = of_tenants(tenants, self._engine.dialect.each, 2)
        values = (request_id, tenant_list(tenants))
        async with self._engine.reading() as session:
            rows = await session.rows(f"{_STORED} WHERE request_id = $1", request_id)
            if not rows:
                return None
            stored = _stored(rows[0])
            if tenants is not None and not stored.progress.total and rows[0][4] != tenants_digest(tenants):
                return None
            if tenants is not None and stored.progress.total:
                own = _of_own(stored, await session.rows(_OWN.format(condition=condition), *values))
                if own is None:
                    return None
                stored = own
            found = await session.rows(_ITEMS.format(condition=condition), *values, min(limit, PAGE_MAX), offset)
        # Counted among the shown items: the stored number of the batch counts those of other tenants too.
        size = stored.request.batch_size
        return ItemPage(stored, tuple([_item(row, number // size) for number, row in enumerate(found, offset)]))

    async def unfinished(
        self, runner: RunnerName, *, submitted: bool, after: str = "", limit: int = PAGE_MAX
    ) -> list[StoredRequest]:
        """Unfinished requests of the runner, in the order of their ids."""
        condition = "submitted_at IS NOT NULL" if submitted else "submitted_at IS NULL"
        sql = f"""
        {_STORED} WHERE runner = $1 AND request_id > $2 AND finished_at IS NULL AND {condition}
        ORDER BY request_id LIMIT CAST($3 AS integer)
        """
        async with self._engine.reading() as session:
            rows = await session.rows(sql, runner, after, min(limit, PAGE_MAX))
        return [_stored(row) for row in rows]

    async def note_run(self, request_id: str, run: RunnerInfo) -> None:
        """Replace what is known of the run."""
        async with self._engine.writing() as session:
            await session.rows(
                "UPDATE pdca_requests SET run = $2, submitted_at = $3 WHERE request_id = $1",
                request_id,
                msgspec.json.encode(run).decode(),
                run.submitted_at,
            )

    async def reap(self, ended_before: datetime, limit: int) -> int:
        """Remove the oldest requests that have ended."""
        async with self._engine.writing() as session:
            return len(await session.rows(_REAP, ended_before, limit))

    async def _add_selected(self, session: Session, request: RecheckRequest, tenants: Tenants) -> None:
        assert request.filter is not None, "a request without strategies has a filter"
        numbered = "row_number() OVER (ORDER BY strategy_id, tenant) - 1"
        await session.rows(
            f"INSERT INTO pdca_items ({_ITEM_COLUMNS}) SELECT CAST($4 AS text), {numbered}, "
            f"({numbered}) / CAST($5 AS integer), tenant, strategy_id, created_at, 'queued', 0, 0, '[]' "
            f"FROM pdca_strategies AS strategy WHERE {selection(request.filter, tenants, self._engine.dialect.each)}",
            *selected(request.filter, tenants),
            request.request_id,
            request.batch_size,
        )

    async def _add_named(
        self, session: Session, request: RecheckRequest, strategy_ids: Sequence[str], tenants: Tenants
    ) -> None:
        each = self._engine.dialect.each
        rows = await session.rows(
            f"SELECT tenant, strategy_id, created_at FROM pdca_strategies WHERE strategy_id IN ({each.format('$1')}) "
            f"AND {of_tenants(tenants, each, 2)} ORDER BY tenant",
            msgspec.json.encode(strategy_ids).decode(),
            tenant_list(tenants),
        )
        found: dict[str, list[Row]] = {strategy_id: [] for strategy_id in strategy_ids}
        for row in rows:
            found[row[1]].append(row)
        unknown = [strategy_id for strategy_id, of_name in found.items() if not of_name]
        if unknown:
            raise UnknownStrategies(unknown)
        strategies = [row for of_name in found.values() for row in of_name]
        if len(strategies) > NAMED_ITEMS_MAX:
            raise InvalidField(
                "strategies", f"{len(strategies)} accounts have strategies of these names, at most {NAMED_ITEMS_MAX}"
            )
        for number, strategy in enumerate(strategies):
            await session.rows(_ADD_ITEM, request.request_id, number, number // request.batch_size, *strategy)


async def enqueue_batch(session: Session, dialect: Dialect, request: RecheckRequest, batch: int) -> None:
    """Make the items of a batch claimable: callers take turns, and the items of a caller are first in, first out.

    A caller's item gets the position after its last one, but none before the first waiting item. So a caller with
    few items is behind one item of each other caller, and a claim reads the index in its order.
    """
    if request.runner != "embedded":  # other runners claim the items of one request
        return
    [(caller,)] = await session.rows("SELECT caller FROM pdca_requests WHERE request_id = $1", request.request_id)
    if dialect.lock_caller is not None:
        await session.rows(dialect.lock_caller, caller)
    [(before_first, last, own)] = await session.rows(_POSITIONS, caller)
    before = max(own or 0, (last or 0) if before_first is None else before_first)
    await session.rows(_ENQUEUE, request.request_id, batch, caller, before + 1, request.batch_size)


def decoded_request(body: str) -> RecheckRequest:
    """The request of a row."""
    return _request.decode(body)


def _stored(row: Row) -> StoredRequest:
    body, run, started_at, finished_at, _caller, total, queued, running, succeeded, failed = row
    return StoredRequest(
        request=_request.decode(body),
        run=_run.decode(run),
        progress=Progress(total=total, queued=queued, running=running, succeeded=succeeded, failed=failed),
        started_at=moment(started_at),
        finished_at=moment(finished_at),
    )


def _of_own(stored: StoredRequest, rows: Sequence[Row]) -> StoredRequest | None:
    """The request as if it had no other items than these, which are counted by state; None if there are none."""
    counts = {row[0]: row[1] for row in rows}
    if not counts:
        return None
    progress = Progress(
        total=sum(counts.values()),
        **{state: counts.get(state, 0) for state in ("queued", "running", "succeeded", "failed")},
    )
    began = [at for row in rows if (at := moment(row[2])) is not None]
    is_open = progress.queued or progress.running
    return msgspec.structs.replace(
        stored,
        progress=progress,
        started_at=min(began, default=None),
        finished_at=None if is_open else max(moment(row[3]) or stored.request.created_at for row in rows),
    )


def _item(row: Row, batch: int) -> RecheckItem:
    tenant, strategy_id, state, attempts, started_at, finished_at, outcome, artifacts = row
    return RecheckItem(
        key=StrategyKey(tenant, strategy_id),
        batch=batch,
        state=state,
        attempts=attempts,
        started_at=moment(started_at),
        finished_at=moment(finished_at),
        result=_result.decode(outcome) if state == "succeeded" else None,
        error=_error.decode(outcome) if state == "failed" else None,
        artifacts=_artifacts.decode(artifacts),
    )
