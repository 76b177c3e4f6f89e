"""The Python SDK: `from switchyard.client import Client`, or `AsyncClient` for asyncio."""

from switchyard.client.async_client import AsyncClient
from switchyard.client.errors import ApiError, ClientError, NotReachable, UnreadableResponse
from switchyard.client.events import (
    ExecutionReported,
    OrderUpdate,
    RecordedEvent,
    ResyncRequired,
    ServerClosing,
    StreamEvent,
    StreamReady,
    TokenExpired,
    UnknownEvent,
)
from switchyard.client.placement import place_order_with_idempotency
from switchyard.client.sse import Message
from switchyard.client.sync_client import Client
from switchyard.client.wire import Acknowledgement, AmendResult, OrderPlacementResult, Retry
from switchyard.domain.accounts.views import AccountView, ExposureView, PositionView
from switchyard.domain.market.quotes import ListedInstrument, MarketQuote
from switchyard.domain.orders.closing import CancelAllResult, CancelledOrder
from switchyard.domain.orders.do_order import ExecResult, RiskConstraints
from switchyard.domain.orders.explain import Explanation
from switchyard.domain.orders.lifecycle import is_final
from switchyard.domain.orders.order import OrderSnapshot
from switchyard.domain.risk.checks import DryRun, DryRunCheck
from switchyard.domain.risk.kills import KillState, KillView

__all__ = [
    "AccountView",
    "Acknowledgement",
    "AmendResult",
    "ApiError",
    "AsyncClient",
    "CancelAllResult",
    "CancelledOrder",
    "Client",
    "ClientError",
    "DryRun",
    "DryRunCheck",
    "ExecResult",
    "ExecutionReported",
    "Explanation",
    "ExposureView",
    "KillState",
    "KillView",
    "ListedInstrument",
    "MarketQuote",
    "Message",
    "NotReachable",
    "OrderPlacementResult",
    "OrderSnapshot",
    "OrderUpdate",
    "PositionView",
    "RecordedEvent",
    "ResyncRequired",
    "Retry",
    "RiskConstraints",
    "ServerClosing",
    "StreamEvent",
    "StreamReady",
    "TokenExpired",
    "UnknownEvent",
    "UnreadableResponse",
    "is_final",
    "place_order_with_idempotency",
]
