"""The SDK people import: `from switchyard.client import Client`."""

from switchyard.client.api import Client
from switchyard.client.errors import ApiError, ClientError, NotReachable, UnreadableAnswer
from switchyard.client.retry import Retry
from switchyard.client.sse import Message
from switchyard.client.wire import Acknowledgement, RecordedEvent

__all__ = [
    "Acknowledgement",
    "ApiError",
    "Client",
    "ClientError",
    "Message",
    "NotReachable",
    "RecordedEvent",
    "Retry",
    "UnreadableAnswer",
]
