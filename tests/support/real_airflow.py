"""A real Airflow in its own environment and processes, with the DAG of `ops/airflow`; for `make test-airflow`."""

import json
import os
import secrets
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.airflow import PASSWORD, USER
from tests.support.ports import free_port
from tests.support.process import COMMAND, ROOT

START_SECONDS_MAX = 180.0
CALL_SECONDS_MAX = 60.0


class RealAirflow:
    """`airflow standalone` on a free port, with one user who may operate DAGs."""

    def __init__(self, folder: Path, settings: dict[str, str]) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._secret = secrets.token_hex(32)

    @property
    def log(self) -> str:
        return (self._folder / "airflow.log").read_text("utf-8", "replace")

    def start(self) -> "RealAirflow":
        """Start it and wait until its DAG can be triggered."""
        folder = self._folder
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "passwords.json").write_text(json.dumps({USER: PASSWORD}))
        bin_folder = ROOT / ".venv" / "airflow" / "bin"
        airflow_settings = {
            "AIRFLOW_HOME": str(folder),
            "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "ops" / "airflow" / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:op",
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(folder / "passwords.json"),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{self.url}/execution/",
            "AIRFLOW__API__HOST": "127.0.0.1",
            "AIRFLOW__API__PORT": str(self.port),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__API_AUTH__JWT_SECRET": self._secret,
            "AIRFLOW__TRIGGERER__TRIGGERER_HEARTBEAT_SEC": "5",
            "SWITCHYARD_COMMAND": str(COMMAND),
        }
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "PYTHON"))}
        path = f"{bin_folder}{os.pathsep}{os.environ['PATH']}"
        with (folder / "airflow.log").open("ab") as log:
            self._process = subprocess.Popen(
                [str(bin_folder / "airflow"), "standalone"],
                env={**kept, **self._settings, **airflow_settings, "PATH": path},
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._is_ready():
            assert self._process.poll() is None, f"Airflow has ended:\n{self.log[-4000:]}"
            assert time.monotonic() < deadline, f"Airflow does not start:\n{self.log[-4000:]}"
            time.sleep(0.5)
        return self

    def stop(self) -> None:
        """End it with all of its processes."""
        if self._process is None:
            return
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(self._process.pid, number)
                self._process.wait(20)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue
        self._process = None

    def call(self, method: str, path: str, body: object | None = None) -> Any:
        """An answer of the API, for what the adapter does not do.

        Asked again after 5xx: on a busy machine Airflow's own SQLite file is locked for longer than Airflow waits.
        """
        deadline = time.monotonic() + CALL_SECONDS_MAX
        while True:
            try:
                return self._call(method, path, body)
            except urllib.error.HTTPError as error:
                if error.code < 500 or time.monotonic() > deadline:
                    raise
                time.sleep(0.5)

    def _call(self, method: str, path: str, body: object | None) -> Any:
        token = self._request("POST", "/auth/token", {"username": USER, "password": PASSWORD}, None)["access_token"]
        return self._request(method, path, body, token)

    def _is_ready(self) -> bool:
        try:
            dag = self._call("GET", "/api/v2/dags/switchyard_recheck", None)
            return dag["is_paused"] is False
        except (OSError, urllib.error.URLError, ValueError, KeyError):
            return False

    def _request(self, method: str, path: str, body: object | None, token: str | None) -> Any:
        headers = {"Content-Type": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.loads(response.read())
