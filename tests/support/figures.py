"""Reads the metrics of a process, as Prometheus does."""

import asyncio

import aiohttp
from prometheus_client.parser import text_string_to_metric_families


def figures_of(page: str) -> dict[str, float]:
    """Each metric summed over its labels, under its name; `name{value}` is the sample of one label value."""
    figures: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            figures[sample.name] = figures.get(sample.name, 0.0) + sample.value
            for value in sample.labels.values():
                figures[f"{sample.name}{{{value}}}"] = sample.value
    return figures


async def scrape_anew(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """The metrics at this address, rendered after this call: a page is kept for a second."""
    first: str | None = None
    while True:
        async with session.get(f"{url}/metrics") as response:
            assert response.status == 200
            figures = figures_of(await response.text())
        if first is not None and response.headers["ETag"] != first:
            return figures
        first = response.headers["ETag"]
        await asyncio.sleep(0.05)


async def scrape(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    """The metrics at this address, as of the last second."""
    async with session.get(f"{url}/metrics") as response:
        assert response.status == 200
        return figures_of(await response.text())
