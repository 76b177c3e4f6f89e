"""A real Prometheus on the rules of `ops/prometheus`, with their durations scaled down."""

import asyncio
import math
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml

from tests.support.operations import PROMETHEUS
from tests.support.polling import until
from tests.support.ports import free_port

# A scrape and an evaluation a second; rates need a few samples, and an alert must end soon after its cause.
SCRAPE_SECONDS = 1
WINDOW = "15s"
# The first samples of a start, such as a venue that is not synchronised yet, are no alert.
FOR = "3s"


class PrometheusServer:
    """One server, in a folder of its own; needs `prometheus` on the PATH."""

    def __init__(self, folder: Path, targets: list[str]) -> None:
        self._folder = folder
        self._port = free_port()
        self._targets = targets
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Self:
        binary = shutil.which("prometheus")
        assert binary is not None, "prometheus is not installed: apt-get install prometheus"
        self._folder.mkdir(parents=True)
        for path in (PROMETHEUS / "rules").glob("*.yml"):
            (self._folder / path.name).write_text(scaled(path.read_text("utf-8")), "utf-8")
        config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text("utf-8"))
        config["global"] = {"scrape_interval": f"{SCRAPE_SECONDS}s", "evaluation_interval": f"{SCRAPE_SECONDS}s"}
        config["global"]["scrape_timeout"] = f"{SCRAPE_SECONDS}s"
        config["rule_files"] = ["*.yml"]
        [job] = config["scrape_configs"]
        job["static_configs"] = [{"targets": [url.removeprefix("http://") for url in self._targets]}]
        (self._folder / "prometheus.yaml").write_text(yaml.safe_dump(config), "utf-8")
        with (self._folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    binary,
                    "--config.file=prometheus.yaml",
                    f"--web.listen-address=127.0.0.1:{self._port}",
                    "--storage.tsdb.path=data",
                ],
                cwd=self._folder,
                stdout=log,
                stderr=log,
            )
        return self

    async def firing(self, session: aiohttp.ClientSession) -> set[str]:
        """The alerts that fire now."""
        alerts = (await self._get(session, "alerts"))["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    async def values(self, session: aiohttp.ClientSession, query: str) -> list[float]:
        """The values of a query now."""
        found = await self._get(session, "query", query=query)
        return [float(sample["value"][1]) for sample in found["result"]]

    async def over_time(self, session: aiohttp.ClientSession, query: str, began: float) -> list[float]:
        """All values of a query since a time, second by second, as a panel draws them."""
        span = {"start": f"{began}", "end": f"{time.time()}", "step": "1"}
        found = await self._get(session, "query_range", query=query, **span)
        values = [float(value) for series in found["result"] for _, value in series["values"]]
        return [value for value in values if not math.isnan(value)]

    async def until_firing(self, session: aiohttp.ClientSession, *names: str, seconds_max: float = 90) -> None:
        """Wait until all of these alerts fire."""
        await self._until(session, lambda firing: set(names) <= firing, f"{names} do not fire", seconds_max)

    async def until_quiet(self, session: aiohttp.ClientSession, *allowed: str, seconds_max: float = 120) -> None:
        """Wait until no other alert fires."""
        await self._until(session, lambda firing: firing <= set(allowed), "they do not end", seconds_max)

    async def _until(self, session: aiohttp.ClientSession, is_right: Any, problem: str, seconds_max: float) -> None:
        firing: set[str] = set()

        async def look() -> bool:
            firing.clear()
            firing.update(await self.firing(session))
            return bool(is_right(firing))

        await until(look, lambda: f"{problem}; firing: {sorted(firing)}", seconds_max=seconds_max, pause_seconds=0.5)

    async def _get(self, session: aiohttp.ClientSession, path: str, **query: str) -> Any:
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}"
        for _ in range(60):  # until it listens
            try:
                async with session.get(url, params=query) as response:
                    answer = await response.json()
                assert answer["status"] == "success", (query, answer)
                return answer["data"]
            except aiohttp.ClientError:
                await asyncio.sleep(0.5)
        raise AssertionError((self._folder / "log").read_text("utf-8"))

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def scaled(rules: str) -> str:
    """The rules with short windows and durations."""
    return re.sub(r"^( +for: ).*$", rf"\g<1>{FOR}", re.sub(r"\[(\d+[mh])\]", f"[{WINDOW}]", rules), flags=re.MULTILINE)
