"""`canary`: places a marked order and follows it through the whole path, books included."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
import typer

from switchyard.domain.ids import OrderId
from switchyard.domain.orders.lifecycle import is_final
from switchyard.domain.orders.order import OrderSnapshot
from switchyard.domain.values import plain
from switchyard.entrypoints.cli import output
from switchyard.entrypoints.cli.connection import AccountOption, UrlOption, address_and_token, health_token
from switchyard.entrypoints.cli.trading import amount

if TYPE_CHECKING:
    from aiohttp import ClientSession

    from switchyard.client import AsyncClient

FAILED = 1  # the exit code where a step failed
ACCOUNT = "canary"
MARK = "canary"
PAUSE_SECONDS = 0.05
WITHDRAW_SECONDS_MAX = 5.0
# More entries than one order has: its memo, and a fill for each part.
ENTRIES_MAX = 200

StepName = Literal["ready", "accepted", "repeated", "sent", "ended", "booked"]


class Step(msgspec.Struct, frozen=True):
    """One step of the path."""

    step: StepName
    ok: bool
    milliseconds: float
    detail: str


class CanaryResult(msgspec.Struct, kw_only=True, rename="camel"):
    """`contracts/canary_result_v1.schema.json`."""

    version: Literal[1] = 1
    ok: bool = False
    url: str
    started_at: datetime
    finished_at: datetime
    symbol: str
    side: Literal["BUY", "SELL"]
    qty: Decimal
    order_id: OrderId | None = None
    idempotency_key: str
    status: str | None = None
    steps: list[Step] = msgspec.field(default_factory=list)


class _Entry(msgspec.Struct, rename="camel"):
    """What the canary reads of a ledger entry."""

    type: str
    order_id: str | None = None
    qty: Decimal = Decimal(0)


class _Ledger(msgspec.Struct):
    entries: list[_Entry]


class StepFailed(Exception):
    """A step did not pass; the text says why."""


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(canary)


def canary(
    side: Annotated[Literal["buy", "sell"], typer.Argument(case_sensitive=False)],
    symbol: Annotated[str, typer.Argument()],
    qty: Annotated[Decimal, typer.Argument(parser=amount, metavar="QTY")],
    limit: Annotated[
        Decimal | None,
        typer.Option(
            "--limit",
            parser=amount,
            metavar="PRICE",
            help="Place a limit order far from the market, and cancel it once the venue has it.",
            show_default=False,
        ),
    ] = None,
    books: Annotated[bool, typer.Option("--books/--no-books", help="Also wait until the books have it.")] = True,
    backoffice_url: Annotated[
        str | None,
        typer.Option(
            "--backoffice-url",
            help="URL of the back office; by default from SWITCHYARD_HOST and SWITCHYARD_BACKOFFICE_PORT.",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[float, typer.Option("--seconds", min=1, max=600, help="Time for all steps together.")] = 30,
    url: UrlOption = None,
    account: AccountOption = ACCOUNT,
) -> None:
    """Place a real, marked order and follow it into the books; prints JSON, exit code 1 if a step fails."""
    from switchyard.client.address import gateway_url
    from switchyard.settings import load_settings

    address, token = address_and_token(url, account)
    if books and backoffice_url is None:
        settings = load_settings()
        backoffice_url = gateway_url(settings.host, settings.backoffice_port)
    run = _Run(address, token, symbol, "BUY" if side.lower() == "buy" else "SELL", qty, limit)
    result = asyncio.run(run.walk(backoffice_url if books else None, seconds))
    output.print_json(result)
    if not result.ok:
        raise typer.Exit(FAILED)


class _Run:
    """One canary."""

    def __init__(
        self, url: str, token: str, symbol: str, side: Literal["BUY", "SELL"], qty: Decimal, limit: Decimal | None
    ) -> None:
        from switchyard.adapters.system_clock import SystemClock, SystemRandomness
        from switchyard.ports.clock import fresh_ulid

        self._clock = SystemClock()
        now = self._clock.now()
        key = f"{MARK}-{fresh_ulid(self._clock, SystemRandomness())}"
        self._limit = limit
        self._token = token
        self._last: OrderSnapshot | None = None
        self.result = CanaryResult(
            url=url, started_at=now, finished_at=now, symbol=symbol, side=side, qty=qty, idempotency_key=key
        )

    async def walk(self, backoffice_url: str | None, seconds: float) -> CanaryResult:
        """Go through the steps until one fails or the time is over."""
        import aiohttp

        from switchyard.client import AsyncClient

        result = self.result
        async with AsyncClient(result.url, self._token) as client, aiohttp.ClientSession() as session:
            steps: list[tuple[StepName, Callable[[], Awaitable[str]]]] = [
                ("ready", lambda: self._ready(session)),
                ("accepted", lambda: self._place(client)),
                ("repeated", lambda: self._repeat(client)),
                ("sent", lambda: self._sent(client)),
                ("ended", lambda: self._ended(client)),
            ]
            if backoffice_url is not None:
                steps.append(("booked", lambda: self._booked(session, backoffice_url)))
            try:
                async with asyncio.timeout(seconds):
                    result.ok = all([await self._step(name, act) for name, act in steps])
            except StepFailed:
                pass  # the steps say which, and why
            except TimeoutError:
                waits = steps[len(result.steps)][0]
                result.steps.append(Step(waits, False, 1000 * seconds, f"not within {seconds:g} s"))
            if not result.ok:
                await self._withdraw(client)
        result.finished_at = self._clock.now()
        return result

    async def _step(self, name: StepName, act: Callable[[], Awaitable[str]]) -> bool:
        from switchyard.client.errors import ClientError

        began = self._clock.monotonic()
        try:
            detail, failure = await act(), None
        except (StepFailed, ClientError) as error:
            detail, failure = str(error), error
        milliseconds = round(1000 * (self._clock.monotonic() - began), 1)
        self.result.steps.append(Step(name, failure is None, milliseconds, detail))
        if failure is not None:
            raise StepFailed from failure
        return True

    async def _withdraw(self, client: "AsyncClient") -> None:
        """Cancel an order that has not ended: after a failed step nobody else would."""
        from switchyard.client.errors import ClientError

        order_id, status = self.result.order_id, self.result.status
        if order_id is None or (self._last is not None and is_final(self._last.status)):
            return
        try:
            async with asyncio.timeout(WITHDRAW_SECONDS_MAX):
                await client.cancel(order_id)
        except (ClientError, TimeoutError) as error:
            done = f"the order is {status} and could not be cancelled: {error!r}"
        else:
            done = "its cancel was requested"
        failed = self.result.steps[-1]
        self.result.steps[-1] = msgspec.structs.replace(failed, detail=f"{failed.detail}; {done}")

    async def _ready(self, session: "ClientSession") -> str:
        from switchyard.entrypoints.cli.doctor import Monitor

        found = await Monitor(session, self.result.url, token=health_token()).readiness()
        if found.status == "not_ready":
            raise StepFailed(
                "; ".join(check.detail or check.check for check in found.checks if check.status == "failed")
            )
        return found.status

    async def _place(self, client: "AsyncClient") -> str:
        return (await self._placed(client))[0]

    async def _repeat(self, client: "AsyncClient") -> str:
        order_id, is_replayed = await self._placed(client)
        if order_id != self.result.order_id or not is_replayed:
            raise StepFailed(f"the same key gave the order {order_id}")
        return "the same order"

    async def _placed(self, client: "AsyncClient") -> tuple[str, bool]:
        result = self.result
        placed = await client.place(
            result.symbol,
            result.side,
            result.qty,
            limit_price=self._limit,
            strategy=MARK,
            tags=[MARK],
            idempotency_key=result.idempotency_key,
        )
        result.order_id = result.order_id or placed.order_id
        result.status = result.status or placed.status
        return placed.order_id, placed.replayed

    async def _sent(self, client: "AsyncClient") -> str:
        order = await self._until(client, lambda order: is_final(order.status) or order.status == "WORKING")
        if order.status in ("REJECTED", "EXPIRED"):
            raise StepFailed(f"{order.status}: {order.reason}")
        return f"{order.status} at {order.venue}"

    async def _ended(self, client: "AsyncClient") -> str:
        if self._limit is not None:
            await client.cancel(self._known)
        order = await self._until(client, lambda order: is_final(order.status))
        if order.status != "FILLED" and self._limit is None:
            raise StepFailed(f"{order.status}: {order.reason}")
        return f"{order.status} {plain(order.filled_qty)}"

    async def _until(self, client: "AsyncClient", is_reached: Callable[[OrderSnapshot], bool]) -> OrderSnapshot:
        while True:
            order = self._last = await client.order(self._known)
            self.result.status = order.status
            if is_reached(order):
                return order
            await asyncio.sleep(PAUSE_SECONDS)

    async def _booked(self, session: "ClientSession", backoffice_url: str) -> str:
        assert self._last is not None, "the order has ended"
        filled, url = self._last.filled_qty, f"{backoffice_url.rstrip('/')}/ledger"
        query = {"orderId": self._known, "limit": str(ENTRIES_MAX)}
        while True:
            found = await self._get(session, url, query)
            entries = [entry for entry in found.entries if entry.order_id == self._known]
            fills = [entry.qty for entry in entries if entry.type == "Fill"]
            total = sum(fills, Decimal(0))
            if total > filled:
                raise StepFailed(f"the books have {plain(total)}, the order {plain(filled)}")
            if entries and total == filled:
                return f"{len(fills)} fills of {plain(total)}"
            await asyncio.sleep(PAUSE_SECONDS)

    async def _get(self, session: "ClientSession", url: str, query: dict[str, str]) -> _Ledger:
        from aiohttp import ClientError

        headers = {"Authorization": f"Bearer {self._token}"}
        try:
            async with session.get(url, params=query, headers=headers) as response:
                body = await response.read()
        except ClientError as error:
            raise StepFailed(f"no response from the back office: {error}") from error
        if response.status != 200:
            raise StepFailed(f"the back office responded {response.status}: {body[:200]!r}")
        return msgspec.json.decode(body, type=_Ledger)

    @property
    def _known(self) -> OrderId:
        assert self.result.order_id is not None, "the order was accepted"
        return self.result.order_id
