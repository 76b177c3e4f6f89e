"""Describes the machine and the software of a run."""

import os
import platform
import statistics
import subprocess
import time
from importlib.metadata import version
from pathlib import Path

import apsw

from bench.load import find_wrk
from bench.percentiles import percentile
from bench.processes import BenchError
from bench.stores import PostgresStore

FSYNC_ROUNDS = 200
# About the size of the write-ahead log records of a group commit of a few orders.
FSYNC_BYTES = 4096


def machine_facts(folder: Path) -> dict[str, str]:
    """Cores, versions, and the latency of an fsync in the folder of the databases."""
    disk = subprocess.run(["stat", "-f", "-c", "%T", folder], capture_output=True, text=True, check=True).stdout.strip()
    if disk in ("tmpfs", "ramfs"):
        raise BenchError(
            "the folder for temporary files is in memory, so nothing would be durable: set TMPDIR to a folder on a disk"
        )
    p50_ms, p99_ms = fsync_latency(folder)
    return {
        "machine": f"{os.cpu_count()} cores, {_processor()}, {platform.system()} {platform.release()}",
        "software": f"Python {platform.python_version()}, uvicorn {version('uvicorn')}, uvloop {version('uvloop')}",
        "SQLite": apsw.sqlite_lib_version(),
        "fsync": f"{p50_ms:.2f} ms p50, {p99_ms:.2f} ms p99 ({FSYNC_ROUNDS} appends of {FSYNC_BYTES} bytes, {disk})",
    }


def load_facts() -> dict[str, str]:
    """Versions of the load generator and of the peer server."""
    # wrk prints its version with its usage and exits with 1.
    wrk = subprocess.run([find_wrk(), "--version"], capture_output=True, text=True, check=False).stdout
    return {
        "peer": f"FastAPI {version('fastapi')}, asyncpg {version('asyncpg')}, PgQueuer {version('pgqueuer')}",
        "load": f"wrk {wrk.split()[1] if wrk else '?'}, one thread, on the same machine",
    }


def postgres_facts(store: PostgresStore) -> dict[str, str]:
    """The version of PostgreSQL; raises BenchError if it acknowledges commits before they are durable."""
    settings = {
        name: str(store.rows(f"SHOW {name}")[0][0]) for name in ("server_version", "fsync", "synchronous_commit")
    }
    if settings["fsync"] != "on" or settings["synchronous_commit"] != "on":
        raise BenchError(f"PostgreSQL must run with fsync and synchronous_commit on: {settings}")
    return {"PostgreSQL": f"{settings['server_version']}, fsync on, synchronous_commit on"}


def fsync_latency(folder: Path) -> tuple[float, float]:
    """p50 and p99, in milliseconds, of a small append followed by an fsync."""
    path = folder / "fsync.probe"
    took_ms = []
    with path.open("wb", buffering=0) as file:
        for _ in range(FSYNC_ROUNDS):
            started = time.perf_counter()
            file.write(bytes(FSYNC_BYTES))
            os.fsync(file.fileno())
            took_ms.append((time.perf_counter() - started) * 1e3)
    path.unlink()
    return statistics.median(took_ms), percentile(took_ms, 99)


def busy_share(seconds: float) -> float:
    """Share of the cores that other processes use; figures from a busy machine are not comparable."""

    def ticks() -> tuple[int, int]:
        fields = [int(field) for field in Path("/proc/stat").read_text("ascii").split("\n", 1)[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]  # total; idle and waiting for I/O

    total, idle = ticks()
    time.sleep(seconds)
    total_after, idle_after = ticks()
    return 1 - (idle_after - idle) / max(1, total_after - total)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        return platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
