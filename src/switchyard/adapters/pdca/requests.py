"""Requests to recheck strategies in SQL, the same on both engines."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from switchyard.adapters.pdca.session import Engine, Row, Session, moment
from switchyard.adapters.pdca.strategies import selected, selection
from switchyard.domain.errors import IdempotencyConflict
from switchyard.domain.pdca.requests import (
    Artifact,
    ItemError,
    ItemResult,
    Progress,
    RecheckItem,
    RecheckRequest,
    RunnerInfo,
    RunnerName,
)
from switchyard.ports.pdca import PAGE_MAX, Created, ItemPage, StoredRequest, UnknownStrategies

_CREATE = """
INSERT INTO pdca_requests
    (request_id, client_id, operation, idempotency_key, digest, runner, batch, submitted_at, started_at, finished_at,
    run, body)
VALUES ($1, $2, $3, $4, $5, $6, 0, NULL, NULL, NULL, $7, $8)
ON CONFLICT (client_id, operation, idempotency_key) DO NOTHING RETURNING request_id
"""
_EARLIER = """
SELECT digest, body FROM pdca_requests WHERE client_id = $1 AND operation = $2 AND idempotency_key = $3
"""
_ITEM_COLUMNS = "request_id, number, batch, strategy_id, state, generation, attempts, artifacts"
_ADD_ITEM = f"INSERT INTO pdca_items ({_ITEM_COLUMNS}) VALUES ($1, $2, $3, $4, 'queued', 0, 0, '[]')"
_STORED = """
SELECT body, run, started_at, finished_at,
    (SELECT count(*) FROM pdca_items AS item WHERE item.request_id = request.request_id),
    (SELECT count(*) FROM pdca_items AS item WHERE item.request_id = request.request_id AND state = 'queued'),
    (SELECT count(*) FROM pdca_items AS item WHERE item.request_id = request.request_id AND state = 'running'),
    (SELECT count(*) FROM pdca_items AS item WHERE item.request_id = request.request_id AND state = 'succeeded'),
    (SELECT count(*) FROM pdca_items AS item WHERE item.request_id = request.request_id AND state = 'failed')
FROM pdca_requests AS request
"""
_ITEMS = """
SELECT strategy_id, batch, state, attempts, started_at, finished_at, outcome, artifacts FROM pdca_items
WHERE request_id = $1 ORDER BY number LIMIT CAST($2 AS integer) OFFSET CAST($3 AS bigint)
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
    """ports.pdca.RecheckRequests."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def create(
        self, request: RecheckRequest, key: str, digest: str, strategy_ids: Sequence[str] | None
    ) -> Created:
        """Store the request with its items, or return the earlier one of the key."""
        names = (request.client_id, request.operation, key)
        async with self._engine.writing() as session:
            run = msgspec.json.encode(RunnerInfo()).decode()
            body = msgspec.json.encode(request).decode()
            if not await session.rows(_CREATE, request.request_id, *names, digest, request.runner, run, body):
                [(earlier_digest, earlier)] = await session.rows(_EARLIER, *names)
                if earlier_digest != digest:
                    raise IdempotencyConflict(key)
                return Created(_request.decode(earlier), replayed=True)
            if strategy_ids is None:
                await self._add_selected(session, request)
            else:
                await self._add_named(session, request, strategy_ids)
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

    async def items(self, request_id: str, offset: int, limit: int) -> ItemPage | None:
        """A page of its items."""
        async with self._engine.reading() as session:
            rows = await session.rows(f"{_STORED} WHERE request_id = $1", request_id)
            if not rows:
                return None
            found = await session.rows(_ITEMS, request_id, min(limit, PAGE_MAX), offset)
        return ItemPage(_stored(rows[0]), tuple([_item(row) for row in found]))

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

    async def _add_selected(self, session: Session, request: RecheckRequest) -> None:
        assert request.filter is not None, "a request without strategies has a filter"
        numbered = "row_number() OVER (ORDER BY strategy_id) - 1"
        await session.rows(
            f"INSERT INTO pdca_items ({_ITEM_COLUMNS}) SELECT CAST($3 AS text), {numbered}, "
            f"({numbered}) / CAST($4 AS integer), strategy_id, 'queued', 0, 0, '[]' "
            f"FROM pdca_strategies AS strategy WHERE {selection(request.filter, self._engine.dialect.each)}",
            *selected(request.filter),
            request.request_id,
            request.batch_size,
        )

    async def _add_named(self, session: Session, request: RecheckRequest, strategy_ids: Sequence[str]) -> None:
        rows = await session.rows(
            f"SELECT strategy_id FROM pdca_strategies WHERE strategy_id IN ({self._engine.dialect.each.format('$1')})",
            msgspec.json.encode(strategy_ids).decode(),
        )
        unknown = [strategy for strategy in strategy_ids if strategy not in {row[0] for row in rows}]
        if unknown:
            raise UnknownStrategies(unknown)
        for number, strategy_id in enumerate(strategy_ids):
            await session.rows(_ADD_ITEM, request.request_id, number, number // request.batch_size, strategy_id)


def decoded_request(body: str) -> RecheckRequest:
    """The request of a row."""
    return _request.decode(body)


def _stored(row: Row) -> StoredRequest:
    body, run, started_at, finished_at, total, queued, running, succeeded, failed = row
    return StoredRequest(
        request=_request.decode(body),
        run=_run.decode(run),
        progress=Progress(total=total, queued=queued, running=running, succeeded=succeeded, failed=failed),
        started_at=moment(started_at),
        finished_at=moment(finished_at),
    )


def _item(row: Row) -> RecheckItem:
    strategy_id, batch, state, attempts, started_at, finished_at, outcome, artifacts = row
    return RecheckItem(
        strategy_id=strategy_id,
        batch=batch,
        state=state,
        attempts=attempts,
        started_at=moment(started_at),
        finished_at=moment(finished_at),
        result=_result.decode(outcome) if state == "succeeded" else None,
        error=_error.decode(outcome) if state == "failed" else None,
        artifacts=_artifacts.decode(artifacts),
    )
