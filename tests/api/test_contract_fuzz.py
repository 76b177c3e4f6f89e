"""Valid and invalid requests generated from the contract: every answer conforms to the contract."""

import asyncio
from collections.abc import Iterator
from itertools import count
from typing import Any

import aiohttp
import pytest
import schemathesis
from hypothesis import settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from switchyard.adapters.pdca.store import SqlPdcaStore
from tests.support.contract import FOLDER, OPENAPI, Contract
from tests.support.do_order import post
from tests.support.pdca import FILLS, REQUEST_ID, STRATEGY, local_token, tell_story
from tests.support.postgres import PostgresServer
from tests.support.process import Process

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
SETTINGS = {
    "DO_RATE_PER_MIN": "1000000",
    "SWITCHYARD_LOG_LEVEL": "warning",
    "DO_DEFAULT_ACCOUNT": "demo",
    "SWITCHYARD_BACKOFFICE": "true",
    "PDCA_READ_RATE_PER_MIN": "1000000",
    "PDCA_RECHECK_RATE_PER_MIN": "1000000",
    "PDCA_RECHECK_ALL_RATE_PER_MIN": "1000000",
}
# The same requests on each run; no deadline, because the machine may be busy.
same_each_time = settings(derandomize=True, database=None, deadline=None)


def everything(modes: list[GenerationMode]) -> Any:
    """Return every operation but the streams, which never end; bad tokens are tested elsewhere."""
    schema = schemathesis.openapi.from_path(FOLDER / OPENAPI).exclude(path_regex="stream$")
    schema.config.generation.update(max_examples=10, modes=modes, with_security_parameters=False)
    return schema


numbers = count()

anything = everything([GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
sensible = everything([GenerationMode.POSITIVE])
sensible.config.phases.coverage.enabled = False


NO_BREAK = "brk_000000000000000000000000"


@pytest.fixture(scope="module")
def embedded_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    process = Process(tmp_path_factory.mktemp("anything"), **SETTINGS)
    asyncio.run(process.start())
    yield process
    process.close()


@pytest.fixture(scope="module")
def process_with_an_order(
    tmp_path_factory: pytest.TempPathFactory, postgres_server: PostgresServer
) -> Iterator[tuple[Process, str]]:
    database = {"SWITCHYARD_DATABASE_URL": postgres_server.create_database()}
    process = Process(tmp_path_factory.mktemp("sensible"), **SETTINGS, **database)

    async def begin() -> str:
        await process.start()
        await post(process, "first", account="demo")
        store = await SqlPdcaStore.on_postgres(database["SWITCHYARD_DATABASE_URL"])
        await tell_story(store)
        await store.close()
        return await newest_order(process)

    yield process, asyncio.run(begin())
    process.close()


@pytest.fixture(scope="module")
def kill_id(process_with_an_order: tuple[Process, str]) -> str:
    """A kill that covers none of the orders of the tests."""
    process, _ = process_with_an_order

    async def set_kill() -> str:
        scope = {"account": "nobody", "reason": "for the routes that name a kill"}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{process.url}/admin/kill", json=scope, headers=operator(process)) as response,
        ):
            return str((await response.json())["killId"])

    return asyncio.run(set_kill())


def operator(process: Process) -> dict[str, str]:
    """The headers of somebody who may do everything."""
    return process.headers(scopes=["admin:kill", "admin:ledger", "admin:reconcile"], subject="ann")


async def newest_order(process: Process) -> str:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{process.url}/orders?limit=1", headers=process.headers()) as response,
    ):
        return str((await response.json())["orders"][0]["orderId"])


@anything.parametrize()  # type: ignore[untyped-decorator]
@same_each_time
def test_every_request_gets_an_answer_of_the_contract(case: schemathesis.Case[Any], embedded_process: Process) -> None:
    url = server_of(case, embedded_process)
    headers = embedded_process.headers() | pdca_headers(case, embedded_process)
    case.call_and_validate(base_url=url, headers=headers, checks=CHECKS)


@sensible.parametrize()  # type: ignore[untyped-decorator]
@same_each_time
def test_acceptable_requests_get_an_answer_of_the_contract(
    case: schemathesis.Case[Any], process_with_an_order: tuple[Process, str], kill_id: str
) -> None:
    process, order_id = process_with_an_order
    headers = operator(process) if "/admin/" in case.operation.label else process.headers()
    headers |= pdca_headers(case, process)
    body: dict[str, Any] = case.body if isinstance(case.body, dict) else {}
    match case.operation.label:
        case "POST /do/order":
            body |= {"instrument": "USDJPY", "qty": multiple(body, "qty", 0.1)}
            if body.get("price") is not None:
                body["price"] = multiple(body, "price", 1)
            headers["Idempotency-Key"] = body["idempotency_key"] = f"key-{next(numbers)}"
        case "POST /orders":
            body |= {"qty": multiple(body, "qty", 1), "symbol": "BTC"}
            headers["Idempotency-Key"] = f"key-{next(numbers)}"
            if body.get("price") is not None:
                body["price"] = multiple(body, "price", 1)
        case "POST /admin/kill":
            body |= {"account": "nobody", "everything": False}
            body.pop("venue", None)
        case "POST /pdca/recheck" | "POST /pdca/recheck_all":
            if "strategies" in body:
                body["strategies"] = [STRATEGY]
            headers["Idempotency-Key"] = f"key-{next(numbers)}"
        case "PUT /pdca/strategies/{strategy_id}":
            pass
        case _:
            body.pop("accountId", None)  # it must be the token's
            known = {"orderId": order_id, "accountId": "demo", "symbol": "BTC", "killId": kill_id, "breakId": NO_BREAK}
            known |= {"request_id": REQUEST_ID, "strategy_id": STRATEGY, "name": FILLS.name}
            known |= {"file": "page.js", "report": "balances"}
            case.path_parameters.update({name: known[name] for name in case.path_parameters})
    case.call_and_validate(base_url=server_of(case, process), headers=headers, checks=CHECKS)


def pdca_headers(case: schemathesis.Case[Any], process: Process) -> dict[str, str]:
    """The token of a client of the PDCA API, for its operations."""
    if not case.operation.path.startswith(("/pdca/", "/gui/")):
        return {}
    return {"Authorization": f"Bearer {local_token(process.folder / 'var')}"}


def server_of(case: schemathesis.Case[Any], process: Process) -> str:
    """The server of an operation: the back office where its path is not one of the gateway's."""
    operation = case.method.upper(), case.operation.path
    return process.url if operation in Contract().operations(of_backoffice=False) else process.backoffice_url


def multiple(body: dict[str, Any], name: str, step: float) -> float:
    """Return a number near the generated one that is a multiple of the instrument's step."""
    return round(step * (1 + int(body[name]) % 1000), 1)
