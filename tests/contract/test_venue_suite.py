"""The public contract suite: the example plugin passes it, and a declaration that promises too much fails its case."""

import asyncio
import json
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlencode

import pytest
from msgspec.structs import replace

from switchyard.domain.errors import SettingError
from switchyard.testing import venues as suite
from switchyard.testing.venues import BrokenPromise, Case, VenueSuite, World, cases_of, check
from switchyard.venue import (
    Answer,
    Capabilities,
    Configuration,
    Descriptor,
    IdForm,
    Kind,
    Message,
    NeverReceived,
    NewOrder,
    Request,
    Response,
    Wire,
)
from switchyard.venue.interface import Found, Meaning, OrderRef, Page, Report
from tests.support.acorn import KIND, AcornAdapter, AcornWorld, NumberedAcorn, _found, _passed, acorn_world, numbered

T = TypeVar("T")


def declaring(codes: dict[str, Meaning] | None = None, **capabilities: object) -> Kind:
    """The example's kind with another declaration."""
    descriptor = KIND.descriptor
    declared = replace(descriptor.capabilities, **capabilities)
    changed = replace(descriptor, capabilities=declared, codes={**descriptor.codes, **(codes or {})})
    return replace(KIND, descriptor=changed)


class TestTheExample(VenueSuite):
    kind = KIND

    def world(self, folder: Path) -> World:
        return acorn_world(folder)


class TestABrokerThatRecognisesIdsForEver(VenueSuite):
    """Whose orders follow each other on one connection."""

    kind = declaring(dedupe="permanent")

    def world(self, folder: Path) -> World:
        return acorn_world(folder, "--permanent")


class TestABrokerThatProvesWhatItNeverReceived(VenueSuite):
    """By the numbers of its requests."""

    kind = numbered()

    def world(self, folder: Path) -> World:
        return acorn_world(folder)

    def pytest_generate_tests(self, metafunc: Any) -> None:
        """The cases of the proof alone; the others are those of the example."""
        names = PROOF_CASES
        metafunc.parametrize("case", [case_of(self.kind.descriptor, name) for name in names], ids=names)


PROOF_CASES = (
    "a_lost_request_is_proven_never_to_have_arrived",
    "a_request_that_arrived_is_never_proven_not_to_have",
    "a_proof_covers_every_attempt",
    "what_is_proven_never_to_have_arrived_does_not_arrive_later",
)


def case_of(descriptor: Descriptor, name: str) -> Case:
    [found] = [case for case in cases_of(descriptor) if case.name == name]
    return found


def tried(world: World, kind: Kind, name: str) -> str:
    """What a case says about a broken promise."""
    with pytest.raises(BrokenPromise) as broken:
        asyncio.run(check(case_of(kind.descriptor, name), world, kind))
    return str(broken.value)


def test_a_deduplication_that_ends_with_the_order_is_not_permanent(tmp_path: Path) -> None:
    said = tried(acorn_world(tmp_path), declaring(dedupe="permanent"), "a_second_copy_after_the_fill_executes_nothing")
    assert "dedupe=permanent: a second copy after the fill: the world has executed 2000, not 1000" in said


@pytest.mark.parametrize(
    "case", ["closed_orders_are_found", "a_lost_answer_is_settled_by_the_lookup_without_a_second_request"]
)
def test_a_lookup_that_finds_open_orders_only_is_not_one_of_all(case: str, tmp_path: Path) -> None:
    said = tried(acorn_world(tmp_path, "--keeps-days=-1"), KIND, case)
    assert "lookup=all: an order that" in said and "is not found" in said


def test_a_lookup_that_keeps_orders_for_a_shorter_time_is_noticed(tmp_path: Path) -> None:
    said = tried(acorn_world(tmp_path, "--keeps-days=6"), KIND, "closed_orders_are_found_for_as_long_as_is_declared")
    assert said == "lookup_keeps=7 days, 0:00:00: an order that is FILLED is not found"


@pytest.mark.parametrize(
    "case", ["the_request_of_a_paused_sender_is_rejected", "a_request_that_is_held_on_its_way_is_rejected"]
)
def test_an_expiry_that_the_broker_does_not_check_is_none(case: str, tmp_path: Path) -> None:
    said = tried(acorn_world(tmp_path, "--ignores-expiry"), KIND, case)
    assert "request_expiry: a request" in said and "the world has executed 1000, not 0" in said


