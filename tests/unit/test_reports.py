"""Execution ids are made unique within their venue, whatever scope the venue declares."""

from msgspec.structs import replace

from switchyard.domain.orders.reports import ExecutionIdScope, with_unique_id
from tests.support.build import a_report, an_accept, state_after

REPORT = a_report(state_after(an_accept(client_id="client-1")), exec_id="7")


def unique_id(scope: ExecutionIdScope, symbol: str | None = "USDJPY", exec_id: str = "7") -> str:
    return with_unique_id(replace(REPORT, exec_id=exec_id), scope, symbol).exec_id


def test_an_id_is_qualified_by_its_scope() -> None:
    assert unique_id("venue") == "7"
    assert unique_id("symbol") == "USDJPY:7"
    assert unique_id("order") == "client-1:7"


def test_a_reference_to_an_execution_is_qualified_like_its_id() -> None:
    correction = replace(REPORT, exec_type="CORRECT", ref_exec_id="6")
    assert with_unique_id(correction, "venue", "USDJPY").ref_exec_id == "6"
    assert with_unique_id(correction, "symbol", "USDJPY").ref_exec_id == "USDJPY:6"
    assert with_unique_id(correction, "order", "USDJPY").ref_exec_id == "client-1:6"


def test_without_a_known_order_the_client_order_id_replaces_the_symbol() -> None:
    assert unique_id("symbol", symbol=None) == "client-1:7"


def test_a_colon_in_a_symbol_or_an_id_does_not_make_ids_equal() -> None:
    assert unique_id("symbol", symbol="A:B", exec_id="C") != unique_id("symbol", symbol="A", exec_id="B:C")
    assert unique_id("symbol", symbol="A%3AB") != unique_id("symbol", symbol="A:B")
