"""TLS and SASL against a real broker; `make test-kafka` runs it, because the mock cluster has neither."""

import os
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import pytest

from tests.support.books import read_books
from tests.support.cluster import Cluster
from tests.support.kafka import LIBS_VARIABLE, bus_settings
from tests.support.polling import until
from tests.support.postgres import PostgresServer
from tests.support.secured_kafka import PASSWORD, USER, Authority, SecuredKafka
from tests.support.upgraded import upgraded_database

WRONG_PASSWORD = "a-wrong-password-of-the-broker"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority") / "authority.pem")


@pytest.fixture(scope="module")
def secured(authority: Authority) -> Iterator[SecuredKafka]:
    broker = SecuredKafka(Path(os.environ[LIBS_VARIABLE]), authority, authority.path.parent)
    yield broker
    broker.remove()


def settings_for(kafka: SecuredKafka, topic: str, authority: Authority, password: str = PASSWORD) -> dict[str, str]:
    return {
        **bus_settings(kafka.secured, topic),
        "KAFKA_BROKER_ADDRESS_FAMILY": "v4",
        "KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "KAFKA_SASL_MECHANISM": "PLAIN",
        "KAFKA_SASL_USERNAME": USER,
        "KAFKA_SASL_PASSWORD": password,
        "KAFKA_SSL_CA_LOCATION": str(authority.path),
    }


async def test_an_order_reaches_the_books_over_tls_with_the_right_password(
    cluster: Cluster,
    secured: SecuredKafka,
    authority: Authority,
    postgres_server: PostgresServer,
    session: aiohttp.ClientSession,
) -> None:
    topic = secured.create_topic(2)
    settings = {
        "SWITCHYARD_DATABASE_URL": await upgraded_database(postgres_server),
        **settings_for(secured, topic, authority),
    }
    gateway = await cluster.process("up", "gateway", **settings).start()
    office = cluster.process("backoffice", "office", **settings)
    office.port = office.backoffice_port
    await office.start()
    body = {"symbol": "USDJPY", "side": "BUY", "type": "MARKET", "qty": 1000}
    async with session.post(f"{gateway.url}/orders", json=body, headers=gateway.headers()) as response:
        assert response.status == 202, await response.text()

    async def is_booked() -> bool:
        return bool((await read_books(session, office, "/positions", "demo"))["positions"])

    await until(is_booked, lambda: gateway.log + office.log, pause_seconds=0.1)
    for process in (gateway, office):
        assert process.stop() == 0
        assert PASSWORD not in process.log


@pytest.mark.parametrize("wrong", ["password", "authority"])
async def test_a_wrong_password_or_an_unknown_authority_is_named_without_the_secret(
    cluster: Cluster,
    secured: SecuredKafka,
    authority: Authority,
    session: aiohttp.ClientSession,
    tmp_path: Path,
    wrong: str,
) -> None:
    topic = secured.create_topic(1)
    if wrong == "password":
        settings, said = settings_for(secured, topic, authority, WRONG_PASSWORD), "uthentication"
    else:
        settings = settings_for(secured, topic, Authority(tmp_path / "other.pem"))
        said = "certificate verify failed"
    gateway = await cluster.process("up", "gateway", **settings).start()
    shown = ""

    async def is_named() -> bool:
        nonlocal shown
        async with session.get(f"{gateway.url}/health") as response:
            shown = await response.text()
            return response.status == 200 and said in shown

    await until(is_named, lambda: shown + gateway.log, pause_seconds=0.1)
    assert gateway.stop() == 0
    assert said in gateway.log
    for text in (shown, gateway.log):
        assert PASSWORD not in text and WRONG_PASSWORD not in text
