"""The readers of the journal in a process: streams, audit file, head, lease, and the relay to Kafka."""

import os
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack

import structlog

from switchyard.adapters.files.durable import lock_beside
from switchyard.bootstrap.core import Core
from switchyard.bootstrap.databases import audit_files, database_place, head_files
from switchyard.domain.errors import AlreadyRunning
from switchyard.domain.ids import WorkerId
from switchyard.flow.bus.relay import HeldLease, PreviousEvents, Relay, RelaySource
from switchyard.flow.readers.audit import AuditWriter
from switchyard.flow.readers.head import HeadKeeper, InstallationLease
from switchyard.flow.readers.stream import StreamHub
from switchyard.flow.traced import EventTraces
from switchyard.ports.clock import fresh_ulid
from switchyard.settings import bus_keys, journal_key

log = structlog.get_logger()


async def start_lease(core: Core, stack: AsyncExitStack) -> None:
    """Keep a copy of this database from starting beside it, where both have the same state folder or Redis."""
    settings, installation = core.settings, core.installation.id
    if settings.database_url is None:
        try:
            lock = lock_beside(settings.state_dir / f"writer-{installation}")
        except OSError as error:
            log.warning("lease_not_taken", lease=str(settings.state_dir), error=str(error))
        else:
            if lock is None:
                raise AlreadyRunning(
                    f"another process runs this installation ({installation}) on another data folder: one is a copy "
                    "of the other, and two copies execute orders twice. Stop the other process; to try a copy out, "
                    "give it another SWITCHYARD_STATE_DIR and no way to the venues"
                )
            stack.callback(os.close, lock)
    if settings.idempotency.cache.redis_url is not None:
        from switchyard.adapters.redis.installation import RedisLease  # loading the client takes long

        client = RedisLease(settings.idempotency.cache.redis_url, installation)
        stack.callback(client.close)
        holder = await core.database.identity()
        core.lease = InstallationLease(client, holder, clock=core.clock, metrics=core.metrics)
        await core.lease.open()
        core.supervisor.start(stack, "lease", core.lease.run)


async def start_head(core: Core, stack: AsyncExitStack) -> None:
    """Check the journal against all copies of its head, then keep them."""
    keeper = HeadKeeper(
        head_files(core.settings, core.installation.id),
        installation=core.installation.id,
        database=database_place(core.settings),
        key=journal_key(core.settings),
        journal=core.database.journal,
        clock=core.clock,
        metrics=core.metrics,
    )
    await keeper.open()
    stack.push_async_callback(keeper.close)
    await keeper.run_once()  # before the first send
    core.supervisor.start(stack, "head", keeper.run)


async def start_audit(core: Core, stack: AsyncExitStack) -> Callable[[], int | None]:
    """Check the journal against the audit file, then write the file; returns a look at its last event."""
    path = core.settings.audit_path
    audit = AuditWriter(
        *audit_files(path),
        key=journal_key(core.settings),
        journal=core.database.journal,
        commit=core.sequencer.commit,
        clock=core.clock,
        metrics=core.metrics,
        installation=core.installation.id,
        # One cursor per file: gateways on the same database may write files on different machines.
        reader=f"audit:{socket.gethostname()}:{path.absolute()}",
    )
    await audit.open()
    stack.push_async_callback(audit.close)
    core.supervisor.start(stack, "audit", lambda: audit.run(core.wakes.audit))
    return lambda: audit.seq


def start_streams(core: Core, hub: StreamHub, stack: AsyncExitStack) -> None:
    """Dispatch events to the hub's subscribers; closing the hub ends their streams before the task is cancelled."""
    core.supervisor.start(stack, "stream", lambda: hub.run(core.wakes.stream))
    stack.callback(hub.close)


def start_relay(core: Core, stack: AsyncExitStack) -> Relay | None:
    """Publish the journal's events if the settings say so; Kafka itself may be away."""
    kafka, database = core.settings.kafka, core.database
    if kafka is None:
        return None
    from switchyard.adapters.kafka.publisher import KafkaPublisher

    publisher = KafkaPublisher(kafka, core.installation.id, bus_keys(core.settings)[0])
    relay = Relay(
        publisher,
        source=RelaySource(database.journal, traces=None if core.tracer is None else EventTraces(database.journal)),
        previous=PreviousEvents(database.queries),
        lease=HeldLease(
            kafka.topic,
            WorkerId("rly_" + fresh_ulid(core.clock, core.randomness)),
            leases=database.relay_leases,
            liveness=database.liveness,
            clock=core.clock,
        ),
        capacity=kafka.queue_capacity,
        clock=core.clock,
        metrics=core.metrics.bus,
    )
    publisher.on_trouble = relay.note_trouble
    stack.push_async_callback(relay.close)
    core.supervisor.start(stack, "relay", lambda: relay.run(core.wakes.relay))
    return relay