def test_execution_ids_that_repeat_in_another_symbol_are_not_unique_at_the_venue(tmp_path: Path) -> None:
    said = tried(
        acorn_world(tmp_path), declaring(execution_ids="venue"), "an_execution_id_is_unique_in_its_declared_scope"
    )
    assert "execution_ids=venue: these ids repeat: [('', '1'), ('', '2')]" in said


@pytest.mark.parametrize("meaning", ["rejected", "unauthorized", "throttled", "busy"])
def test_a_code_that_may_still_be_carried_out_denies_nothing(meaning: Meaning, tmp_path: Path) -> None:
    said = tried(
        acorn_world(tmp_path), declaring({"ENGINE_LATE": meaning}), "a_code_that_denies_an_order_executes_nothing"
    )
    assert f"codes: ENGINE_LATE is declared '{meaning}': the world has executed 1000, not 0" in said


# Weaker declarations, and adapters with a defect.


@pytest.mark.parametrize(
    ("capabilities", "cases"),
    [
        (Capabilities(dedupe="none", lookup="none"), {"without_a_lookup_nothing_is_absent"}),
        (Capabilities(dedupe="while_open", lookup="open"), {"an_open_order_is_found_with_its_amounts"}),
        (Capabilities(dedupe="permanent", lookup="all"), {"a_second_copy_after_the_fill_executes_nothing"}),
    ],
)
def test_the_capabilities_choose_the_cases(capabilities: Capabilities, cases: set[str]) -> None:
    chosen = {case.name for case in cases_of(replace(KIND.descriptor, capabilities=capabilities))}
    assert cases <= chosen
    assert ("closed_orders_are_found" in chosen) == (capabilities.lookup == "all")
    assert not {name for name in chosen if "amend" in name or "paused" in name}


@pytest.mark.parametrize(
    "case", ["a_lost_answer_is_never_proof_of_absence", "the_world_executes_a_second_copy_after_the_fill"]
)
def test_a_declaration_that_is_weaker_than_the_broker_passes(case: str, tmp_path: Path) -> None:
    kind = declaring(dedupe="none", lookup="none", request_expiry=False, amend="none", acceptance_window=None)
    asyncio.run(check(case_of(kind.descriptor, case), acorn_world(tmp_path), kind))


def test_a_world_that_never_executes_a_second_copy_proves_nothing(tmp_path: Path) -> None:
    class KindWorld(AcornWorld):
        async def executed(self, client_order_id: str) -> Decimal:
            return min(await super().executed(client_order_id), Decimal(1000))

    said = tried(KindWorld(tmp_path), KIND, "the_world_executes_a_second_copy_after_the_fill")
    assert "the world must not be kinder than the declaration" in said


class SendsTwice(AcornAdapter):
    """Takes a lost answer for a reason to send again, which the wire forbids."""

    async def send(self, message: Message, wire: Wire) -> Answer:
        try:
            return await super().send(message, wire)
        except Exception:
            return await super().send(message, wire)


class ShortensIds(AcornAdapter):
    """Sends ids in the form in which they would fit if the last digits did not count."""

    async def send(self, message: Message, wire: Wire) -> Answer:
        shorter = message.client_order_id[:-1] + "0"
        return await super().send(replace(message, client_order_id=shorter), wire)


class SkipsReports(AcornAdapter):
    """Takes the number behind the next report for the next page."""

    async def reports(self, after: str | None, limit: int, wire: Wire) -> Page:
        page = await super().reports(after, limit, wire)
        return replace(page, cursor=f"e{int(page.cursor[1:]) + 1}") if limit == 1 else page


class StaysBehind(AcornAdapter):
    """Takes the beginning of a page for its end."""

    async def reports(self, after: str | None, limit: int, wire: Wire) -> Page:
        return replace(await super().reports(after, limit, wire), cursor=after or "e0")


class DropsUnreadable(AcornAdapter):
    """Leaves out what it cannot read."""

    async def reports(self, after: str | None, limit: int, wire: Wire) -> Page:
        page = await super().reports(after, limit, wire)
        return replace(page, reports=[one for one in page.reports if isinstance(one, Report)])


class NeverLearns(AcornAdapter):
    """Signs its questions with the time of our own clock until one is answered."""

    async def _ask(self, wire: Wire, read: Callable[[Response], T], path: str, **values: str) -> T:
        return await wire.ask(self._signed("GET", f"{path}?{urlencode(values)}", wire.time), read)


