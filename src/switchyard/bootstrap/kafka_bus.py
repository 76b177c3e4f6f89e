"""Kafka as the bus of a back office that is a process of its own."""

from contextlib import AsyncExitStack

from switchyard.adapters.kafka.bus import KafkaBus
from switchyard.adapters.kafka.configuration import check_properties
from switchyard.adapters.kafka.messages import MessageReader
from switchyard.adapters.kafka.partition import topic_id_of
from switchyard.domain.journal.lines import Offset
from switchyard.flow.clock import Wake
from switchyard.ports.books import Ledger
from switchyard.settings import KafkaSettings


async def open_kafka_bus(
    kafka: KafkaSettings, reader: MessageReader, ledger: Ledger, wake: Wake, stack: AsyncExitStack
) -> KafkaBus:
    """The bus, which joins the group once Kafka answers; CannotStart where the topic is not the one of the books."""
    check_properties(kafka)
    # A source that was reset to its start says nothing about the topic that follows.
    read = [state.source for state in await ledger.sources() if state.position != Offset()]
    former_ids = frozenset(filter(None, map(topic_id_of, read)))
    bus = KafkaBus(kafka, reader, former_ids=former_ids, on_messages=wake.notify)
    stack.push_async_callback(bus.close)
    return bus
