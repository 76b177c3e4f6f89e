"""The items of rechecks as work, in SQL, the same on both engines: claimed with a lease, ended once by their fence."""

import hashlib
import re
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from switchyard.adapters.pdca.requests import decoded_request, enqueue_batch
from switchyard.adapters.pdca.session import Engine, Session
from switchyard.adapters.pdca.strategies import find_strategy, of_tenants, set_strategy, tenant_list
from switchyard.adapters.tables import moment
from switchyard.domain.strategies.registry import Strategy, StrategyKey, Tenants
from switchyard.domain.strategies.requests import (
    ARTIFACT_BYTES_MAX,
    ARTIFACTS_PER_ITEM_MAX,
    ATTEMPTS_MAX,
    RESULT_BYTES_MAX,
    Artifact,
    Fence,
    ItemError,
    ItemResult,
    RecheckRequest,
    Tally,
)
from switchyard.ports.strategies import Claimed, LostFence, NewArtifact, StoredArtifact

MEDIA_TYPE_LENGTH_MAX = 100
ARTIFACT_NAME = re.compile(r"[a-z0-9._-]{1,64}")
_EXHAUSTED = ItemError(
    code="ATTEMPTS_EXHAUSTED", message=f"{ATTEMPTS_MAX} workers in turn took it and ended without a result"
)
_DELETED = ItemError(code="STRATEGY_DELETED", message="the strategy was deleted before it was rechecked")

_COLUMNS = """
item.request_id, item.number, item.tenant, item.strategy_id, item.strategy_created_at, item.generation, item.attempts,
request.body
"""
_CLAIMABLE = f"""
SELECT {_COLUMNS} FROM pdca_items AS item JOIN pdca_requests AS request ON request.request_id = item.request_id
WHERE item.queue_position IS NOT NULL AND (item.state = 'queued' OR item.lease_until <= $1)
ORDER BY item.queue_position, item.request_id, item.number LIMIT CAST($2 AS integer)
"""
_CLAIMABLE_OF_REQUEST = f"""
SELECT {_COLUMNS} FROM pdca_requests AS request JOIN pdca_items AS item
    ON item.request_id = request.request_id AND item.batch = request.batch AND item.state IN ('queued', 'running')
WHERE request.request_id = $3 AND (item.state = 'queued' OR item.lease_until <= $1)
ORDER BY item.number LIMIT CAST($2 AS integer)
"""
_CLAIM = """
UPDATE pdca_items SET state = 'running', generation = generation + 1, attempts = attempts + 1, worker = $3,
    lease_until = $4, started_at = COALESCE(started_at, $5)
WHERE request_id = $1 AND number = $2
"""
_BEGIN = "UPDATE pdca_requests SET started_at = $2 WHERE request_id = $1 AND started_at IS NULL"
_RENEW = """
UPDATE pdca_items SET lease_until = $5
WHERE request_id = $1 AND tenant = $2 AND strategy_id = $3 AND generation = $4 AND state = 'running' RETURNING number
"""
_RELEASE = """
UPDATE pdca_items SET state = 'queued', attempts = attempts - 1, worker = NULL, lease_until = NULL
WHERE request_id = $1 AND tenant = $2 AND strategy_id = $3 AND generation = $4 AND state = 'running' RETURNING number
"""
_FINISH = """
UPDATE pdca_items SET state = $5, finished_at = $6, outcome = $7, artifacts = $8, lease_until = NULL,
    queue_position = NULL
WHERE request_id = $1 AND tenant = $2 AND strategy_id = $3 AND generation = $4 AND state = 'running'
RETURNING strategy_created_at
"""
_FAIL_ALL = """
UPDATE pdca_items SET state = 'failed', finished_at = $2, outcome = $3, lease_until = NULL, queue_position = NULL
WHERE request_id = $1 AND state IN ('queued', 'running') RETURNING number
"""
_ADD_ARTIFACT = """
INSERT INTO pdca_artifacts (request_id, tenant, strategy_id, name, media_type, sha256, content)
VALUES ($1, $2, $3, $4, $5, $6, $7)
"""
_ARTIFACTS = """
SELECT tenant, media_type, sha256, content FROM pdca_artifacts
WHERE request_id = $1 AND strategy_id = $2 AND name = $3 AND {condition} ORDER BY tenant LIMIT CAST($5 AS integer)
"""
_COUNT = "UPDATE pdca_tally SET items = items + CAST($2 AS bigint) WHERE outcome = $1"
_END = "UPDATE pdca_requests SET finished_at = $2 WHERE request_id = $1 AND finished_at IS NULL"
_BEGIN_BATCH = "UPDATE pdca_requests SET batch = $2 WHERE request_id = $1 AND batch <> $2 RETURNING batch"
_NEXT_BATCH = """
SELECT min(batch) FROM pdca_items WHERE request_id = $1 AND state IN ('queued', 'running')
"""


