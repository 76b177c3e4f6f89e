"""HTTP exchanges with Airflow: one bounded answer per request, and a token that is renewed once when it is rejected.

Every failure to get a readable answer is RunnerDown: nothing depends on whether Airflow has taken the request, because
a repeat under the same id finds it.
"""

import asyncio
from typing import Any, Final, Literal
from urllib.parse import quote

import aiohttp
import msgspec
import structlog

from switchyard.domain.errors import RunnerDown
from switchyard.ports.tracing import Tracer
from switchyard.telemetry.metrics import PdcaJobMetrics
from switchyard.telemetry.traces import child_span

log = structlog.get_logger()

# A busy Airflow on SQLite has taken several seconds; `AirflowRunner` bounds the requests of one submission together.
REQUEST_SECONDS_MAX: Final = 6.0
ANSWER_BYTES_MAX: Final = 1_000_000
CONNECTIONS_MAX: Final = 8

Endpoint = Literal["token", "dag", "trigger", "run"]


class Answer(msgspec.Struct, frozen=True):
    """An answer below 500 that is JSON."""

    status: int
    body: Any


class AirflowClient:
    """A small pool of connections to one Airflow API server."""

    def __init__(
        self, url: str, username: str, password: str, metrics: PdcaJobMetrics, tracer: Tracer | None = None
    ) -> None:
        self._url = url.rstrip("/")
        # A setting is a masked subclass, which is not encoded.
        self._credentials = {"username": username, "password": str(password)}
        self._metrics = metrics
        self._tracer = tracer
        self._token: str | None = None
        self._renewing = asyncio.Lock()
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    async def get(self, endpoint: Endpoint, *path: str) -> Answer:
        """Read a resource of the API v2."""
        return await self._authorised(endpoint, "GET", _joined(path), None)

    async def post(self, endpoint: Endpoint, *path: str, body: object) -> Answer:
        """Write a resource of the API v2."""
        return await self._authorised(endpoint, "POST", _joined(path), body)

    async def _authorised(self, endpoint: Endpoint, method: str, path: str, body: object) -> Answer:
        token = self._token or await self._renewed(None)
        answer = await self._exchange(endpoint, method, path, body, token)
        if answer.status == 401:
            # Expired, or Airflow has another key since its restart; once, because a second 401 is about the user.
            answer = await self._exchange(endpoint, method, path, body, await self._renewed(token))
        if answer.status in (401, 403):
            raise RunnerDown(f"Airflow does not allow the user of PDCA_AIRFLOW_USERNAME this request ({answer.status})")
        return answer

    async def _renewed(self, rejected: str | None) -> str:
        """A token other than the rejected one; callers at the same time share one."""
        async with self._renewing:
            if self._token is not None and self._token != rejected:
                return self._token
            self._token = None
            answer = await self._exchange("token", "POST", "/auth/token", self._credentials, None)
            token = answer.body.get("access_token") if isinstance(answer.body, dict) else None
            if answer.status not in (200, 201) or not isinstance(token, str) or not token:
                raise RunnerDown(
                    f"Airflow gives no token for PDCA_AIRFLOW_USERNAME and PDCA_AIRFLOW_PASSWORD ({answer.status})"
                )
            self._token = token
            return token

    async def _exchange(self, endpoint: Endpoint, method: str, path: str, body: object, token: str | None) -> Answer:
        with child_span(self._tracer, f"airflow.{endpoint}", "client") as span:
            answer = await self._answer(endpoint, method, path, body, token)
            if span is not None:
                span.set("http.request.method", method)
                span.set("http.response.status_code", answer.status)
            return answer

    async def _answer(self, endpoint: Endpoint, method: str, path: str, body: object, token: str | None) -> Answer:
        headers = {"Accept": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            async with (
                asyncio.timeout(REQUEST_SECONDS_MAX),
                self._opened().request(
                    method,
                    self._url + path,
                    data=None if body is None else msgspec.json.encode(body),
                    headers=headers,
                    allow_redirects=False,  # a redirect could carry the token elsewhere
                ) as response,
            ):
                content = await _bounded(response)
                status = response.status
        except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
            self._count(endpoint, "down")
            raise RunnerDown(f"Airflow does not answer at PDCA_AIRFLOW_URL: {type(error).__name__}") from None
        if status >= 500 or 300 <= status < 400:
            self._count(endpoint, "error")
            raise RunnerDown(f"Airflow answered {status}")
        try:
            decoded = msgspec.json.decode(content) if content else None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self._count(endpoint, "error")
            raise RunnerDown(f"Airflow answered {status} with a body that is not JSON") from None
        self._count(endpoint, _OUTCOMES.get(status, "ok" if status < 300 else "rejected"))
        return Answer(status, decoded)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=CONNECTIONS_MAX), timeout=aiohttp.ClientTimeout(total=None)
            )
        return self._session

    def _count(self, endpoint: Endpoint, outcome: str) -> None:
        self._metrics.airflow.labels(endpoint, outcome).inc()


_OUTCOMES: Final = {401: "unauthorized", 403: "forbidden", 404: "missing", 409: "conflict"}


def _joined(path: tuple[str, ...]) -> str:
    return "/api/v2/" + "/".join(quote(part, safe="") for part in path)


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    content = bytearray()
    async for chunk in response.content.iter_any():
        content += chunk
        if len(content) > ANSWER_BYTES_MAX:
            raise ValueError("the answer is too long")
    return bytes(content)