class FindsNothing(AcornAdapter):
    """Takes an answer without an order for one that says that there is none."""

    async def find(self, ref: OrderRef, wire: Wire) -> Found | None:
        def read(response: Response) -> Found | None:
            return _found(response) if "data" in json.loads(response.body) else None

        return await self._ask(wire, read, "/v2/orders/lookup", pair=ref.symbol or "", ref=ref.client_order_id)


class HasNoEvents(AcornAdapter):
    """Takes an error for an empty page."""

    async def reports(self, after: str | None, limit: int, wire: Wire) -> Page:
        def read(response: Response) -> Page:
            body = json.loads(response.body) if response.status == 200 else {}
            assert not body.get("data"), "the case reads no page with reports"
            return Page(reports=[], cursor=after or "e0")

        return await self._ask(wire, read, "/v2/events", **{"from": after or "e0", "count": str(limit)})


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        (FindsNothing, "find: HTTP 200 with '{}' was taken for None"),
        (HasNoEvents, "reports: HTTP 404 with '<html>Not Found</html>' was taken for ReportPage"),
    ],
)
def test_an_error_that_is_taken_for_nothing_is_found_out(
    adapter: type[AcornAdapter], message: str, tmp_path: Path
) -> None:
    assert message in tried(acorn_world(tmp_path), of(adapter), "an_answer_that_is_none_of_the_venue_raises")


class DropsWishes(AcornAdapter):
    """Sends a plain order in place of one that asks for more."""

    def _order(self, message: NewOrder) -> dict[str, object]:
        plain = super()._order(replace(message, post_only=False, good_till=None))
        return plain | {"tif": "gtc"} if message.time_in_force == "GTD" else plain


class SwapsSides(AcornAdapter):
    """Buys what it should sell, and sells what it should buy."""

    def _order(self, message: NewOrder) -> dict[str, object]:
        return super()._order(message) | {"dir": "S" if message.side == "BUY" else "B"}


class NeverEnds(AcornAdapter):
    """Lets an order rest that should end at once."""

    def _order(self, message: NewOrder) -> dict[str, object]:
        return super()._order(message) | ({"tif": "gtc"} if message.time_in_force == "IOC" else {})


class NeverSwitches(AcornAdapter):
    """Asks the venue for something else."""

    async def cancel_all_after(self, seconds: int, wire: Wire) -> None:
        await wire.ask(Request(method="GET", path="/v2/time"), lambda _: None)


class StaysOn(AcornAdapter):
    """Cannot switch it off."""

    async def cancel_all_after(self, seconds: int, wire: Wire) -> None:
        await super().cancel_all_after(seconds or 1, wire)


class HasNoSwitch(AcornAdapter):
    """Lacks a method that the descriptor declares."""

    cancel_all_after = None  # type: ignore[assignment]


def of(adapter: type[AcornAdapter]) -> Kind:
    def build(configuration: Configuration) -> AcornAdapter:
        return adapter(configuration)

    return replace(KIND, build=build)


def test_an_adapter_cannot_send_a_message_twice(tmp_path: Path) -> None:
    kind = of(SendsTwice)
    case = case_of(kind.descriptor, "a_lost_answer_is_settled_by_the_lookup_without_a_second_request")
    asyncio.run(check(case, acorn_world(tmp_path), kind))


@pytest.mark.parametrize(
    ("adapter", "message"),
    [
        (SkipsReports, "reports: in pages of one there are 2, in a large page 4"),
        (StaysBehind, "reports: a page with reports did not move the cursor 'e0'"),
    ],
)
def test_an_adapter_that_loses_its_place_in_the_reports_is_noticed(
    adapter: type[AcornAdapter], message: str, tmp_path: Path
) -> None:
    assert tried(acorn_world(tmp_path), of(adapter), "reading_resumes_after_every_page") == message


class TakesAbsenceForProof(NumberedAcorn):
    async def find(self, ref: OrderRef, wire: Wire) -> Found | NeverReceived | None:  # type: ignore[override]
        found = await super(NumberedAcorn, self).find(ref, wire)
        return found or await self._ask(
            wire, proof, "/v2/orders/lookup", pair=ref.symbol or "", ref=ref.client_order_id
        )


class TakesALostAnswerForProof(NumberedAcorn):
    async def find(self, ref: OrderRef, wire: Wire) -> Found | NeverReceived | None:  # type: ignore[override]
        return await self._ask(wire, proof, "/v2/orders/lookup", pair="PROBE", ref=ref.client_order_id)


