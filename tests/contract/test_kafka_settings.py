"""The variables of the bus: seven settings of our own, every other one a property of librdkafka."""

import logging
from pathlib import Path
from typing import Literal

import pytest

from switchyard.adapters.kafka.configuration import RepeatFilter, check_properties, client
from switchyard.bootstrap.backoffice import running_backoffice
from switchyard.bootstrap.engine import running_engine
from switchyard.domain.errors import SettingError
from switchyard.settings import bus_keys, configured_secrets, journal_key, load_settings
from switchyard.settings.kafka import KafkaSettings


def loaded(**environment: str) -> KafkaSettings:
    kafka = load_settings({"KAFKA_ENABLE": "1", **environment}).kafka
    assert kafka is not None
    return kafka


def test_kafka_is_off_by_default_and_other_programs_may_use_the_prefix() -> None:
    settings = load_settings({"KAFKA_OPTS": "-Xmx1g", "KAFKA_SECURITY_PROTOCOL": "SSL"})
    assert settings.kafka is None
    assert settings.unknown_names == ("KAFKA_OPTS", "KAFKA_SECURITY_PROTOCOL")


@pytest.mark.parametrize("text", ["1", "true"])
def test_the_settings_have_the_defaults_of_the_specification(text: str) -> None:
    assert loaded(KAFKA_ENABLE=text) == KafkaSettings(
        topic="events", bootstrap_servers="localhost:9092", client_id="gateway", queue_capacity=10_000
    )


def test_other_variables_become_properties_and_passwords_may_come_from_files(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("hush\n")
    environment = {
        "KAFKA_ENABLE": "true",
        "KAFKA_SECURITY_PROTOCOL": "SASL_SSL",
        "KAFKA_SASL_MECHANISM": "SCRAM-SHA-512",
        "KAFKA_SASL_USERNAME": "relay",
        "KAFKA_SASL_PASSWORD_FILE": str(tmp_path / "password"),
        "KAFKA_LOG_LEVEL": "3",
        "KAFKA_LINGER_MS": "20",
    }
    settings = load_settings(environment)
    assert settings.kafka is not None
    check_properties(settings.kafka)
    properties = client(settings.kafka)
    assert properties["sasl.password"] == "hush"
    assert (properties["security.protocol"], properties["log_level"], properties["linger.ms"]) == (
        "SASL_SSL",
        "3",
        "20",
    )
    assert "hush" in configured_secrets(settings)
    assert "hush" not in repr(settings)


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("KAFKA_OPTS", "-Xmx1g", "opts"),
        ("KAFKA_PORT_9092_TCP", "tcp://10.0.0.1:9092", "port.9092.tcp"),
        ("KAFKA_SECURITY_PROTOCOL", "TLS", "TLS"),
        ("KAFKA_ACKS", "1", "set by Switchyard"),
        ("KAFKA_AUTO_OFFSET_RESET", "latest", "set by Switchyard"),
        ("KAFKA_PARTITIONER", "murmur2", "set by Switchyard"),
        ("SWITCHYARD_BUS_KEY", "short", "at least 32 bytes"),
        ("SWITCHYARD_BUS_KEY_PREVIOUS", "changeme" * 8, "well-known"),
        ("KAFKA_QUEUE_CAPACITY", "0", "between 1 and"),
        ("KAFKA_TOPIC", "my events", "topic's name"),
        ("KAFKA_TOPC", "events", "topc"),
    ],
)
def test_a_variable_that_cannot_be_used_stops_the_start_and_is_named(variable: str, value: str, said: str) -> None:
    with pytest.raises(SettingError) as raised:
        check_properties(loaded(**{variable: value}))
    assert str(raised.value).startswith(f"{variable}: ")
    assert said in str(raised.value)


def test_a_line_of_librdkafka_is_not_repeated_for_every_client() -> None:
    def passes(text: str) -> bool:
        return lines.filter(logging.LogRecord("librdkafka", logging.ERROR, "", 0, text, None, None))

    lines = RepeatFilter()
    assert passes("FAIL [gateway#producer-2] Connect to 127.0.0.1:9 failed (after 0ms in state CONNECT)")
    assert not passes("FAIL [gateway#producer-31] Connect to 127.0.0.1:9 failed (after 12ms in state CONNECT)")
    assert passes("FAIL [gateway#producer-31] Connect to 127.0.0.1:10 failed (after 12ms in state CONNECT)")


def test_the_key_comes_from_a_setting_or_a_file_and_the_previous_one_is_accepted_too(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k" * 32 + "\n")
    environment = {"KAFKA_ENABLE": "1", "SWITCHYARD_BUS_KEY_FILE": str(tmp_path / "key")}
    settings = load_settings({**environment, "SWITCHYARD_BUS_KEY_PREVIOUS": "p" * 32})
    assert bus_keys(settings) == (b"k" * 32, b"p" * 32)
    assert {"k" * 32, "p" * 32} <= configured_secrets(settings)
    assert "kkk" not in repr(settings) and "ppp" not in repr(settings)


def test_a_single_process_makes_a_key_that_only_its_owner_can_read(tmp_path: Path) -> None:
    settings = load_settings({"KAFKA_ENABLE": "1", "SWITCHYARD_DATA_DIR": str(tmp_path)})
    [key] = bus_keys(settings)
    assert len(key) >= 32 and bus_keys(settings) == (key,)
    assert (tmp_path / "bus_key").stat().st_mode & 0o777 == 0o600
    assert key not in (tmp_path / "bus_key").name.encode() and key != journal_key(settings)


@pytest.mark.parametrize("role", ["up", "worker", "backoffice"])
async def test_without_a_key_no_process_that_signs_or_checks_starts_on_a_shared_database(
    role: Literal["up", "worker", "backoffice"], tmp_path: Path
) -> None:
    """Each has a data folder of its own: a key that one made there would be unknown to the others."""
    settings = load_settings(
        {
            "KAFKA_ENABLE": "1",
            "SWITCHYARD_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none",
            "SWITCHYARD_DATA_DIR": str(tmp_path / "data"),
        }
    )
    with pytest.raises(SettingError, match=r"^SWITCHYARD_BUS_KEY: is required.*ops/make_secrets\.sh"):
        async with running_backoffice(settings) if role == "backoffice" else running_engine(settings, role):
            pass
    assert not (tmp_path / "data" / "bus_key").exists()
