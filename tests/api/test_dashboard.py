"""The dashboard: what is served, under which policy, and what its scripts read."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from switchyard.domain.errors import SettingError
from switchyard.entrypoints.http.reference.bundle import document
from switchyard.entrypoints.web.routes import REPORTS, media_type, page_files
from switchyard.settings import load_settings
from tests.support.books import KEEPS_BOOKS, running_backoffice_api
from tests.support.gateway import RunningGateway, running_gateway
from tests.support.polling import until
from tests.support.ports import free_port

BROWSER = {"Accept": "text/html,*/*;q=0.8"}
SCRIPTS = {name: content.decode() for name, content in page_files().items() if name.endswith(".js")}
# Every way in which a script turns a text into markup, a script, or an address that runs one.
FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|createContextualFragment|setHTML|srcdoc|\beval\b"
    r"|new Function|javascript:|\.src\s*=|\.href\s*=|window\.open|localStorage|document\.cookie|parseFloat"
)


class Markup(HTMLParser):
    """What a browser would load and run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.inline: list[str] = []
        self.ids: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.loaded += [values["src"]] if "src" in values else [values["href"]] if tag == "link" else []
        self.ids += [values["id"]] if "id" in values else []
        has_code = tag == "style" or (tag == "script" and "src" not in values)
        if has_code or "style" in values or any(name.startswith("on") for name in values):
            self.inline.append(self.get_starttag_text() or tag)


