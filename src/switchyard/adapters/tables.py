"""Reading and writing rows as structs, numbered schema files, and the rows of relay leases: shared by both engines."""

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib import resources
from typing import Any, NamedTuple, overload

from switchyard.domain.accounts.positions import Position
from switchyard.domain.errors import SchemaMismatch
from switchyard.domain.ids import WorkerId
from switchyard.domain.journal.changes import Cursor, Execution
from switchyard.domain.journal.events import JournalEvent
from switchyard.domain.journal.lines import GENESIS, Place
from switchyard.domain.orders.keys import KeyEntry, KeyResult
from switchyard.domain.orders.order import Order
from switchyard.domain.orders.outbox import OutboxRow
from switchyard.domain.risk.kills import Kill, KillOrder
from switchyard.ports.bus import Lease, LeaseLost

_PLACEHOLDER = re.compile(r"\{(\w+\.\w+)\}")


class Table(NamedTuple):
    """A table that stores one struct per row."""

    name: str
    columns: tuple[str, ...]
    key: tuple[str, ...]
    fixed: tuple[str, ...] = ()
    """Columns outside the key that keep the value of the row's first version."""
    assigned: tuple[str, ...] = ()
    """Columns whose value the append assigns."""

    @property
    def column_list(self) -> str:
        """The columns, as a SELECT or INSERT names them."""
        return ", ".join(self.columns)

    def qualified(self, alias: str) -> str:
        """The columns of the table under an alias."""
        return ", ".join(f"{alias}.{column}" for column in self.columns)

    @property
    def changing(self) -> tuple[str, ...]:
        """The columns that a later version may change."""
        return tuple(column for column in self.columns if column not in self.key + self.fixed)

    def fragments(self) -> dict[str, str]:
        """The texts that a schema program may insert: `{orders.columns}` and so on."""
        return {
            f"{self.name}.columns": self.column_list,
            f"{self.name}.given": ", ".join(column for column in self.columns if column not in self.assigned),
            f"{self.name}.key": ", ".join(self.key),
            f"{self.name}.updates": ", ".join(f"{column} = excluded.{column}" for column in self.changing),
        }


ORDERS = Table(
    "orders",
    Order.__struct_fields__,
    key=("order_id",),
    fixed=(
        "account_id",
        "client_order_id",
        "venue_client_order_id",
        "symbol",
        "side",
        "type",
        "time_in_force",
        "strategy",
        "tags",
        "accepted_at",
        "trace_id",
        "requested_at",
        "operation",
        "idempotency_key",
        "currency",
        "multiplier",
        "expires_at",
        "reduce_only",
        "post_only",
        "display_qty",
        "venue_reduce_only",
    ),
)
OUTBOX_ORDERS = Table(
    "outbox_orders",
    OutboxRow.__struct_fields__,
    key=("order_id", "kind", "number"),
    fixed=("venue_client_order_id", "created_at", "lane", "payload", "traceparent", "seq"),
    assigned=("seq",),
)
IDEMPOTENCY_KEYS = Table(
    "idempotency_keys", KeyEntry.__struct_fields__, key=("account_id", "operation", "idempotency_key")
)
POSITIONS = Table("positions", Position.__struct_fields__, key=("account_id", "symbol"))
EXECUTIONS = Table("executions", Execution.__struct_fields__, key=("venue", "exec_id"))
KEY_RESULTS = Table("idempotency_keys", KeyResult.__struct_fields__, key=IDEMPOTENCY_KEYS.key)
"""The columns of `idempotency_keys` that the end of an order writes; not a table of its own."""
READER_CURSORS = Table("reader_cursors", Cursor.__struct_fields__, key=("name",))
KILLS = Table(
    "kills",
    Kill.__struct_fields__,
    key=("kill_id",),
    fixed=("account_id", "strategy", "venue", "symbol", "mode", "set_by", "set_reason", "set_at", "seq"),
    assigned=("seq",),
)
KILL_ORDERS = Table("kill_orders", KillOrder.__struct_fields__, key=("kill_id", "order_id"))

STATE_TABLES = (
    ORDERS,
    OUTBOX_ORDERS,
    IDEMPOTENCY_KEYS,
    POSITIONS,
    EXECUTIONS,
    READER_CURSORS,
    KILLS,
    KILL_ORDERS,
)
"""The tables derived from the journal's events; each row of them is one struct."""

EVENT_COLUMNS = ", ".join(JournalEvent.__struct_fields__)
"""The columns of the view `journal` that make a `JournalEvent`; it also has the epoch, and the shard on PostgreSQL."""


def fragments(tables: Iterable[Table]) -> dict[str, str]:
    """The fragments of several tables, for `expanded`."""
    return {name: text for table in tables for name, text in table.fragments().items()}


