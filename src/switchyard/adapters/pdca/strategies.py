"""The registry of strategies in SQL, the same on both engines."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import msgspec

from switchyard.adapters.pdca.session import Engine, Session
from switchyard.domain.errors import HistoryMismatch
from switchyard.domain.journal.lines import Place
from switchyard.domain.strategies.registry import (
    HEALTHS,
    STRATEGIES_MAX,
    Strategy,
    StrategyBody,
    StrategyKey,
    Tenant,
    Tenants,
)
from switchyard.domain.strategies.requests import Filter
from switchyard.ports.strategies import PAGE_MAX, Registered, SortField, StrategyPage, StrategyQuery, TooManyStrategies

_COLUMNS: dict[SortField, str] = {
    "id": "strategy_id",
    "owner": "owner",
    "health": "health_rank",
    "last_checked_at": "last_checked_at",
    "created_at": "created_at",
    "updated_at": "updated_at",
}
_ADD = """
INSERT INTO pdca_strategies
    (tenant, strategy_id, registered, owner, health, health_rank, last_checked_at, created_at, updated_at, search, body)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11) ON CONFLICT (strategy_id, tenant) DO NOTHING RETURNING strategy_id
"""
_SET = """
UPDATE pdca_strategies SET registered = $3, owner = $4, health = $5, health_rank = $6, last_checked_at = $7,
    created_at = $8, updated_at = $9, search = $10, body = $11
WHERE tenant = $1 AND strategy_id = $2
"""
# Of those that only orders have named, first the ones that were never rechecked, and of these the oldest.
_DISPLACED = """
SELECT strategy_id FROM pdca_strategies WHERE tenant = $1 AND NOT registered AND strategy_id <> $2
ORDER BY last_checked_at ASC NULLS FIRST, created_at, strategy_id LIMIT 1
"""
_DELETE = "DELETE FROM pdca_strategies WHERE tenant = $1 AND strategy_id = $2 RETURNING strategy_id"
_strategy = msgspec.json.Decoder(Strategy)


class SqlStrategies:
    """ports.strategies.StrategyRegistry."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def strategy(self, key: StrategyKey) -> Strategy | None:
        """The strategy."""
        async with self._engine.reading() as session:
            return await find_strategy(session, key)

    async def named(self, strategy_id: str, tenants: Tenants, limit: int) -> list[Strategy]:
        """The strategies of this name."""
        sql = f"""
        SELECT body FROM pdca_strategies WHERE strategy_id = $1 AND {of_tenants(tenants, self._engine.dialect.each, 2)}
        ORDER BY tenant LIMIT CAST($3 AS integer)
        """
        async with self._engine.reading() as session:
            rows = await session.rows(sql, strategy_id, tenant_list(tenants), limit)
        return [_strategy.decode(row[0]) for row in rows]

    async def strategies(self, query: StrategyQuery) -> StrategyPage:
        """A page of strategies and the total, in one statement."""
        direction = "DESC NULLS LAST" if query.descending else "ASC NULLS FIRST"
        order = f"ORDER BY {{0}}{_COLUMNS[query.sort]} {direction}, {{0}}strategy_id, {{0}}tenant"
        condition = selection(query.filter, query.tenants, self._engine.dialect.each)
        sql = f"""
        WITH found AS (SELECT * FROM pdca_strategies AS strategy WHERE {condition} AND search LIKE $4 ESCAPE '\\')
        SELECT counted.total, page.body FROM (SELECT count(*) AS total FROM found) AS counted
        LEFT JOIN (
            SELECT * FROM found {order.format("")} LIMIT CAST($5 AS integer) OFFSET CAST($6 AS bigint)
        ) AS page ON 1 = 1
        {order.format("page.")}
        """
        async with self._engine.reading() as session:
            rows = await session.rows(
                sql,
                *selected(query.filter, query.tenants),
                _pattern(query.text),
                min(query.limit, PAGE_MAX),
                query.offset,
            )
        return StrategyPage(
            tuple([_strategy.decode(row[1]) for row in rows if row[1] is not None]),
            rows[0][0],
        )

    async def put_strategy(self, key: StrategyKey, body: StrategyBody, now: datetime) -> tuple[Strategy, bool]:
        """Register a strategy, or replace what was decided about it."""
        stated = {name: getattr(body, name) for name in StrategyBody.__struct_fields__}
        async with self._engine.writing() as session:
            await self._lock_registry(session)
            new = Strategy(**_names(key), registered=True, created_at=now, updated_at=now, **stated)
            is_new = await _add(session, new)
            if is_new:
                await _make_room(session, key)
            else:
                old = await find_strategy(session, key, self._engine.dialect.lock)
                assert old is not None, "strategies are added and deleted under the lock of the registry"
                new = msgspec.structs.replace(old, registered=True, updated_at=now, **stated)
                await set_strategy(session, new)
            await session.rows(
                "DELETE FROM pdca_strategy_tags WHERE tenant = $1 AND strategy_id = $2", key.tenant, key.strategy_id
            )
            for tag in new.tags:
                await session.rows(
                    "INSERT INTO pdca_strategy_tags (tenant, strategy_id, tag) VALUES ($1, $2, $3)",
                    key.tenant,
                    key.strategy_id,
                    tag,
                )
        return new, is_new

    async def delete_strategy(self, key: StrategyKey) -> bool:
        """Remove a strategy, its tags with it."""
        async with self._engine.writing() as session:
            await self._lock_registry(session)
            return bool(await session.rows(_DELETE, key.tenant, key.strategy_id))

    async def place(self) -> Place:
        """The last event that was looked through."""
        async with self._engine.reading() as session:
            return await _place(session)

    async def register(self, after: Place, place: Place, keys: Sequence[StrategyKey], now: datetime) -> Registered:
        """Add the strategies that are missing and move the place."""
        new: list[StrategyKey] = []
        left_out: list[StrategyKey] = []
        async with self._engine.writing() as session:
            stored = await _place(session, self._engine.dialect.lock)
            if stored != after:
                raise HistoryMismatch(
                    f"the registry is at event {stored.seq}, not at {after.seq}: another one followed"
                )
            counts: dict[Tenant, int] = {}  # no other transaction changes them: it would need the lock of the place
            for key in keys:
                if await find_strategy(session, key) is not None:
                    continue
                if key.tenant not in counts:
                    counts[key.tenant] = await _count(session, key.tenant)
                if counts[key.tenant] >= STRATEGIES_MAX:
                    left_out.append(key)
                elif await _add(session, Strategy(**_names(key), created_at=now, updated_at=now)):
                    counts[key.tenant] += 1
                    new.append(key)
            await session.rows(
                "UPDATE pdca_place SET epoch = $1, seq = $2, hash = $3", place.epoch, place.seq, place.hash
            )
        return Registered(tuple(new), tuple(left_out))

    async def _lock_registry(self, session: Session) -> None:
        """Wait for other transactions that add or delete strategies: their numbers are bounded."""
        await _place(session, self._engine.dialect.lock)


