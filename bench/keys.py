"""Measures the time to derive one idempotency key."""

import time
from decimal import Decimal

from bench.percentiles import percentile
from switchyard.domain.orders.keys import generate_idempotency_key

KEYS = 10_000
GOAL_US = 50.0
# The shortest secret that the gateway accepts; HMAC hashes a secret of more than one block (64 bytes) once more.
SECRET = "0123456789abcdef0123456789abcdef"
NOON_MS = 1_729_636_800_000


def key_figures() -> dict[str, str]:
    """Percentiles over keys of different orders, without and with a secret, compared with the goal."""
    return {"keys": _figures(None), "HMAC keys": _figures(SECRET)}


def _figures(secret: str | None) -> str:
    took_us = _times(secret)
    figures = ", ".join(f"{percentile(took_us, percent):.1f} µs p{percent}" for percent in (50, 95, 99))
    verdict = "pass" if percentile(took_us, 99) < GOAL_US else "falls short"
    return f"{figures} ({KEYS:,} derived from limit orders); {verdict}: goal p99 below {GOAL_US:g} µs"


def _times(secret: str | None) -> list[float]:
    took_us = []
    for number in range(KEYS):
        account, symbol = f"account-{number % 97}", f"SYM{number % 31}"
        quantity, price = Decimal(number + 1) / 100, Decimal(10_000 + number) / 100
        started = time.perf_counter_ns()
        generate_idempotency_key(
            account, symbol, "BUY", quantity, NOON_MS + number, "LIMIT", limit_price=price, secret=secret
        )
        took_us.append((time.perf_counter_ns() - started) / 1e3)
    return took_us