def expanded(sql: str, texts: Mapping[str, str]) -> str:
    """The SQL with each `{table.fragment}` replaced; raises KeyError for a fragment that does not exist."""
    return _PLACEHOLDER.sub(lambda placeholder: texts[placeholder[1]], sql)


@overload
def moment(value: datetime | str) -> datetime: ...
@overload
def moment(value: None) -> None: ...
def moment(value: datetime | str | None) -> datetime | None:
    """A time as an engine returns it, in UTC."""
    if isinstance(value, str):
        return datetime.fromisoformat(value)
    return None if value is None else value.astimezone(UTC)


_COLUMNS = "topic, topic_id, epoch, seq, hash, owner, generation, beat"

_FIND = f"SELECT {_COLUMNS} FROM relays WHERE topic = $1"
# A claim that read no lease has generation 0, which no row has.
_CLAIM = f"""
INSERT INTO relays ({_COLUMNS}) VALUES ($1, '', 1, 0, '{GENESIS}', $2, 1, 0)
ON CONFLICT (topic) DO UPDATE SET owner = excluded.owner, generation = relays.generation + 1, beat = 0
WHERE relays.generation = $3 AND relays.beat = $4
RETURNING {_COLUMNS}
"""
_RENEW = f"""
UPDATE relays SET topic_id = $3, epoch = $4, seq = $5, hash = $6, beat = beat + 1
WHERE topic = $1 AND generation = $2
RETURNING {_COLUMNS}
"""


class SqlRelayLeases(ABC):
    """ports.bus.RelayLeases."""

    async def lease(self, topic: str) -> Lease | None:
        """The lease of a topic."""
        found = await self._read(_FIND, topic)
        return _lease(found[0]) if found else None

    async def claim(self, topic: str, owner: WorkerId, read: Lease | None) -> Lease | None:
        """Become the owner if the lease is still the one that was read."""
        generation, beat = (0, 0) if read is None else (read.generation, read.beat)
        claimed = await self._write(_CLAIM, topic, owner, generation, beat)
        return _lease(claimed[0]) if claimed else None

    async def renew(self, held: Lease, topic_id: str, place: Place) -> Lease:
        """Store the place and raise the beat."""
        values = (held.topic, held.generation, topic_id, place.epoch, place.seq, place.hash)
        renewed = await self._write(_RENEW, *values)
        if not renewed:
            raise LeaseLost(f"another relay publishes to {held.topic} now")
        return _lease(renewed[0])

    @abstractmethod
    async def _read(self, sql: str, *values: Any) -> Sequence[Sequence[Any]]:
        """Run a query."""

    @abstractmethod
    async def _write(self, sql: str, *values: Any) -> Sequence[Sequence[Any]]:
        """Run a statement that is durable when this returns."""


def _lease(row: Sequence[Any]) -> Lease:
    topic, topic_id, epoch, seq, digest, owner, generation, beat = row
    return Lease(
        topic=topic,
        topic_id=topic_id,
        place=Place(epoch, seq, digest),
        owner=WorkerId(owner),
        generation=generation,
        beat=beat,
    )


class SchemaFile(NamedTuple):
    """One step of the schema's history; a released step is never edited."""

    number: int
    name: str
    sql: str


def schema_files(package: str) -> list[SchemaFile]:
    """The package's `schema/NNNN_*.sql`, in order."""
    files = [SchemaFile(int(name[:4]), name, sql) for name, sql in _sql_files(package, "schema")]
    assert [file.number for file in files] == list(range(1, len(files) + 1)), f"schema files of {package} have a gap"
    return files


def programs(package: str, fragments: Mapping[str, str]) -> list[str]:
    """The package's `schema/programs/*.sql` (functions, triggers, views), with their column lists inserted.

    An upgrade runs them after its steps, so a changed program needs a new step, even an empty one. Each program
    replaces its former version; a step that changes the parameters of a PostgreSQL function also drops the old one.
    """
    return [expanded(sql, fragments) for _, sql in _sql_files(package, "schema/programs")]


def _sql_files(package: str, folder: str) -> list[tuple[str, str]]:
    entries = (resources.files(package) / folder).iterdir()
    return sorted((entry.name, entry.read_text("utf-8")) for entry in entries if entry.name.endswith(".sql"))


def check_version(found: int, needed: int) -> None:
    """Raise SchemaMismatch unless the database has exactly the schema version that this code needs."""
    if found < needed:
        raise SchemaMismatch(
            f"the database schema has version {found}, this Switchyard needs {needed}: run `switchyard db upgrade`"
        )
    if found > needed:
        raise SchemaMismatch(
            f"the database schema has version {found}, newer than version {needed} of this Switchyard: "
            "run a newer Switchyard"
        )
