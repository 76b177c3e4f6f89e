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
from switchyard.client.retry import Retry
from switchyard.client.sse import Message
from switchyard.client.sync_client import Client
from switchyard.client.wire import Acknowledgement, AmendResult, OrderPlacementResult
from switchyard.domain.account_view import AccountView, PositionView
from switchyard.domain.cancel_all import CancelAllResult, CancelledOrder
from switchyard.domain.do_order import ExecResult, RiskConstraints
from switchyard.domain.explain import Explanation
from switchyard.domain.kill_state import KillState, KillView
from switchyard.domain.lifecycle import is_final
from switchyard.domain.market import ListedInstrument, MarketQuote
from switchyard.domain.orders import OrderSnapshot
from switchyard.domain.risk.dry_run import DryRun, DryRunCheck
from switchyard.domain.risk.exposure_view import ExposureView

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
