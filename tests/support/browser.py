"""A real Chromium without a window, driven over its DevTools protocol; needs Debian's package `chromium`."""

import asyncio
import itertools
import json
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from tests.support.polling import until

# A page of a slow machine; the protocol itself answers in milliseconds.
CALL_SECONDS_MAX = 30.0


class Tab:
    """One page, with everything that it requested and complained about."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse, session: str) -> None:
        self._socket = socket
        self._session = session
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.requests: list[dict[str, Any]] = []
        """Each with `url` and `headers`."""
        self.complaints: list[str] = []
        """Exceptions of scripts, and what the browser blocked by the page's policy."""

    async def call(self, method: str, **parameters: Any) -> Any:
        """Call a method of the protocol."""
        number = next(self._numbers)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json({"id": number, "method": method, "params": parameters, "sessionId": self._session})
        return await asyncio.wait_for(answer, CALL_SECONDS_MAX)

    async def read(self) -> None:
        """Take answers and events until the connection ends."""
        async for message in self._socket:
            body = json.loads(message.data)
            if "id" in body:
                self._answers.pop(body["id"]).set_result(body.get("result", body))
            elif body["method"] == "Network.requestWillBeSent":
                self.requests.append(body["params"]["request"])
            elif body["method"] == "Runtime.exceptionThrown":
                self.complaints.append(body["params"]["exceptionDetails"]["text"])
            elif body["method"] == "Log.entryAdded" and body["params"]["entry"]["source"] == "security":
                self.complaints.append(body["params"]["entry"]["text"])

    async def open(self, url: str) -> None:
        """Load a page."""
        for domain in ("Page", "Network", "Runtime", "Log"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=url)
        await self.until("document.readyState === 'complete'")

    async def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = await self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until an expression is true."""
        text = ""

        async def is_true() -> bool:
            nonlocal text
            if await self.run(f"Boolean({script})"):
                return True
            text = await self.run("document.body.innerText")
            return False

        await until(is_true, lambda: f"{script}\n{self.complaints}\n{text}", pause_seconds=0.05)

    async def text(self, selector: str) -> str:
        """The text of an element."""
        return str(await self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    async def texts(self, selector: str) -> list[str]:
        """The texts of all such elements."""
        found = await self.run(
            f"[...document.querySelectorAll({json.dumps(selector)})].map((each) => each.textContent)"
        )
        return list(found)

    async def click(self, selector: str) -> None:
        """Click an element."""
        await self.run(f"document.querySelector({json.dumps(selector)}).click()")


@asynccontextmanager
async def opened_tab(folder: Path, url: str, *, width: int = 1360, height: int = 900) -> AsyncIterator[Tab]:
    """Start a browser of its own and open a page."""
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert program is not None, "make test-browser needs a browser: apt-get install chromium"
    browser = await asyncio.create_subprocess_exec(
        program,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--remote-debugging-port=0",
        f"--user-data-dir={folder / 'browser'}",
        f"--window-size={width},{height}",
        "about:blank",
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert browser.stderr is not None
    try:
        async with asyncio.timeout(CALL_SECONDS_MAX):
            address = None
            while address is None:
                line = (await browser.stderr.readline()).decode()
                assert line, "the browser ended before it listened"
                address = re.search(r"DevTools listening on (ws://\S+)", line)
        drain = asyncio.create_task(browser.stderr.read())
        async with aiohttp.ClientSession() as session, session.ws_connect(address[1], max_msg_size=0) as socket:
            tab = await _new_tab(socket)
            reader = asyncio.create_task(tab.read())
            await tab.open(url)
            try:
                yield tab
            finally:
                reader.cancel()
                drain.cancel()
                await asyncio.gather(reader, drain, return_exceptions=True)
    finally:
        if browser.returncode is None:
            browser.kill()
        await browser.wait()


async def _new_tab(socket: aiohttp.ClientWebSocketResponse) -> Tab:
    async def call(number: int, method: str, **parameters: Any) -> Any:
        await socket.send_json({"id": -number, "method": method, "params": parameters})
        while (answer := await socket.receive_json()).get("id") != -number:
            pass
        return answer["result"]

    target = await call(1, "Target.createTarget", url="about:blank")
    attached = await call(2, "Target.attachToTarget", targetId=target["targetId"], flatten=True)
    return Tab(socket, attached["sessionId"])
