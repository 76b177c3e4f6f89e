"""`venues check`: what a person learns about a real venue, and that no order is sent but those that were allowed."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from switchyard.adapters.system_clock import SystemClock
from switchyard.domain.ids import AccountId, VenueName
from switchyard.venue import Answer, Configuration, Kind, Message, NewOrder, Wire
from switchyard.venue.bridge import Bridge, VenueNames, Way
from switchyard.venue.check import Allowed, Finding, VenueCheck
from tests.support.acorn import KIND, AcornAdapter, AcornWorld, acorn_settings, acorn_world, plugin_path
from tests.support.process import COMMAND, clean_environment

QTY = Decimal(1000)
ALLOWED = Allowed(account=AccountId("check"), symbol="USDJPY", qty=QTY, resting=Decimal(100), marketable=Decimal(200))
ONLY_RESTING = replace(ALLOWED, marketable=None)


class Clock(SystemClock):
    """Time that passes at once while the check waits."""

    waited = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.waited

    async def sleep(self, seconds: float) -> None:
        self.waited += seconds


@pytest.fixture
async def world(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[AcornWorld]:
    world = acorn_world(tmp_path, *getattr(request, "param", ()))
    await world.start()
    yield world
    world.close()


def bridge_to(world: AcornWorld, kind: Kind = KIND) -> Bridge:
    configuration = Configuration(
        venue=VenueName("acorn"),
        url=world.url,
        capabilities=kind.descriptor.capabilities,
        options=world.options,
        secret=world.secrets.__getitem__,
    )
    names = VenueNames({}, {"USDJPY": "USD/JPY"})
    adapter = kind.build(configuration)
    return Bridge(VenueName("acorn"), kind.descriptor, adapter, clock=SystemClock(), way=Way(world.url), names=names)


async def checked(world: AcornWorld, kind: Kind = KIND, allowed: Allowed = ALLOWED) -> dict[str, Finding]:
    """The findings by claim."""
    venue, clock = bridge_to(world, kind), Clock()
    await venue.start()
    try:
        trial = VenueCheck(venue, allowed, tag="abcd", clock=clock, sleep=clock.sleep)
        findings = {finding.claim: finding async for finding in trial.run()}
        left = await trial.clean_up()
        return findings if left is None else {**findings, left.claim: left}
    finally:
        await venue.close()


def orders(world: AcornWorld) -> list[dict[str, Any]]:
    """The broker's orders, as its own log shows them last."""
    last: dict[str, dict[str, Any]] = {}
    for line in world.log.read_text().splitlines():
        order = json.loads(line)["order"]
        last[order["oid"]] = order
    return list(last.values())


def broken(findings: dict[str, Finding]) -> dict[str, str]:
    return {claim: each.text for claim, each in findings.items() if each.verdict == "broken"}


async def test_a_broker_that_keeps_its_word(world: AcornWorld) -> None:
    findings = await checked(world)
    assert {each.verdict for each in findings.values()} == {"kept"}
    assert {"lookup: closed", "dedupe: while open", "request_expiry", "amend", "execution_ids"} <= set(findings)
    states = [order["state"] for order in orders(world)]
    assert sorted(states) == ["dead", "done", "done"]  # the one that rested was canceled, two were filled


async def test_without_a_price_that_fills_nothing_is_executed(world: AcornWorld) -> None:
    findings = await checked(world, allowed=ONLY_RESTING)
    assert findings["execution_ids"].verdict == "not tried"
    assert {order["done"] for order in orders(world)} == {"0"}


@pytest.mark.parametrize(
    ("world", "claim", "text"),
    [
        (("--keeps-days=-1",), "lookup: closed", "after 30 s the order is not found"),
        (("--ignores-expiry",), "request_expiry", "a request that is 4 s old was carried out"),
    ],
    indirect=["world"],
)
async def test_a_broker_that_does_not(world: AcornWorld, claim: str, text: str) -> None:
    findings = await checked(world, allowed=ONLY_RESTING)
    assert broken(findings) == {claim: text}
    assert {order["state"] for order in orders(world)} == {"dead"}  # what was carried out all the same is canceled


async def test_a_repeated_id_that_is_taken_again_is_no_permanent_deduplication(world: AcornWorld) -> None:
    declared = replace(KIND.descriptor.capabilities, dedupe="permanent")
    kind = replace(KIND, descriptor=replace(KIND.descriptor, capabilities=declared))
    findings = await checked(world, kind, ONLY_RESTING)
    assert broken(findings) == {"dedupe: closed": "the repeated order was accepted as another one: A-2"}
    assert {order["state"] for order in orders(world)} == {"dead"}


