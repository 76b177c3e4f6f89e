"""Notices a client that has no brokers left: it connects to none any more, and reports no error.

Seen once, after the only broker had been paused for 80 seconds; only a new client connected again. The likely cause is
confluentinc/librdkafka#5301: a broker that is not readmitted to its cluster yet answers with an empty list of brokers.
"""

import msgspec

# How often a client lists its brokers; its own work, no question to them.
STATISTICS_MS = 5_000
LOST = "the client has no brokers left that it could connect to"


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
