"""What the people of the demo use: a client for each account, the operators' calls, and the venues' fault switches."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import msgspec
import typer

from switchyard.adapters.system_clock import SystemClock
from switchyard.client import AsyncClient, OrderSnapshot
from switchyard.domain.market.instruments import DEFAULT_INSTRUMENTS
from switchyard.domain.orders.order import Side
from switchyard.entrypoints.cli.connection import sign_pdca_token, sign_token
from switchyard.entrypoints.cli.demo.plan import ACCOUNTS
from switchyard.entrypoints.cli.demo.processes import DemoFailed, Site

if TYPE_CHECKING:
    from aiohttp import ClientSession

# Longer than any demo that is left open for an afternoon.
TOKEN_TTL = timedelta(hours=24)
OPERATOR = "demo-operator"
OPERATOR_SCOPES = ("admin:kill", "admin:ledger", "admin:reconcile")
PDCA_SCOPES = ("pdca:read", "pdca:recheck", "pdca:recheck_all", "pdca:strategies")
# A doubt that a lookup ends takes the outage, the venue's window and 5 s; a slow machine takes longer.
WAIT_SECONDS_MAX = 60.0
POLL_SECONDS = 0.2
_exact = msgspec.json.Encoder(decimal_format="number")


class Story:
    """Tells what happens, with the seconds since the day began."""

    def __init__(self) -> None:
        self._clock = SystemClock()
        self._began = self._clock.monotonic()

    @property
    def seconds(self) -> float:
        """Since the day began."""
        return self._clock.monotonic() - self._began

    def tell(self, text: str) -> None:
        """One line."""
        typer.echo(f"{self.seconds:5.1f} s  {text}")


class Desk:
    """The accounts and the operator."""

    def __init__(self, site: Site, session: "ClientSession", story: Story) -> None:
        self.site = site
        self.story = story
        self.clients: dict[str, AsyncClient] = {}
        settings = site.settings
        self._session = session
        self._operator_token = sign_token(settings, OPERATOR, TOKEN_TTL, scopes=OPERATOR_SCOPES, subject=OPERATOR)
        self._pdca_token = sign_pdca_token(
            settings, OPERATOR, TOKEN_TTL, ("pdca", "pdca.gui"), PDCA_SCOPES, account="*"
        )

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["Desk"]:
        """Connect the clients."""
        async with AsyncExitStack() as stack:
            settings = self.site.settings
            for account in ACCOUNTS:
                client = AsyncClient(self.site.url, sign_token(settings, account, TOKEN_TTL))
                self.clients[account] = await stack.enter_async_context(client)
            self.operator = await stack.enter_async_context(AsyncClient(self.site.url, self._operator_token))
            yield self

    async def away_from_market(self, account: str, symbol: str, side: Side) -> Decimal:
        """A limit price one per cent from the market: it rests, and it is within every collar."""
        quote = await self.clients[account].quote(symbol)
        price = quote.bid * Decimal("0.99") if side == "BUY" else quote.ask * Decimal("1.01")
        return price.quantize(DEFAULT_INSTRUMENTS[symbol].tick)

    async def through_market(self, account: str, symbol: str, side: Side) -> Decimal:
        """A limit price that fills at once."""
        quote = await self.clients[account].quote(symbol)
        price = quote.ask * Decimal("1.005") if side == "BUY" else quote.bid * Decimal("0.995")
        return price.quantize(DEFAULT_INSTRUMENTS[symbol].tick)

    async def faults(self, venue: str, **values: float) -> None:
        """Switch faults of a venue on or off."""
        await self._call("POST", f"{self.site.venue_urls[venue]}/admin/faults", None, values)

    async def has_arrived(self, venue: str, row: dict[str, str]) -> bool:
        """Whether the venue has carried out an order or a cancel, as a person sees it on the venue's own screen."""
        url = f"{self.site.venue_urls[venue]}/orders/{row['venue_client_order_id']}"
        async with self._session.get(url) as response:
            shown = msgspec.json.decode(await response.read())
            return response.status == 200 and (row["kind"] == "new" or shown["status"] == "canceled")

    async def place_by_telephone(self, venue: str, symbol: str, side: Side, qty: int) -> None:
        """Trade at the venue under our credentials, without Switchyard."""
        name = f"telephone-{symbol.lower()}"
        body = {"idempotency_key": name, "client_order_id": name, "symbol": symbol, "intent": side, "qty": qty}
        body |= {"type": "MARKET", "time_in_force": "IOC"}
        await self._call("POST", f"{self.site.venue_urls[venue]}/orders", None, body, key=name)

    async def books(self, method: str, path: str, body: object = None) -> Any:
        """A call of the operator to the back office."""
        return await self._call(method, self.site.backoffice_url + path, self._operator_token, body)

    async def pdca(self, method: str, path: str, body: object = None, key: str | None = None) -> Any:
        """A call to the PDCA API."""
        return await self._call(method, self.site.url + path, self._pdca_token, body, key)

    async def until(self, what: str, condition: Callable[[], Awaitable[bool]]) -> None:
        """Wait for a condition; raises DemoFailed with its name."""
        try:
            async with asyncio.timeout(WAIT_SECONDS_MAX):
                while not await condition():
                    self.site.check()
                    await asyncio.sleep(POLL_SECONDS)
        except TimeoutError:
            raise DemoFailed(f"{what}: not within {WAIT_SECONDS_MAX:g} s") from None

    async def until_status(self, account: str, order_id: str, *statuses: str) -> OrderSnapshot:
        """Wait until the order has one of these statuses."""
        found: list[OrderSnapshot] = []

        async def is_reached() -> bool:
            found[:] = [await self.clients[account].order(order_id)]
            return found[0].status in statuses

        await self.until(f"order {order_id} becomes {' or '.join(statuses)}", is_reached)
        return found[0]

    async def until_event(self, account: str, order_id: str, kind: str) -> None:
        """Wait until the order's history has an event of this type, whatever came after it."""

        async def has_happened() -> bool:
            return kind in [event.type async for event in self.clients[account].events(order_id=order_id)]

        await self.until(f"order {order_id} has the event {kind}", has_happened)

    async def _call(self, method: str, url: str, token: str | None, body: object = None, key: str | None = None) -> Any:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        if key is not None:
            headers["Idempotency-Key"] = key
        data = None
        if body is not None:
            data = _exact.encode(body)
            headers["Content-Type"] = "application/json"
        async with self._session.request(method, url, data=data, headers=headers) as response:
            answer = await response.read()
            if response.status >= 300:
                raise DemoFailed(f"{method} {url}: HTTP {response.status} {answer.decode('utf-8', 'replace')[:300]}")
        return msgspec.json.decode(answer) if answer else None