async def test_the_page_is_served_without_a_token_under_a_policy_that_allows_only_its_own_files(
    embedded: RunningGateway,
) -> None:
    answers = [await embedded.request("GET", path, account=None, headers=BROWSER) for path in ("/dashboard", "/")]
    assert answers[0].body == answers[1].body
    for answer in answers:
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        policy = dict(part.strip().partition(" ")[::2] for part in answer.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert {policy[name] for name in ("script-src", "style-src", "connect-src")} == {"'self'"}
        assert {policy[name] for name in ("base-uri", "form-action", "frame-ancestors", "trusted-types")} == {"'none'"}
        assert policy["require-trusted-types-for"] == "'script'"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["cache-control"] == "no-store"
    page = Markup(answers[0].body.decode())
    assert page.inline == []
    assert page.loaded == ["data:,", "/dashboard/page.css", "/dashboard/page.js"]
    for path in page.loaded[1:]:
        served = await embedded.get(path, account=None)
        assert served.headers["content-type"] == media_type(path)
    style = page_files()["page.css"].decode()
    assert "url(" not in style
    assert "@import" not in style


async def test_every_script_is_served_and_imports_only_scripts_that_are(embedded: RunningGateway) -> None:
    for name, text in SCRIPTS.items():
        served = await embedded.get(f"/dashboard/{name}", account=None)
        assert (served.body.decode(), served.headers["content-type"]) == (text, "text/javascript; charset=utf-8")
        imported = re.findall(r'\bfrom "([^"]*)"', text)
        assert {path.removeprefix("./") for path in imported} <= SCRIPTS.keys(), name
    for missing in ("page.html", "nothing.js", "..%2froutes.py", "routes.py"):
        assert (await embedded.get(f"/dashboard/{missing}", account=None)).status == 404


def test_no_script_can_turn_a_text_into_markup_or_money_into_a_float() -> None:
    found = {name: FORBIDDEN.findall(text) for name, text in SCRIPTS.items()}
    assert {name: words for name, words in found.items() if words} == {}
    # `setAttribute` is called in one place, and no name of an attribute comes from an answer.
    assert [name for name, text in SCRIPTS.items() if "setAttribute" in text] == ["dom.js"]


def test_every_element_that_a_script_uses_is_on_the_page() -> None:
    ids = Markup(page_files()["page.html"].decode()).ids
    assert len(set(ids)) == len(ids)
    used = {found for text in SCRIPTS.values() for found in re.findall(r'\bat\("([^"]+)"\)|state: "([^"]+)"', text)}
    assert {one or other for one, other in used} <= set(ids)


def reads() -> dict[str, list[str]]:
    """The members that the scripts read, by the path of the request, or the stream and its event."""
    text = SCRIPTS["reads.js"]
    declared: dict[str, list[str]] = json.loads(text[text.index("{\n") : text.rindex("}") + 1])
    return declared


def answer_of(path: str) -> Any:
    """The contract's schema of an answer."""
    paths = document()["paths"]
    if path.startswith("/stream "):
        messages = paths["/stream"]["get"]["responses"]["200"]["content"]["text/event-stream"]["x-messages"]
        return messages[path.removeprefix("/stream ")]
    if path.startswith("/dashboard/books/"):
        path = REPORTS[path.removeprefix("/dashboard/books/")]
    return paths[path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]


def has_member(schema: Any, steps: list[str]) -> bool:
    if "$ref" in schema:
        target: Any = document()
        for step in schema["$ref"].removeprefix("#/").split("/"):
            target = target[step]
        return has_member(target, steps)
    if not steps:
        return True
    if any(has_member(each, steps) for name in ("anyOf", "allOf") for each in schema.get(name, ())):
        return True
    child = {
        "[]": schema.get("items"),
        "*": schema.get("additionalProperties"),
    }.get(steps[0], schema.get("properties", {}).get(steps[0]))
    return isinstance(child, dict) and has_member(child, steps[1:])


@pytest.mark.parametrize("path", reads())
def test_every_member_that_the_page_reads_is_in_the_contract(path: str) -> None:
    schema = answer_of(path)
    steps = {member: re.findall(r"\[\]|[^.\[\]]+", member) for member in reads()[path]}
    assert [member for member in steps if not has_member(schema, steps[member])] == []
    assert not has_member(schema, ["no such member"])


def test_the_page_reads_only_what_is_declared_and_metrics_that_exist() -> None:
    called = {path for text in SCRIPTS.values() for path in re.findall(r'\bget\("(/[^"]+)"', text)}
    assert called == {path for path in reads() if not path.startswith("/stream ")}
    table = Path(__file__).parents[2].joinpath("docs/reference/metrics.md").read_text()
    metrics = {name for text in SCRIPTS.values() for name in re.findall(r'metricValue\([^"]*"(\w+)"\)', text)}
    assert metrics
    assert [name for name in metrics if f"`{name}`" not in table] == []


async def test_the_books_are_read_at_the_gateways_address_with_the_same_tokens(tmp_path: Path) -> None:
    async with (
        running_gateway(tmp_path, **KEEPS_BOOKS, SWITCHYARD_BACKOFFICE_PORT="0") as gateway,
        running_backoffice_api(gateway) as office,
    ):
        order_id = (await gateway.place()).json["orderId"]
        await gateway.until_status(order_id, "FILLED")

        async def is_booked() -> bool:
            return bool((await gateway.get("/dashboard/books/positions")).json["positions"])

        await until(is_booked)
        for report in ("positions", "balances", "pnl?by=day&limit=10"):
            here = await gateway.get(f"/dashboard/books/{report}")
            assert here.json == (await office.get(f"/{report}")).json, report
        for path, status in {
            "balances?accountId=other": 404,
            "balances?colour=red": 422,
            "breaks": 403,
            "ledger": 404,
            "metrics": 404,
        }.items():
            assert (await gateway.request("GET", f"/dashboard/books/{path}", check=False)).status == status, path
        operator = {"Authorization": f"Bearer {gateway.token(scopes=['admin:reconcile'])}"}
        assert (await gateway.request("GET", "/dashboard/books/breaks", headers=operator)).json["breaks"] == []
        assert (await gateway.get("/dashboard/books/balances", account=None)).status == 401
        assert (await gateway.request("POST", "/dashboard/books/breaks", body={}, check=False)).status == 405


async def test_a_gateway_without_books_asks_the_back_office_of_its_settings(tmp_path: Path) -> None:
    async with (
        running_gateway(tmp_path / "books", **KEEPS_BOOKS, SWITCHYARD_BACKOFFICE_PORT="0") as keeper,
        running_backoffice_api(keeper) as office,
        running_gateway(tmp_path / "page", SWITCHYARD_DASHBOARD_BOOKS_URL=office.url) as gateway,
    ):
        await keeper.until_status((await keeper.place(account="a&b")).json["orderId"], "FILLED", account="a&b")

        async def is_booked() -> bool:
            return bool((await gateway.get("/dashboard/books/positions", "a&b")).json["positions"])

        await until(is_booked)
        for report in ("balances", "pnl?by=day&limit=10", "balances?accountId=a%26b&limit=1"):
            answers = [await gateway.get(f"/dashboard/books/{report}", "a&b"), await office.get(f"/{report}", "a&b")]
            assert [answer.status for answer in answers] == [200, 200]
            assert answers[0].body == answers[1].body
        for path, status in {"balances?accountId=other": 404, "balances?limit=0": 422, "breaks": 403}.items():
            assert (await gateway.get(f"/dashboard/books/{path}")).status == status
        # A wrong token is rejected here: the back office would count it against this gateway's address.
        wrong = {"Authorization": "Bearer a.b.c"}
        assert (await gateway.request("GET", "/dashboard/books/balances", headers=wrong)).status == 401


async def test_a_back_office_that_is_away_is_named(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    async with running_gateway(tmp_path, SWITCHYARD_DASHBOARD_BOOKS_URL=url) as gateway:
        answer = await gateway.get("/dashboard/books/stats")
        assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        assert "SWITCHYARD_DASHBOARD_BOOKS_URL" in answer.json["message"]


@pytest.mark.parametrize("url", ["backoffice:8082", "ftp://host", "http://ann:pw@host", "http://host/books", "http://"])
def test_the_back_offices_url_must_be_that_of_a_server(url: str) -> None:
    with pytest.raises(SettingError, match="SWITCHYARD_DASHBOARD_BOOKS_URL"):
        load_settings({"SWITCHYARD_DASHBOARD_BOOKS_URL": url})


async def test_a_process_without_books_says_so(embedded: RunningGateway) -> None:
    assert (await embedded.get("/dashboard/books/balances")).json["reason"] == "NOT_FOUND"


async def test_the_dashboard_can_be_turned_off(tmp_path: Path) -> None:
    async with running_gateway(tmp_path, SWITCHYARD_DASHBOARD="false") as gateway, aiohttp.ClientSession() as session:
        for path in ("/dashboard", "/dashboard/page.js", "/dashboard/books/balances"):
            async with session.get(gateway.url + path) as response:
                assert response.status == 404
        front = await gateway.request("GET", "/", account=None, headers=BROWSER)
        assert b"placeOrder" in front.body
