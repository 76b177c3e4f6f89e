"""Metrics as a scrape would read them."""

import aiohttp
from prometheus_client.parser import text_string_to_metric_families


def figures_of(page: str) -> dict[str, float]:
    """Every sample by its name, summed over its labels; `name{label}` has those of one label value."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
            for value in sample.labels.values():
                found[f"{sample.name}{{{value}}}"] = sample.value
    return found


async def scrape(session: aiohttp.ClientSession, url: str) -> dict[str, float]:
    async with session.get(f"{url}/metrics") as response:
        assert response.status == 200
        return figures_of(await response.text())
