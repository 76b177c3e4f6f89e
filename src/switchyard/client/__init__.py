"""The Python SDK: `from switchyard.client import Client`."""

from switchyard.client.api import Client
from switchyard.client.errors import ApiError, ClientError, NotReachable, UnreadableResponse
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
    "UnreadableResponse",
    "place_order_with_idempotency",
]
