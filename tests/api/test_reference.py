"""The API reference: the page at `/` and `/docs`, and the contract as one document."""

import asyncio
import json
import re
import shutil
from html.parser import HTMLParser
from typing import Any

import aiohttp
import pytest
import yaml
from jsonschema import Draft202012Validator

from switchyard import __version__
from switchyard.entrypoints.http.reference.bundle import document
from switchyard.flow.kill.switch import KillRequest
from tests.support.bundled import body_examples, references
from tests.support.contract_files import operations
from tests.support.gateway import RunningGateway
from tests.support.pdca import pdca_token, tell_story
from tests.support.process import clean_environment, run_command


class Page(HTMLParser):
    """What the page contains, as a browser would see it."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.inline: list[str] = []
        self.words = ""
        self.commands: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        if "id" in values:
            self.ids.append(values["id"])
        if tag == "a":
            self.links.append(values["href"])
        if tag == "link":
            self.loaded.append(values["href"])
        if "src" in values:
            self.loaded.append(values["src"])
        if tag in ("style", "script") or "style" in values or any(name.startswith("on") for name in values):
            self.inline.append(self.get_starttag_text() or tag)

    def handle_data(self, data: str) -> None:
        self.words += data
        if data.startswith("curl "):
            self.commands.append(data)


async def page(gateway: RunningGateway, path: str = "/docs") -> Page:
    answer = await gateway.request("GET", path, account=None, headers={"Accept": "text/html,*/*;q=0.8"})
    assert (answer.status, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "style-src 'self';" in answer.headers["content-security-policy"]
    assert "unsafe" not in answer.headers["content-security-policy"]
    return Page(answer.body.decode())


async def test_the_page_needs_no_token_and_loads_nothing_but_its_own_style_sheet(embedded: RunningGateway) -> None:
    shown = await page(embedded)
    assert shown.loaded == ["/docs/reference.css", "data:,"]
    assert shown.inline == []  # a Content-Security-Policy without 'unsafe-inline' would block it
    assert [link for link in shown.links if not link.startswith(("#", "/"))] == []
    style = await embedded.get("/docs/reference.css", account=None)
    assert style.headers["content-type"] == "text/css; charset=utf-8"
    assert b"url(" not in style.body
    assert b"@import" not in style.body


async def test_the_page_shows_every_operation_and_schema_and_its_links_work(embedded: RunningGateway) -> None:
    shown = await page(embedded)
    assert len(set(shown.ids)) == len(shown.ids)
    for path, _, method, operation in operations():
        assert operation["operationId"] in shown.ids
        assert f"{method.upper()} {path}" in shown.words
        assert operation["summary"] in shown.words
    for name in document()["components"]["schemas"]:
        assert f"schema-{name}" in shown.ids
    anchors = {link.removeprefix("#") for link in shown.links if link.startswith("#")}
    assert anchors <= set(shown.ids)
    for link in {link for link in shown.links if link.startswith("/")}:
        assert (await embedded.get(link, account=None)).status == 200


async def test_the_commands_of_the_page_can_be_pasted(embedded: RunningGateway) -> None:
    if shutil.which("curl") is None:
        pytest.fail("the commands of the page need curl, as those of the README: install Debian's package `curl`")
    shown = await page(embedded)
    assert len(shown.commands) == len(list(operations()))
    order_id = (await embedded.place()).json["orderId"]
    await tell_story(embedded.engine.pdca.store)
    kill = await embedded.engine.kill_switch.set(KillRequest(symbol="EURUSD", by="ann", reason="drill"))
    for command in shown.commands:
        if "/stream" in command or "$BACKOFFICE" in command or "/books/" in command or "/pdca/artifacts/" in command:
            # It does not end; it is not served here, without books; its URL has to be signed.
            continue
        pasted = command.replace("ord_01JCQ8Z4M0W6T1V9K3X5R7N2BD", order_id).replace("acct-1", "demo")
        pasted = pasted.replace("kill_01JCQ8Z4M0W6T1V9K3X5R7N2BD", kill.kill_id)
        environment = clean_environment(
            URL=embedded.url, TOKEN=embedded.token(scopes=["admin:kill"]), PDCA_TOKEN=pdca_token(embedded.engine)
        )
        process = await asyncio.create_subprocess_shell(
            f"{pasted} -o /dev/null -w '%{{http_code}}'", env=environment, stdout=asyncio.subprocess.PIPE
        )
        status, _ = await process.communicate()
        # The order may be final when it is canceled, and is when it is amended.
        assert status in ((b"202", b"409") if "/cancel" in command else (b"200", b"201", b"202")) or (
            "PATCH" in command and status in (b"409", b"422")
        ), command


async def test_a_client_that_is_no_browser_gets_an_index_at_the_root(embedded: RunningGateway) -> None:
    index = await embedded.get("/", account=None)
    assert index.json["version"] == __version__
    for path in (index.json["docs"], index.json["health"], *index.json["openapi"]):
        assert (await embedded.get(path, account=None)).status == 200


async def test_the_served_documents_are_equal_and_have_no_reference_to_another_file(embedded: RunningGateway) -> None:
    served = (await embedded.get("/openapi.json", account=None)).json
    as_yaml = await embedded.get("/openapi.yaml", account=None)
    assert yaml.safe_load(as_yaml.body) == served
    assert served["openapi"] == "3.1.0"
    found = list(references(served))
    assert len(found) > 100
    for reference in found:
        target: Any = served
        assert reference.startswith("#/components/")
        for step in reference.removeprefix("#/").split("/"):
            target = target[step]
    # Keywords of a file of its own would change how the references in it resolve.
    assert re.search(r'"\$(id|defs|schema)":', json.dumps(served)) is None


def test_the_examples_are_valid_in_the_bundled_document() -> None:
    bundled = document()
    checked = 0
    for pointer, schema, example in body_examples(bundled):
        validator = Draft202012Validator(
            {**schema, "components": bundled["components"]}, format_checker=Draft202012Validator.FORMAT_CHECKER
        )
        assert [error.message for error in validator.iter_errors(example)] == [], pointer
        checked += 1
    assert checked > 50


@pytest.mark.parametrize(("option", "load"), [("json", json.loads), ("yaml", yaml.safe_load)])
async def test_the_command_prints_the_document_that_the_gateway_serves(
    embedded: RunningGateway, option: str, load: Any
) -> None:
    printed = run_command("openapi", "--format", option)
    assert (printed.returncode, printed.stderr) == (0, "")
    assert load(printed.stdout) == (await embedded.get("/openapi.json", account=None)).json


async def test_the_reference_has_no_other_methods(embedded: RunningGateway) -> None:
    async with aiohttp.ClientSession() as session:
        for path in ("/", "/docs", "/openapi.json"):
            async with session.post(embedded.url + path, json={}) as response:
                assert response.status == 405
            async with session.head(embedded.url + path) as response:
                assert response.status == 200
