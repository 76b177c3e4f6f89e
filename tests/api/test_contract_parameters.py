"""Parameters for which the contract says exactly what the server accepts: times, venues and cursors."""

import re
from datetime import date
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from switchyard.domain.errors import InvalidField
from switchyard.entrypoints.http.queries import instant
from tests.support.contract import FOLDER, OPENAPI
from tests.support.gateway import RunningGateway

CONTRACT: dict[str, Any] = yaml.safe_load((FOLDER / OPENAPI).read_text("utf-8"))
TIME: str = CONTRACT["components"]["schemas"]["Time"]["pattern"]

TIMES = {
    "2025-03-04T09:30:00Z": True,
    "2025-03-04T09:30:00.123456+09:00": True,
    "2025-03-04T09:30:00 09:00": True,
    "2025-03-04T09:30": True,
    "2025-03-04": True,
    "0": True,
    "1741080600": True,
    "1741080600.5": True,
    "1741080600000": True,
    "": False,
    "yesterday": False,
    "2025-W10-2": False,
    "20250304": True,  # a Unix time
    "20250304T093000Z": False,
    "2025-03-04 09:30:00": False,
    "2025-13-01": False,
    "2025-03-04T25:00:00Z": False,
    "2025-03-04T09:30:00.1234567Z": False,
    "2025-03-04t09:30:00z": False,
    "9999-12-31T23:59:59.999999Z": False,
    "0001-01-01": False,
    "123456789012": False,
    "99999999999999999999": False,
    "1e3": False,
    "-1": False,
    "+1": False,
    "1.": False,
    ".5": False,
    "\u0661": False,
    "1\n": False,
    "NaN": False,
}


def is_accepted(text: str) -> bool:
    try:
        instant({"since": text}, "since")
    except InvalidField as error:
        assert error.field == "since"
        return False
    return True


def in_contract(text: str) -> bool:
    return re.fullmatch(TIME.removeprefix("^").removesuffix("$"), text) is not None


@pytest.mark.parametrize(("text", "accepted"), TIMES.items())
def test_contract_and_server_agree_about_a_time(text: str, accepted: bool) -> None:
    assert (in_contract(text), is_accepted(text)) == (accepted, accepted)


@given(st.from_regex(re.compile(TIME), fullmatch=True))
def test_the_server_accepts_every_time_of_the_contract_whose_date_exists(text: str) -> None:
    try:
        exists = "-" not in text or bool(date.fromisoformat(text[:10]))
    except ValueError:
        exists = False
    assert is_accepted(text) == (exists and in_contract(text))


@given(st.text("0123456789-:.TZ+ WtzeE", max_size=24))
def test_the_server_rejects_every_other_text(text: str) -> None:
    assert in_contract(text) or not is_accepted(text)


def test_the_last_time_of_the_contract_is_a_page_and_no_error() -> None:
    assert is_accepted("9899-12-31T23:59:59.999999-23:59") and is_accepted("1000-01-01T00:00:00+23:59")


@pytest.mark.parametrize("venue", ["nowhere", "si m", "", "1sim", "sim\n", "s\u00efm", "sim,sim"])
async def test_the_server_rejects_a_venue_that_the_contract_does_not_have(embedded: RunningGateway, venue: str) -> None:
    headers = {"Authorization": f"Bearer {embedded.token(scopes=['admin:kill'])}"}
    kill = {"venue": venue, "reason": "test"}
    for path, body in (("/orders/cancel-all", {"venue": venue}), ("/admin/kill", kill)):
        answer = await embedded.request("POST", path, headers=headers, body=body)
        assert (answer.status, answer.json["field"]) == (422, "venue")


@pytest.mark.parametrize(
    "number", ["0.000000001", "1.123456789", "1000000000000000", "0", "-1", "1e-9", "1e400", "NaN"]
)
async def test_the_server_rejects_amounts_that_the_contract_excludes(embedded: RunningGateway, number: str) -> None:
    body = f'{{"symbol":"USDJPY","side":"BUY","type":"LIMIT","qty":1000,"price":{number}}}'.encode()
    answer = await embedded.request("POST", "/orders", body=body)
    assert answer.status in (400, 422), answer.body
    body = f'{{"symbol":"USDJPY","side":"BUY","type":"MARKET","qty":{number}}}'.encode()
    assert (await embedded.request("POST", "/orders", body=body)).status in (400, 422)
