"""The SDK people import: `from switchyard.client import Client`."""

from switchyard.client.api import Client
from switchyard.client.errors import ApiError, ClientError, NotReachable, UnreadableAnswer
from switchyard.client.placement import place_order_with_idempotency
from switchyard.client.retry import Retry
from switchyard.client.sse import Message
from switchyard.client.wire import Acknowledgement, OrderPlacementResult, RecordedEvent

__all__ = [
    "Acknowledgement",
    "ApiError",
    "Client",
    "ClientError",
    "Message",
    "NotReachable",
    "OrderPlacementResult",
    "RecordedEvent",
    "Retry",
    "UnreadableAnswer",
    "place_order_with_idempotency",
]
