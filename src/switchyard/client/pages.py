"""Lists that the gateway returns in pages: one call after the other; performs no I/O."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Generic, TypeVar
from urllib.parse import quote, urlencode

from switchyard.client.calls import Call, Response, order_path
from switchyard.client.events import EventPage, RecordedEvent
from switchyard.client.wire import InstrumentPage, OrderPage, read
from switchyard.domain.accounts.views import POSITIONS_PAGE_MAX, PositionPage, PositionView
from switchyard.domain.market.quotes import ListedInstrument
from switchyard.domain.orders.lifecycle import Status
from switchyard.domain.orders.order import OrderSnapshot

T = TypeVar("T")

PAGE_ORDERS_MAX = 100
PAGE_EVENTS_MAX = 500
PAGE_INSTRUMENTS_MAX = 500
# Above the number of every event, with as many digits as a cursor may have.
SEQ_LIMIT = 10**18 - 1


class Pages(Generic[T]):
    """The pages of a list, until the limit or the last page."""

    def __init__(
        self,
        path: str,
        page: Callable[[bytes], tuple[Sequence[T], str | None]],
        page_max: int,
        *,
        limit: int | None = None,
        query: Mapping[str, str] | None = None,
    ) -> None:
        """`page`: the items of a response, and the cursor of the next page; None after the last."""
        self._path = path
        self._page = page
        self._page_max = page_max
        self._query = dict(query or {})
        self._remaining = math.inf if limit is None else limit
        self._is_last = False

    def calls(self) -> Iterator[Call[Sequence[T]]]:
        """Yield the next call; the caller sends it before it asks for another."""
        while self._remaining > 0 and not self._is_last:
            self._query["limit"] = str(min(self._page_max, self._remaining))
            yield Call(method="GET", path=f"{self._path}?{urlencode(self._query)}", read=self._read)

    def _read(self, response: Response) -> Sequence[T]:
        items, cursor = self._page(response.body)
        self._remaining -= len(items)
        self._is_last = cursor is None
        self._query["cursor"] = cursor or ""
        return items


def orders(
    *, statuses: Sequence[Status] = (), symbol: str | None = None, limit: int | None = None
) -> Pages[OrderSnapshot]:
    """Yield the orders of the account, newest first; pages are requested as needed."""

    def page(body: bytes) -> tuple[Sequence[OrderSnapshot], str | None]:
        found = read(body, OrderPage)
        return found.orders, found.next_cursor

    query = {"status": ",".join(statuses)} if statuses else {}
    if symbol is not None:
        query["symbol"] = symbol
    return Pages("/orders", page, PAGE_ORDERS_MAX, limit=limit, query=query)


def positions(*, flat: bool = False) -> Pages[PositionView]:
    """Yield the account's positions by symbol, with `flat` also those that are closed; pages as needed."""

    def page(body: bytes) -> tuple[Sequence[PositionView], str | None]:
        found = read(body, PositionPage)
        return found.positions, found.next_cursor

    return Pages("/positions", page, POSITIONS_PAGE_MAX, query={"flat": "true"} if flat else {})


def instruments() -> Pages[ListedInstrument]:
    """Yield the instruments of the gateway's catalogue by symbol; pages are requested as needed."""

    def page(body: bytes) -> tuple[Sequence[ListedInstrument], str | None]:
        found = read(body, InstrumentPage)
        return found.listed(), found.next_cursor

    return Pages("/instruments", page, PAGE_INSTRUMENTS_MAX)


def events(
    *,
    order_id: str | None = None,
    account_id: str | None = None,
    since: datetime | None = None,
    after: datetime | None = None,
    after_seq: int = 0,
    newest_first: bool = False,
    limit: int | None = None,
) -> Pages[RecordedEvent]:
    """Yield the events of an order or of the account, oldest first; pages are requested as needed.

    `since` selects events at or after a time, `after` events strictly after it, `after_seq` events after a number, for
    example the `last_event_id` of `ResyncRequired`.
    """
    if (order_id is None) == (account_id is None):
        raise ValueError("pass exactly one of order_id and account_id")
    if newest_first and after_seq:
        raise ValueError("pass after_seq or newest_first, not both")

    def page(body: bytes) -> tuple[Sequence[RecordedEvent], str | None]:
        found = read(body, EventPage)
        return found.events[::-1] if newest_first else found.events, found.next_cursor

    subject = order_path(order_id) if order_id is not None else f"/accounts/{quote(account_id or '', safe='')}"
    query = {name: at.isoformat() for name, at in (("since", since), ("after", after)) if at is not None}
    query["cursor"] = f"before:{SEQ_LIMIT}" if newest_first else f"after:{after_seq}"
    return Pages(f"{subject}/events", page, PAGE_EVENTS_MAX, limit=limit, query=query)
