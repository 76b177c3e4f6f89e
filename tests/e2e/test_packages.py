"""The compose file, the image and the systemd units name settings, ports, roles and files that exist."""

import json
import re
import shlex
import subprocess
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from jsonschema import Draft7Validator

from switchyard.entrypoints.cli.main import app
from switchyard.settings import IDEMPOTENCY_SETTINGS, RISK_SETTINGS, SETTINGS, TRACING_SETTINGS, bus_keys, load_settings
from switchyard.settings.kafka import KAFKA_SETTINGS

ROOT = Path(__file__).parents[2]
OPS = ROOT / "ops"
ALL = (*SETTINGS, *IDEMPOTENCY_SETTINGS, *RISK_SETTINGS, *KAFKA_SETTINGS, *TRACING_SETTINGS)
KNOWN = {setting.name for setting in ALL} | {setting.name + "_FILE" for setting in ALL if setting.secret}
OURS = ("schema", "gateway", "worker", "backoffice")
WORKER_METRICS_PORT = 9101


def image_steps() -> dict[str, list[str]]:
    """The steps of the Dockerfile, by their names."""
    text = (OPS / "Dockerfile").read_text("utf-8").replace("\\\n", " ")
    steps: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, rest = line.split(maxsplit=1)
            steps.setdefault(name, []).append(rest)
    return steps


def image_variables() -> dict[str, str]:
    """The settings that the image has."""
    variables = dict(word.split("=", 1) for word in shlex.split(image_steps()["ENV"][0]))
    return {name: value for name, value in variables.items() if name not in ("PATH", "PYTHONDONTWRITEBYTECODE")}


@pytest.fixture(scope="module")
def compose() -> Any:
    return yaml.safe_load((OPS / "compose.yaml").read_text("utf-8"))


def test_the_compose_file_follows_the_specification(compose: Any) -> None:
    # From compose-spec/compose-spec, schema/compose-spec.json (Apache 2.0).
    schema = json.loads((ROOT / "tests" / "support" / "compose-spec.json").read_text("utf-8"))
    problems = [f"{error.json_path}: {error.message}" for error in Draft7Validator(schema).iter_errors(compose)]
    assert problems == []


def test_the_profile_gateway_has_gateway_kafka_and_back_office(compose: Any) -> None:
    profile = {name for name, service in compose["services"].items() if "gateway" in service["profiles"]}
    assert profile >= {"gateway", "kafka", "backoffice", "worker", "postgres"}
    profiles = {profile for service in compose["services"].values() for profile in service["profiles"]}
    assert profiles == {"gateway", "postgres", "kafka", "redis", "monitoring", "airflow"}


def test_our_services_run_known_commands_with_known_settings(compose: Any) -> None:
    commands = typer.main.get_command(app)
    for name in OURS:
        service = compose["services"][name]
        assert service["command"][0] in getattr(commands, "commands", {}), name
        assert service["environment"].keys() <= KNOWN, name
        assert service["read_only"] is True and service["cap_drop"] == ["ALL"], name
        for variable, value in service["environment"].items():
            if variable.endswith("_FILE"):
                assert value.removeprefix("/run/secrets/") in service["secrets"], (name, variable)


def test_ports_are_those_of_the_settings_and_published_on_this_machine_only(compose: Any) -> None:
    settings = load_settings({})
    services = compose["services"]
    assert services["gateway"]["ports"] == [f"127.0.0.1:{settings.port}:{settings.port}"]
    assert services["backoffice"]["ports"] == [f"127.0.0.1:{settings.backoffice_port}:{settings.backoffice_port}"]
    assert services["worker"]["environment"]["SWITCHYARD_METRICS_PORT"] == str(WORKER_METRICS_PORT)
    for service in services.values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    targets = yaml.safe_load((OPS / "prometheus" / "prometheus.yml").read_text("utf-8"))["scrape_configs"][0]
    assert targets["static_configs"][0]["targets"] == [
        f"gateway:{settings.port}",
        f"worker:{WORKER_METRICS_PORT}",
        f"backoffice:{settings.backoffice_port}",
    ]


