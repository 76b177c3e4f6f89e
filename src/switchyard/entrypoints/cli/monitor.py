"""Reads the probes and metrics of a process, for `doctor` and `top`. Makes HTTP requests; writes nothing."""

import asyncio
from typing import TYPE_CHECKING

import msgspec

from switchyard.domain.market.health import Readiness

if TYPE_CHECKING:
    from aiohttp import ClientSession

# More than the process gives itself for its checks.
SECONDS_MAX = 10.0
# Several times what a process with many venues serves.
BYTES_MAX = 4 * 1024 * 1024

Figures = dict[tuple[str, tuple[str, ...]], float]
"""Samples by name and label values."""


class Monitor:
    """One process, by its address."""

    def __init__(
        self, session: "ClientSession", url: str, *, token: str | None, metrics_token: str | None = None
    ) -> None:
        """`token`: an operator's, which shows the details of the checks."""
        self._session = session
        self._headers = {} if metrics_token is None else {"X-Metrics-Token": metrics_token}
        if token is not None:
            self._headers["Authorization"] = f"Bearer {token}"
        self.url = url

    async def readiness(self) -> Readiness:
        """The answer of `/health/ready`."""
        from switchyard.client.errors import UnreadableResponse

        status, body = await self._get("/health/ready")
        try:
            return msgspec.json.decode(body, type=Readiness)
        except msgspec.DecodeError as error:
            raise UnreadableResponse(f"{self.url}/health/ready: HTTP {status}, not a readiness report") from error

    async def figures(self) -> Figures:
        """The samples of `/metrics`."""
        from prometheus_client.parser import text_string_to_metric_families

        from switchyard.client.errors import ApiError

        status, body = await self._get("/metrics")
        if status != 200:
            raise ApiError(status, "METRICS_TOKEN", f"{self.url}/metrics needs GATEWAY_METRICS_TOKEN in the settings")
        return {
            (sample.name, tuple(sample.labels.values())): sample.value
            for family in text_string_to_metric_families(body.decode())
            for sample in family.samples
        }

    async def _get(self, path: str) -> tuple[int, bytes]:
        from aiohttp import ClientError

        from switchyard.client.errors import NotReachable

        try:
            async with asyncio.timeout(SECONDS_MAX), self._session.get(self.url + path, headers=self._headers) as found:
                return found.status, await found.content.read(BYTES_MAX)
        except (ClientError, TimeoutError) as error:
            raise NotReachable.lost(self.url, error) from error