class SqlQueue:
    """ports.strategies.RecheckQueue."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def claim_items(
        self,
        worker: str,
        limit: int,
        *,
        now: datetime,
        lease: timedelta,
        request_id: str | None = None,
    ) -> list[Claimed]:
        """Claim items whose turn it is."""
        sql, of = (_CLAIMABLE, ()) if request_id is None else (_CLAIMABLE_OF_REQUEST, (request_id,))
        claimed = []
        given_up: list[tuple[Fence, ItemError]] = []
        async with self._engine.writing() as session:
            rows = await session.rows(sql + self._engine.dialect.skip_locked, now, limit, *of)
            for found, number, tenant, strategy_id, created_at, generation, attempts, body in rows:
                key = StrategyKey(tenant, strategy_id)
                strategy = await _strategy_of_item(session, key, created_at)
                if attempts >= ATTEMPTS_MAX:
                    given_up.append((Fence(found, key, generation), _EXHAUSTED))
                    continue
                await session.rows(_CLAIM, found, number, worker, now + lease, now)
                await session.rows(_BEGIN, found, now)
                if strategy is None:
                    given_up.append((Fence(found, key, generation + 1), _DELETED))
                    continue
                claimed.append(
                    Claimed(
                        fence=Fence(found, key, generation + 1),
                        request=decoded_request(body),
                        strategy=strategy,
                        attempts=attempts + 1,
                        lease_until=now + lease,
                    )
                )
        for fence, error in given_up:
            await self._give_up(fence, error, now)
        return claimed

    async def renew(self, fence: Fence, lease_until: datetime) -> None:
        """Extend the lease."""
        async with self._engine.writing() as session:
            _held(await session.rows(_RENEW, *_names(fence), lease_until))

    async def release(self, fence: Fence) -> None:
        """Give the item back."""
        async with self._engine.writing() as session:
            _held(await session.rows(_RELEASE, *_names(fence)))

    async def finish_item(
        self, fence: Fence, outcome: ItemResult | ItemError, now: datetime, artifacts: Sequence[NewArtifact] = ()
    ) -> None:
        """End the item, store its artifacts and the health of its strategy."""
        text = msgspec.json.encode(outcome).decode()
        _check_bounds(text, artifacts)
        described = [_described(artifact) for artifact in artifacts]
        state = "succeeded" if isinstance(outcome, ItemResult) else "failed"
        async with self._engine.writing() as session:
            request = await self._locked(session, fence.request_id)
            shown = msgspec.json.encode(described).decode()
            ended = await session.rows(_FINISH, *_names(fence), state, now, text, shown)
            _held(ended)
            for artifact, made in zip(described, artifacts, strict=True):
                names = (*_names(fence)[:3], artifact.name, artifact.media_type, artifact.sha256)
                await session.rows(_ADD_ARTIFACT, *names, made.content)
            if isinstance(outcome, ItemResult) and not request.dry_run:
                strategy = await _strategy_of_item(session, fence.key, ended[0][0], self._engine.dialect.lock)
                if strategy is not None and _is_newer(request, strategy):
                    await set_strategy(session, _judged(strategy, request, outcome, now))
            await self._advance(session, request, now)
            await session.rows(_COUNT, state, 1)  # last: others wait for this row until the commit

    async def fail_items(self, request_id: str, error: ItemError, now: datetime) -> int:
        """End all unfinished items."""
        async with self._engine.writing() as session:
            request = await self._locked(session, request_id)
            failed = await session.rows(_FAIL_ALL, request_id, now, msgspec.json.encode(error).decode())
            await self._advance(session, request, now)
            await session.rows(_COUNT, "failed", len(failed))
        return len(failed)

    async def tally(self) -> Tally:
        """How many items have ever ended."""
        async with self._engine.reading() as session:
            rows = await session.rows("SELECT outcome, items FROM pdca_tally")
        counts = {row[0]: row[1] for row in rows}
        return Tally(succeeded=counts["succeeded"], failed=counts["failed"])

    async def artifacts(
        self, request_id: str, strategy_id: str, name: str, tenants: Tenants, limit: int
    ) -> list[StoredArtifact]:
        """The artifacts of this name with their content."""
        sql = _ARTIFACTS.format(condition=of_tenants(tenants, self._engine.dialect.each, 4))
        async with self._engine.reading() as session:
            rows = await session.rows(sql, request_id, strategy_id, name, tenant_list(tenants), limit)
        return [
            StoredArtifact(
                tenant=tenant,
                artifact=Artifact(name=name, media_type=media_type, size=len(content), sha256=sha256),
                content=content,
            )
            for tenant, media_type, sha256, content in rows
        ]

    async def _give_up(self, fence: Fence, error: ItemError, now: datetime) -> None:
        """End an item that no worker is to take; unless its last worker is faster."""
        try:
            await self.finish_item(fence, error, now)
        except LostFence:
            return

    async def _locked(self, session: Session, request_id: str) -> RecheckRequest:
        """The request, which no other transaction ends an item of at the same time."""
        lock = self._engine.dialect.lock
        rows = await session.rows(f"SELECT body FROM pdca_requests WHERE request_id = $1 {lock}", request_id)
        if not rows:
            raise LostFence(f"there is no request {request_id}")
        return decoded_request(rows[0][0])

    async def _advance(self, session: Session, request: RecheckRequest, now: datetime) -> None:
        """Begin the next batch when the current one has ended, or end the request."""
        [(batch,)] = await session.rows(_NEXT_BATCH, request.request_id)
        if batch is None:
            await session.rows(_END, request.request_id, now)
        elif await session.rows(_BEGIN_BATCH, request.request_id, batch):
            await enqueue_batch(session, self._engine.dialect, request, batch)


async def _strategy_of_item(
    session: Session, key: StrategyKey, created_at: datetime | str, lock: str = ""
) -> Strategy | None:
    """The strategy that the item is for; None if it was deleted, also if one of its name was registered since."""
    strategy = await find_strategy(session, key, lock)
    return strategy if strategy is not None and strategy.created_at == moment(created_at) else None


def _judged(strategy: Strategy, request: RecheckRequest, result: ItemResult, now: datetime) -> Strategy:
    return msgspec.structs.replace(
        strategy,
        health=result.health,
        health_reasons=result.health_reasons,
        metrics=result.metrics,
        last_checked_at=now,
        last_request_id=request.request_id,
        last_requested_at=request.created_at,
    )


def _is_newer(request: RecheckRequest, strategy: Strategy) -> bool:
    """Whether the strategy has no findings of a request that was accepted later."""
    if strategy.last_requested_at is None or strategy.last_request_id is None:
        return True
    return (request.created_at, request.request_id) >= (strategy.last_requested_at, strategy.last_request_id)


def _names(fence: Fence) -> tuple[str, str, str, int]:
    return fence.request_id, fence.key.tenant, fence.key.strategy_id, fence.generation


def _held(changed: Sequence[object]) -> None:
    if not changed:
        raise LostFence("the item has ended, or another worker has claimed it")


def _described(artifact: NewArtifact) -> Artifact:
    return Artifact(
        name=artifact.name,
        media_type=artifact.media_type,
        size=len(artifact.content),
        sha256=hashlib.sha256(artifact.content).hexdigest(),
    )


def _check_bounds(outcome: str, artifacts: Sequence[NewArtifact]) -> None:
    if len(outcome.encode()) > RESULT_BYTES_MAX:
        raise ValueError(f"a result has at most {RESULT_BYTES_MAX} bytes of JSON, got {len(outcome.encode())}")
    if len(artifacts) > ARTIFACTS_PER_ITEM_MAX:
        raise ValueError(f"an item has at most {ARTIFACTS_PER_ITEM_MAX} artifacts, got {len(artifacts)}")
    for artifact in artifacts:
        if not ARTIFACT_NAME.fullmatch(artifact.name):
            raise ValueError(f"the name of an artifact must match {ARTIFACT_NAME.pattern}, got {artifact.name!r}")
        if len(artifact.media_type) > MEDIA_TYPE_LENGTH_MAX:
            raise ValueError(f"the media type of {artifact.name} has at most {MEDIA_TYPE_LENGTH_MAX} characters")
        if len(artifact.content) > ARTIFACT_BYTES_MAX:
            raise ValueError(
                f"{artifact.name} has {len(artifact.content)} bytes, an artifact has at most {ARTIFACT_BYTES_MAX}"
            )
