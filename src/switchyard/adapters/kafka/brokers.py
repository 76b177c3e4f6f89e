"""Notices a client that has no brokers left: it connects to none any more, and reports no error.

librdkafka drops every broker when a broker answers with topics and an empty list of brokers, as one does that was
paused and is not readmitted to its cluster yet (confluentinc/librdkafka#5301). Only a new client connects again.
"""

import msgspec

# How often a client lists its brokers; its own work, no question to them.
STATISTICS_MS = 5_000
LOST = "the client has no brokers left: a broker named none, and the client dropped all that it knew"


class _Broker(msgspec.Struct, frozen=True):
    source: str
    """`configured` or `learned`; `internal` and `logical` ones have no address of their own."""


class _Statistics(msgspec.Struct, frozen=True):
    brokers: dict[str, _Broker]


_decoder = msgspec.json.Decoder(_Statistics)


def are_lost(statistics: str) -> bool:
    """Whether a client's statistics list no broker that it can connect to."""
    brokers = _decoder.decode(statistics).brokers.values()
    return not any(broker.source in ("configured", "learned") for broker in brokers)
