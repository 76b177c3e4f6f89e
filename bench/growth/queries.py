"""Reads orders over HTTP, one request after the other, and measures each."""

import time
from collections.abc import Sequence
from http.client import HTTPConnection
from itertools import cycle, islice
from typing import Any
from urllib.parse import urlsplit

import msgspec

from bench.processes import BenchError

PAGE = 500
# One account's orders of all ages: with 16 accounts, those of about 1.6 million orders.
PAGES_MAX = 200


class OrderQueries:
    """The queries of one measurement, on one connection."""

    def __init__(self, url: str, bearer: Sequence[str]) -> None:
        self._connection = HTTPConnection(urlsplit(url).netloc)
        self._bearer = bearer

    def times_of_lists(self, count: int) -> list[float]:
        """Milliseconds of each of so many requests for the newest orders of an account."""
        return [self._get("/orders", bearer)[0] for bearer in islice(cycle(self._bearer), count)]

    def times_of_orders(self, count: int) -> list[float]:
        """Milliseconds of each of so many requests for one order, evenly from the oldest to the newest."""
        ids = self._ids(self._bearer[0])
        chosen = [ids[number * len(ids) // count] for number in range(count)]
        return [self._get(f"/orders/{order_id}", self._bearer[0])[0] for order_id in chosen]

    def _ids(self, bearer: str) -> list[str]:
        ids: list[str] = []
        path = f"/orders?limit={PAGE}"
        for _ in range(PAGES_MAX):
            _, page = self._get(path, bearer)
            ids += [order["orderId"] for order in page["orders"]]
            if page["nextCursor"] is None:
                break
            path = f"/orders?limit={PAGE}&cursor={page['nextCursor']}"
        return ids

    def _get(self, path: str, bearer: str) -> tuple[float, Any]:
        started = time.perf_counter()
        self._connection.request("GET", path, headers={"Authorization": f"Bearer {bearer}"})
        response = self._connection.getresponse()
        body = response.read()
        took_ms = (time.perf_counter() - started) * 1e3
        if response.status != 200:
            raise BenchError(f"GET {path}: {response.status} {body.decode('utf-8', 'replace')}")
        return took_ms, msgspec.json.decode(body)