async def find_strategy(session: Session, key: StrategyKey, lock: str = "") -> Strategy | None:
    """The strategy; None if there is no such."""
    rows = await session.rows(
        f"SELECT body FROM pdca_strategies WHERE tenant = $1 AND strategy_id = $2 {lock}", key.tenant, key.strategy_id
    )
    return _strategy.decode(rows[0][0]) if rows else None


async def set_strategy(session: Session, strategy: Strategy) -> None:
    """Replace the row of a strategy; its tags stay."""
    await session.rows(_SET, *_columns(strategy))


def of_tenants(tenants: Tenants, each: str, number: int) -> str:
    """The condition on the column `tenant`; its value is the parameter of this number."""
    if tenants is None:
        return f"CAST(${number} AS text) = '[]'"
    return f"tenant IN ({each.format(f'${number}')})"


def tenant_list(tenants: Tenants) -> str:
    """The parameter of `of_tenants`."""
    return msgspec.json.encode(sorted(tenants or ())).decode()


def selection(wanted: Filter, tenants: Tenants, each: str) -> str:
    """The condition of a filter on `pdca_strategies AS strategy`; its values are the parameters 1 to 3."""
    health, tags = "CAST($1 AS text) = '[]'", "CAST($2 AS text) = '[]'"
    if wanted.health:
        health = f"health IN ({each.format('$1')})"
    if wanted.tags_any:
        tags = (
            "EXISTS (SELECT 1 FROM pdca_strategy_tags AS tagged WHERE tagged.strategy_id = strategy.strategy_id "
            f"AND tagged.tenant = strategy.tenant AND tagged.tag IN ({each.format('$2')}))"
        )
    return f"{health} AND {tags} AND {of_tenants(tenants, each, 3)}"


def selected(wanted: Filter, tenants: Tenants) -> tuple[str, str, str]:
    """The parameters 1 to 3 of `selection`."""
    return (
        msgspec.json.encode(wanted.health).decode(),
        msgspec.json.encode(wanted.tags_any).decode(),
        tenant_list(tenants),
    )


async def _add(session: Session, strategy: Strategy) -> bool:
    return bool(await session.rows(_ADD, *_columns(strategy)))


async def _count(session: Session, tenant: Tenant) -> int:
    [(count,)] = await session.rows("SELECT count(*) FROM pdca_strategies WHERE tenant = $1", tenant)
    return int(count)


async def _make_room(session: Session, added: StrategyKey) -> None:
    """Remove a strategy that only orders have named if the new one puts its tenant above the bound."""
    if await _count(session, added.tenant) <= STRATEGIES_MAX:
        return
    displaced = await session.rows(_DISPLACED, added.tenant, added.strategy_id)
    if not displaced:
        raise TooManyStrategies(f"{STRATEGIES_MAX} strategies are registered, the maximum: delete one")
    await session.rows(_DELETE, added.tenant, displaced[0][0])


async def _place(session: Session, lock: str = "") -> Place:
    [(epoch, seq, digest)] = await session.rows(f"SELECT epoch, seq, hash FROM pdca_place {lock}")
    return Place(epoch, seq, digest)


def _names(key: StrategyKey) -> dict[str, Any]:
    return {"tenant": key.tenant, "strategy_id": key.strategy_id}


def _columns(strategy: Strategy) -> tuple[object, ...]:
    return (
        strategy.tenant,
        strategy.strategy_id,
        strategy.registered,
        strategy.owner,
        strategy.health,
        HEALTHS.index(strategy.health),
        strategy.last_checked_at,
        strategy.created_at,
        strategy.updated_at,
        # Folded here and not in SQL: the engines fold differently.
        f"{strategy.strategy_id}\n{strategy.owner or ''}".casefold(),
        msgspec.json.encode(strategy).decode(),
    )


def _pattern(text: str) -> str:
    """The LIKE pattern of a part of a text, with the wildcards in it escaped."""
    escaped = text.casefold().replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
    return f"%{escaped}%"
