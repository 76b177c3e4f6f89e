"""The registry of strategies in SQL, the same on both engines."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from switchyard.adapters.pdca.session import Engine, Session
from switchyard.domain.bus import Place
from switchyard.domain.errors import HistoryMismatch
from switchyard.domain.pdca.requests import Filter
from switchyard.domain.pdca.strategies import HEALTHS, STRATEGIES_MAX, Strategy, StrategyBody
from switchyard.ports.pdca import (
    PAGE_MAX,
    Registered,
    SortField,
    StrategyPage,
    StrategyQuery,
    TooManyStrategies,
)

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
    (strategy_id, owner, health, health_rank, last_checked_at, created_at, updated_at, search, body)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (strategy_id) DO NOTHING RETURNING strategy_id
"""
_SET = """
UPDATE pdca_strategies SET owner = $2, health = $3, health_rank = $4, last_checked_at = $5, created_at = $6,
    updated_at = $7, search = $8, body = $9
WHERE strategy_id = $1
"""
_strategy = msgspec.json.Decoder(Strategy)


class SqlStrategies:
    """ports.pdca.StrategyRegistry."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def strategy(self, strategy_id: str) -> Strategy | None:
        """The strategy."""
        async with self._engine.reading() as session:
            return await find_strategy(session, strategy_id)

    async def strategies(self, query: StrategyQuery) -> StrategyPage:
        """A page of strategies and the total, in one statement."""
        direction = "DESC NULLS LAST" if query.descending else "ASC NULLS FIRST"
        order = f"ORDER BY {_COLUMNS[query.sort]} {direction}, strategy_id"
        condition = selection(query.filter, self._engine.dialect.each)
        sql = f"""
        WITH found AS (SELECT * FROM pdca_strategies AS strategy WHERE {condition} AND search LIKE $3 ESCAPE '\\')
        SELECT counted.total, page.body FROM (SELECT count(*) AS total FROM found) AS counted
        LEFT JOIN (SELECT * FROM found {order} LIMIT CAST($4 AS integer) OFFSET CAST($5 AS bigint)) AS page ON 1 = 1
        {order.replace("ORDER BY ", "ORDER BY page.").replace(", strategy_id", ", page.strategy_id")}
        """
        async with self._engine.reading() as session:
            rows = await session.rows(
                sql,
                *selected(query.filter),
                _pattern(query.text),
                min(query.limit, PAGE_MAX),
                query.offset,
            )
        return StrategyPage(
            tuple([_strategy.decode(row[1]) for row in rows if row[1] is not None]),
            rows[0][0],
        )

    async def put_strategy(self, strategy_id: str, body: StrategyBody, now: datetime) -> tuple[Strategy, bool]:
        """Set what people decide about a strategy."""
        stated = {name: getattr(body, name) for name in StrategyBody.__struct_fields__}
        async with self._engine.writing() as session:
            new = Strategy(strategy_id=strategy_id, created_at=now, updated_at=now, **stated)
            is_new = await _add(session, new)
            if is_new:
                if await _count(session) > STRATEGIES_MAX:
                    raise TooManyStrategies(f"the registry has {STRATEGIES_MAX} strategies, the maximum")
            else:
                old = await find_strategy(session, strategy_id, self._engine.dialect.lock)
                assert old is not None, "no statement removes a strategy"
                new = msgspec.structs.replace(old, updated_at=now, **stated)
                await set_strategy(session, new)
            await session.rows("DELETE FROM pdca_strategy_tags WHERE strategy_id = $1", strategy_id)
            for tag in new.tags:
                await session.rows(
                    "INSERT INTO pdca_strategy_tags (strategy_id, tag) VALUES ($1, $2)", strategy_id, tag
                )
        return new, is_new

    async def place(self) -> Place:
        """The last event that was looked through."""
        async with self._engine.reading() as session:
            return await _place(session)

    async def register(self, after: Place, place: Place, strategy_ids: Sequence[str], now: datetime) -> Registered:
        """Add the strategies that are missing and move the place."""
        new: list[str] = []
        left_out = 0
        async with self._engine.writing() as session:
            stored = await _place(session, self._engine.dialect.lock)
            if stored != after:
                raise HistoryMismatch(
                    f"the registry is at event {stored.seq}, not at {after.seq}: another one followed"
                )
            known = await _count(session)
            for strategy_id in strategy_ids:
                if await find_strategy(session, strategy_id) is not None:
                    continue
                if known + len(new) >= STRATEGIES_MAX:
                    left_out += 1
                elif await _add(session, Strategy(strategy_id=strategy_id, created_at=now, updated_at=now)):
                    new.append(strategy_id)
            await session.rows(
                "UPDATE pdca_place SET epoch = $1, seq = $2, hash = $3", place.epoch, place.seq, place.hash
            )
        return Registered(tuple(new), left_out)


async def find_strategy(session: Session, strategy_id: str, lock: str = "") -> Strategy | None:
    """The strategy; none if there is no such."""
    rows = await session.rows(f"SELECT body FROM pdca_strategies WHERE strategy_id = $1 {lock}", strategy_id)
    return _strategy.decode(rows[0][0]) if rows else None


async def set_strategy(session: Session, strategy: Strategy) -> None:
    """Replace the row of a strategy; its tags stay."""
    await session.rows(_SET, *_columns(strategy))


def selection(wanted: Filter, each: str) -> str:
    """The condition of a filter on `pdca_strategies AS strategy`; its values are the parameters 1 and 2."""
    health, tags = "CAST($1 AS text) = '[]'", "CAST($2 AS text) = '[]'"
    if wanted.health:
        health = f"health IN ({each.format('$1')})"
    if wanted.tags_any:
        tags = (
            "EXISTS (SELECT 1 FROM pdca_strategy_tags AS tagged WHERE tagged.strategy_id = strategy.strategy_id "
            f"AND tagged.tag IN ({each.format('$2')}))"
        )
    return f"{health} AND {tags}"


def selected(wanted: Filter) -> tuple[str, str]:
    """The parameters 1 and 2 of `selection`."""
    return msgspec.json.encode(wanted.health).decode(), msgspec.json.encode(wanted.tags_any).decode()


async def _add(session: Session, strategy: Strategy) -> bool:
    return bool(await session.rows(_ADD, *_columns(strategy)))


async def _count(session: Session) -> int:
    [(count,)] = await session.rows("SELECT count(*) FROM pdca_strategies")
    return int(count)


async def _place(session: Session, lock: str = "") -> Place:
    [(epoch, seq, digest)] = await session.rows(f"SELECT epoch, seq, hash FROM pdca_place {lock}")
    return Place(epoch, seq, digest)


def _columns(strategy: Strategy) -> tuple[object, ...]:
    return (
        strategy.strategy_id,
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