class WrongAmount(AcornAdapter):
    """Sends another price than it was given."""

    async def send(self, message: Message, wire: Wire) -> Answer:
        if isinstance(message, NewOrder):
            message = replace(message, price=Decimal(99))
        return await super().send(message, wire)


async def test_an_adapter_that_orders_something_else_is_found_out(world: AcornWorld) -> None:
    findings = await checked(world, replace(KIND, build=WrongAmount), ONLY_RESTING)
    # The answer shows another price, so it is not believed, and nothing that needs the order is tried.
    assert findings["a resting order"].verdict == "not tried"
    assert "another order" in findings["a resting order"].text
    assert {order["state"] for order in orders(world)} == {"dead"}


class GoesAway(AcornAdapter):
    """Its broker ends once an order rests."""

    world: AcornWorld

    async def send(self, message: Message, wire: Wire) -> Answer:
        answer = await super().send(message, wire)
        if isinstance(message, NewOrder):
            self.world.close()
        return answer


async def test_an_order_that_cannot_be_canceled_is_named(world: AcornWorld) -> None:
    GoesAway.world = world
    findings = await checked(world, replace(KIND, build=GoesAway), ONLY_RESTING)
    [order] = orders(world)
    assert order["state"] == "live"
    assert findings["cleaning up"].text == f"cancel these yourself: {order['ref']}"
    assert findings["lookup: closed"].verdict == "not tried"


async def test_no_more_is_sent_than_was_allowed(world: AcornWorld) -> None:
    venue, clock = bridge_to(world), Clock()
    plan = dict(VenueCheck(venue, ALLOWED, tag="abcd", clock=clock, sleep=clock.sleep).plan())
    await checked(world)
    events = [json.loads(line) for line in world.log.read_text().splitlines()]
    opened = [event["order"]["limit"] for event in events if event["what"] in ("opened", "changed")]
    counts = {price: opened.count(str(price)) for price in plan}
    assert all(count <= plan[price] for price, count in counts.items()), (counts, plan)
    assert sum(plan.values()) == 6


# The command.


async def run(world: AcornWorld, folder: Path, *words: str, given: str = "") -> tuple[int, str, str]:
    """`switchyard venues …` with the plugin installed."""
    settings = acorn_settings(
        world.url, SWITCHYARD_DATA_DIR=str(folder / "data"), PYTHONPATH=plugin_path(folder / "installed")
    )
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        COMMAND, "venues", *words, stdin=pipe, stdout=pipe, stderr=pipe, env=clean_environment(**settings)
    )
    out, error = await process.communicate(given.encode())
    assert process.returncode is not None
    return process.returncode, out.decode(), error.decode()


CHECK: Sequence[str] = ("check", "acorn", "--symbol", "USDJPY", "--qty", "1000", "--resting", "100")


async def test_the_command_asks_first_and_its_findings_are_kept(world: AcornWorld, tmp_path: Path) -> None:
    status, _, error = await run(world, tmp_path, *CHECK, given="n\n")
    assert status == 1 and "- 4 to buy 1000 USDJPY at 100" in error
    assert orders(world) == []
    status, out, _ = await run(world, tmp_path, *CHECK, "--marketable", "200", "--yes")
    assert status == 0 and "kept       lookup: closed: the canceled order is found" in out
    _, out, _ = await run(world, tmp_path, "describe", "acorn")
    assert f"Tried live as acorn at {world.url}" in " ".join(out.split())


@pytest.mark.parametrize("world", [("--ignores-expiry",)], indirect=True)
async def test_a_broken_claim_ends_the_command_with_1(world: AcornWorld, tmp_path: Path) -> None:
    status, out, _ = await run(world, tmp_path, *CHECK, "--yes", "--json")
    found = {each["claim"]: each["verdict"] for each in json.loads(out)["findings"]}
    assert (status, found["request_expiry"]) == (1, "broken")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("check", "oak", *CHECK[2:]), 4, "'oak' is not in SOR_VENUES; there are: acorn"),
        ((*CHECK, "--marketable", "90", "--yes"), 2, "--marketable: must be above the resting price"),
        ((*CHECK[:-1], "0"), 2, "is not greater than 0"),
        ((*CHECK[:-1], "1e999", "--yes"), 2, "must be less than"),
    ],
)
async def test_bad_input_is_named(
    world: AcornWorld, tmp_path: Path, words: Sequence[str], status: int, said: str
) -> None:
    ended, out, error = await run(world, tmp_path, *words)
    assert ended == status and said in " ".join(error.replace("│", "").split()), (out, error)
    assert orders(world) == []
