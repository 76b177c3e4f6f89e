"""A client of the PDCA API of a gateway under test; every answer is checked against the contract."""

from collections.abc import Sequence
from typing import Any

from switchyard.ports.strategies import PdcaStore
from tests.support.gateway import CheckedResponse, RunningGateway
from tests.support.pdca import ALL_SCOPES, BOTH_AUDIENCES, PDCA_ACCOUNT, RECHECK, pdca_token


class PdcaClient:
    """Calls the API as one client."""

    def __init__(self, gateway: RunningGateway) -> None:
        self.gateway = gateway
        # No worker of this process takes the requests: the tests play the runner themselves.
        gateway.engine.pdca.runner = "airflow"
        gateway.engine.pdca.submit = _accept_all

    @property
    def store(self) -> PdcaStore:
        return self.gateway.engine.pdca.store

    async def call(
        self,
        method: str,
        path: str,
        body: bytes | dict[str, Any] | None = None,
        *,
        key: str | None = None,
        scopes: tuple[str, ...] = ALL_SCOPES,
        audiences: tuple[str, ...] = BOTH_AUDIENCES,
        client: str = "ops",
        accounts: Sequence[str] | None = (PDCA_ACCOUNT,),
        token: str | None = None,
        headers: dict[str, str] | None = None,
        check: bool = True,
    ) -> CheckedResponse:
        sent = dict(headers or {})
        if token is None:
            token = pdca_token(
                self.gateway.engine, scopes=scopes, audiences=audiences, client=client, accounts=accounts
            )
        if token:
            sent.setdefault("Authorization", f"Bearer {token}")
        if key is not None:
            sent["Idempotency-Key"] = key
        return await self.gateway.request(method, path, account=None, body=body, headers=sent, check=check)

    async def recheck(self, key: str = "key", **changes: Any) -> CheckedResponse:
        return await self.call("POST", "/pdca/recheck", {**RECHECK, **changes}, key=key)


async def _accept_all(_request: object) -> None:
    """Take every request, as a runner does that is up."""
