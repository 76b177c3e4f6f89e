"""Lists that the gateway returns in pages: one call after the other; performs no I/O."""

import math
from collections.abc import Iterator, Sequence
from datetime import datetime
from urllib.parse import quote, urlencode

from switchyard.client.calls import Call, Response, order_path
from switchyard.client.events import EventPage, RecordedEvent
from switchyard.client.wire import InstrumentPage, OrderPage, read
from switchyard.domain.accounts.views import POSITIONS_PAGE_MAX, PositionPage, PositionView
from switchyard.domain.market.quotes import ListedInstrument
from switchyard.domain.orders.lifecycle import Status
from switchyard.domain.orders.order import OrderSnapshot

PAGE_ORDERS_MAX = 100
PAGE_EVENTS_MAX = 500
PAGE_INSTRUMENTS_MAX = 500
# Above the number of every event, with as many digits as a cursor may have.
SEQ_LIMIT = 10**18 - 1


class OrderPages:
    """The pages of `orders`, until the limit or the last page."""

    def __init__(self, statuses: Sequence[Status], symbol: str | None, limit: int | None) -> None:
        self._query: dict[str, str] = {}
        if statuses:
            self._query["status"] = ",".join(statuses)
        if symbol is not None:
            self._query["symbol"] = symbol
        self._remaining = math.inf if limit is None else limit
        self._is_last = False

    def calls(self) -> Iterator[Call[list[OrderSnapshot]]]:
        """Yield the next call; the caller sends it before it asks for another."""
        while self._remaining > 0 and not self._is_last:
            self._query["limit"] = str(min(PAGE_ORDERS_MAX, self._remaining))
            yield Call(method="GET", path=f"/orders?{urlencode(self._query)}", read=self._read)

    def _read(self, response: Response) -> list[OrderSnapshot]:
        page = read(response.body, OrderPage)
        self._remaining -= len(page.orders)
        self._is_last = page.next_cursor is None
        self._query["cursor"] = page.next_cursor or ""
        return page.orders


class PositionPages:
    """The pages of `positions`, until the last."""

    def __init__(self, flat: bool) -> None:
        self._query = {"limit": str(POSITIONS_PAGE_MAX)} | ({"flat": "true"} if flat else {})
        self._is_last = False

    def calls(self) -> Iterator[Call[Sequence[PositionView]]]:
        """Yield the next call; the caller sends it before it asks for another."""
        while not self._is_last:
            yield Call(method="GET", path=f"/positions?{urlencode(self._query)}", read=self._read)

    def _read(self, response: Response) -> Sequence[PositionView]:
        page = read(response.body, PositionPage)
        self._is_last = page.next_cursor is None
        self._query["cursor"] = page.next_cursor or ""
        return page.positions


class InstrumentPages:
    """The pages of `instruments`, until the last."""

    def __init__(self) -> None:
        self._query = {"limit": str(PAGE_INSTRUMENTS_MAX)}
        self._is_last = False

    def calls(self) -> Iterator[Call[list[ListedInstrument]]]:
        """Yield the next call; the caller sends it before it asks for another."""
        while not self._is_last:
            yield Call(method="GET", path=f"/instruments?{urlencode(self._query)}", read=self._read)

    def _read(self, response: Response) -> list[ListedInstrument]:
        page = read(response.body, InstrumentPage)
        self._is_last = page.next_cursor is None
        self._query["cursor"] = page.next_cursor or ""
        return page.listed()


class EventPages:
    """The pages of `events`, until the limit or the last page."""

    def __init__(
        self,
        order_id: str | None,
        account_id: str | None,
        since: datetime | None,
        after: datetime | None,
        after_seq: int,
        newest_first: bool,
        limit: int | None,
    ) -> None:
        if (order_id is None) == (account_id is None):
            raise ValueError("pass exactly one of order_id and account_id")
        if newest_first and after_seq:
            raise ValueError("pass after_seq or newest_first, not both")
        self._subject = (
            order_path(order_id) if order_id is not None else f"/accounts/{quote(account_id or '', safe='')}"
        )
        self._query = {name: at.isoformat() for name, at in (("since", since), ("after", after)) if at is not None}
        self._query["cursor"] = f"before:{SEQ_LIMIT}" if newest_first else f"after:{after_seq}"
        self._newest_first = newest_first
        self._remaining = math.inf if limit is None else limit
        self._is_last = False

    def calls(self) -> Iterator[Call[list[RecordedEvent]]]:
        """Yield the next call; the caller sends it before it asks for another."""
        while self._remaining > 0 and not self._is_last:
            self._query["limit"] = str(min(PAGE_EVENTS_MAX, self._remaining))
            yield Call(method="GET", path=f"{self._subject}/events?{urlencode(self._query)}", read=self._read)

    def _read(self, response: Response) -> list[RecordedEvent]:
        page = read(response.body, EventPage)
        self._remaining -= len(page.events)
        self._is_last = page.next_cursor is None
        self._query["cursor"] = page.next_cursor or ""
        return page.events[::-1] if self._newest_first else page.events