class ForgetsOtherProcesses(NumberedAcorn):
    async def find(self, ref: OrderRef, wire: Wire) -> Found | NeverReceived | None:  # type: ignore[override]
        numbers = self.numbers.get(ref.client_order_id, [])
        return await self._ask(wire, _passed, "/v2/numbers/pass", numbers=",".join(numbers))


def proof(_response: Response) -> NeverReceived:
    return NeverReceived(evidence="nothing")


@pytest.mark.parametrize(
    ("adapter", "flags", "case"),
    [
        (TakesALostAnswerForProof, (), "a_request_that_arrived_is_never_proven_not_to_have"),
        (TakesAbsenceForProof, (), "what_is_proven_never_to_have_arrived_does_not_arrive_later"),
        (NumberedAcorn, ("--takes-passed",), "what_is_proven_never_to_have_arrived_does_not_arrive_later"),
        (ForgetsOtherProcesses, (), "a_proof_covers_every_attempt"),
        (AcornAdapter, (), "a_lost_request_is_proven_never_to_have_arrived"),
    ],
)
def test_a_wrong_proof_is_noticed(
    adapter: type[NumberedAcorn], flags: tuple[str, ...], case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "DEADLINE_SECONDS", 2.0)
    assert "sequence_proof" in tried(acorn_world(tmp_path, *flags), numbered(adapter), case)


def test_an_adapter_that_shortens_ids_is_noticed(tmp_path: Path) -> None:
    case = "ids_that_differ_in_their_last_character_are_two_orders"
    assert "order led to Ambiguous" in tried(acorn_world(tmp_path), of(ShortensIds), case)


def test_a_form_that_the_broker_does_not_take_is_noticed(tmp_path: Path) -> None:
    kind = replace(KIND, descriptor=replace(KIND.descriptor, id_form=IdForm(length_max=36)))
    said = tried(acorn_world(tmp_path), kind, "an_order_is_executed_once_and_reported_with_its_ids")
    assert "led to VenueRejected" in said


@pytest.mark.parametrize(
    ("adapter", "case", "message"),
    [
        (
            DropsWishes,
            "a_post_only_order_rests_or_ends_and_never_trades_at_once",
            "post_only: of a plain and a post-only order the world got (False, False)",
        ),
        (DropsWishes, "a_gtd_order_ends_at_its_time", "the world got None"),
        (NeverEnds, "every_declared_type_and_time_in_force_is_taken_as_it_was_ordered", "LIMIT IOC order"),
        (SwapsSides, "every_declared_type_and_time_in_force_is_taken_as_it_was_ordered", "LIMIT GTC order"),
        (StaysOn, "a_switch_that_is_not_renewed_cancels_every_open_order", "left the order CANCELED"),
    ],
)
def test_an_adapter_that_drops_what_an_order_asks_for_is_noticed(
    adapter: type[AcornAdapter], case: str, message: str, tmp_path: Path
) -> None:
    assert message in tried(acorn_world(tmp_path), of(adapter), case)


def test_a_switch_that_is_never_set_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "DEADLINE_SECONDS", 6.0)  # otherwise the case waits long for a report
    said = tried(acorn_world(tmp_path), of(NeverSwitches), "a_switch_that_is_not_renewed_cancels_every_open_order")
    assert "cancel_all_after: no report shows that the order is CANCELED" in said


def test_a_declared_part_that_the_adapter_lacks_is_not_tried(tmp_path: Path) -> None:
    kind = replace(KIND, build=HasNoSwitch)
    with pytest.raises(SettingError, match="declares `cancel_all_after`, and its adapter has no such method"):
        asyncio.run(check(cases_of(kind.descriptor)[0], acorn_world(tmp_path), kind))


def test_an_adapter_that_drops_an_unreadable_report_is_noticed(tmp_path: Path) -> None:
    said = tried(acorn_world(tmp_path), of(DropsUnreadable), "an_unreadable_report_holds_up_no_other")
    assert said == "reports: unreadable are []"


def test_an_adapter_that_cannot_learn_the_time_of_its_venue_is_noticed(tmp_path: Path) -> None:
    said = tried(acorn_world(tmp_path), of(NeverLearns), "a_wrong_clock_of_ours_changes_nothing")
    assert "with a clock that is -1 day, 23:00:00 ahead, the venue's time is never learnt" in said


def test_a_descriptor_that_contradicts_itself_is_not_tried(tmp_path: Path) -> None:
    kind = declaring(acceptance_window=None)
    with pytest.raises(SettingError, match="request_expiry"):
        asyncio.run(check(cases_of(kind.descriptor)[0], acorn_world(tmp_path), kind))
