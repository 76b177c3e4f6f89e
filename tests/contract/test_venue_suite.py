"""The public contract suite: the example plugin passes it, and a declaration that promises too much fails its case."""

import asyncio
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TypeVar
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
    Kind,
    Message,
    NewOrder,
    Request,
    Response,
    Wire,
)
from switchyard.venue.interface import Meaning, Page, Report
from tests.support.acorn import KIND, AcornAdapter, AcornWorld, acorn_world

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
    said = tried(acorn_world(tmp_path, "--forgets-closed"), KIND, case)
    assert "lookup=all: an order that" in said and "is not found" in said


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


class DropsWishes(AcornAdapter):
    """Sends a plain order in place of one that asks for more."""

    def _order(self, message: NewOrder) -> dict[str, object]:
        plain = super()._order(replace(message, post_only=False, good_till=None))
        return plain | {"tif": "gtc"} if message.time_in_force == "GTD" else plain


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


@pytest.mark.parametrize(
    ("adapter", "case", "message"),
    [
        (
            DropsWishes,
            "a_post_only_order_rests_or_ends_and_never_trades_at_once",
            "post_only: of a plain and a post-only order the world got (False, False)",
        ),
        (DropsWishes, "a_gtd_order_ends_at_its_time", "the world got None"),
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


def test_a_world_that_does_not_show_what_it_got_proves_nothing(tmp_path: Path) -> None:
    class BlindWorld(AcornWorld):
        received = None  # type: ignore[assignment]

    said = tried(BlindWorld(tmp_path), KIND, "a_gtd_order_ends_at_its_time")
    assert "it needs the method `received`" in said


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
