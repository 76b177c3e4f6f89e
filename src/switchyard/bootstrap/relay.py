"""The relay to Kafka: a stage of `up` and of every worker; one of them publishes, the others stand by."""

from contextlib import AsyncExitStack

from switchyard.bootstrap.core import Core
from switchyard.domain.ids import WorkerId
from switchyard.flow.bus.relay import HeldLease, PreviousEvents, Relay, RelaySource
from switchyard.flow.traced import EventTraces
from switchyard.ports.clock import fresh_ulid
from switchyard.settings import bus_keys


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