def test_every_secret_volume_file_and_dependency_of_the_compose_file_exists(compose: Any, tmp_path: Path) -> None:
    used_secrets, used_volumes = set(), set()
    for service in compose["services"].values():
        used_secrets |= set(service.get("secrets", ()))
        for volume in service.get("volumes", ()):
            source = volume.partition(":")[0]
            assert not source.startswith(".") or (OPS / source).is_dir(), volume
            used_volumes |= set() if source.startswith(".") else {source}
        assert service.get("depends_on", {}).keys() <= compose["services"].keys()
    assert used_secrets == compose["secrets"].keys()
    assert used_volumes == compose["volumes"].keys()
    script = tmp_path / "make_secrets.sh"
    script.write_bytes((OPS / "make_secrets.sh").read_bytes())
    for _ in range(2):  # a second run keeps them
        done = subprocess.run(["sh", str(script)], check=True, capture_output=True, text=True, cwd="/")
    assert done.stdout == ""
    made = {path.name: path.read_text("utf-8") for path in (tmp_path / "secrets").iterdir()}
    assert {f"secrets/{name}" for name in made} == {secret["file"] for secret in compose["secrets"].values()}
    assert (tmp_path / "secrets").stat().st_mode & 0o077 == 0
    assert min(len(secret) for secret in made.values()) >= 32 and len(set(made.values())) == len(made)
    # The names and the password are those of the server.
    server = compose["services"]["postgres"]["environment"]
    assert made["database_url"] == (
        f"postgresql://{server['POSTGRES_USER']}:{made['postgres_password']}@postgres:5432/{server['POSTGRES_DB']}"
    )


def test_the_settings_of_our_services_are_accepted_together_with_those_of_the_image(
    compose: Any, tmp_path: Path
) -> None:
    script = tmp_path / "make_secrets.sh"
    script.write_bytes((OPS / "make_secrets.sh").read_bytes())
    subprocess.run(["sh", str(script)], check=True, capture_output=True)
    for name in OURS:
        given = {**image_variables(), **compose["services"][name]["environment"]}
        given = {variable: value for variable, value in given.items() if value is not None}
        given = {variable: re.sub(r"\$\{\w+:-(.*)\}", r"\1", value) for variable, value in given.items()}
        given = {
            variable: value.replace("/run/secrets", str(tmp_path / "secrets")) for variable, value in given.items()
        }
        settings = load_settings(given)
        assert len(bus_keys(settings)) == 1
        assert settings.database_url is not None and "@postgres:5432/" in settings.database_url
        assert settings.idempotency.cache.redis_url is None and settings.host == "0.0.0.0"


def test_the_image_has_two_stages_runs_as_nobody_and_is_checked() -> None:
    by_name = image_steps()
    assert len(by_name["FROM"]) == 2 and not any(image.endswith(":latest") for image in by_name["FROM"])
    assert by_name["USER"] == ["10001:10001"] and "ADD" not in by_name
    assert "/health/live" in by_name["HEALTHCHECK"][0]
    assert json.loads(by_name["ENTRYPOINT"][0]) == ["switchyard"]
    variables = image_variables()
    assert variables.keys() <= KNOWN
    volumes = json.loads(by_name["VOLUME"][0])
    assert volumes == [variables["SWITCHYARD_DATA_DIR"], variables["SWITCHYARD_STATE_DIR"]]
    settings = load_settings({})
    assert by_name["EXPOSE"] == [f"{settings.port} {settings.backoffice_port} {WORKER_METRICS_PORT}"]
    for copied in by_name["COPY"]:
        if not copied.startswith("--from"):
            *sources, _ = copied.split()
            assert all((ROOT / source).exists() for source in sources), copied
    ignored = (ROOT / ".dockerignore").read_text("utf-8").split()
    for source in ("src", "contracts", "requirements.txt", "pyproject.toml", "README.md", "LICENSE"):
        assert f"!{source}" in ignored


@pytest.mark.parametrize("role", ["up", "gateway", "worker", "backoffice"])
def test_a_systemd_unit_runs_its_role_and_leaves_exit_code_4_to_a_person(role: str) -> None:
    parser = RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    text = (OPS / "systemd" / f"switchyard-{role}.service").read_text("utf-8")
    parser.read_string(text)
    service = parser["Service"]
    assert service["ExecStart"] == f"/opt/switchyard/bin/switchyard {role}"
    assert service["User"] == "switchyard" and service["RestartPreventExitStatus"] == "4"
    assert set(re.findall(r"^Environment=(\w+)=", text, flags=re.MULTILINE)) <= KNOWN


def test_images_of_others_are_a_full_version_and_pinned_by_digest_where_it_is_known(compose: Any) -> None:
    bases = [step.split()[0] for step in image_steps()["FROM"]]
    images = bases + [service["image"] for service in compose["services"].values() if "build" not in service]
    unpinned = {
        image for image in images if re.fullmatch(r"[a-z/]+:v?[0-9]+[.0-9a-z-]*@sha256:[0-9a-f]{64}", image) is None
    }
    # No digest of this one could be compared with a second source; a full version is at least not moved to another one.
    assert unpinned == {"apache/airflow:3.1.0"}


def test_grafana_has_a_password_and_no_anonymous_users(compose: Any) -> None:
    grafana = compose["services"]["grafana"]
    assert grafana["environment"]["GF_SECURITY_ADMIN_PASSWORD__FILE"] == "/run/secrets/grafana_password"
    assert grafana["environment"]["GF_AUTH_ANONYMOUS_ENABLED"] == "false"
    assert "grafana_password" in grafana["secrets"]
    assert "grafana_password" in (OPS / "make_secrets.sh").read_text("utf-8")
