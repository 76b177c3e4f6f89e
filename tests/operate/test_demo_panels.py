"""A minute of `switchyard demo`, scraped by a real Prometheus: every query of every dashboard panel shows something."""

import time
from pathlib import Path

import aiohttp

from tests.support import operations
from tests.support.polling import until
from tests.support.process import Process
from tests.support.prometheus import WINDOW, PrometheusServer

DAY_SECONDS = 60
# With the start of the processes and the checks at the end.
DEMO_SECONDS_MAX = 240

A_DEFECT = "only a defect, a broken file or a wrong setting makes it rise"
OVERLOAD = "the demo has a few orders a second and is never overloaded"
NO_REDIS = "the demo runs without Redis, so its cache cannot fail"
A_BREACH = "no venue of the demo breaks its promises"
# Queries that may stay at zero on the demo's day, and why; all others must rise above it.
ZERO = {
    "backoffice_halted": A_DEFECT,
    "backoffice_halted_accounts": A_DEFECT,
    "backoffice_lag_events": "the books follow within milliseconds, a scrape seldom finds them behind",
    "backoffice_repeats_total": "a repeat needs a crash of the back office",
    "backoffice_notes_total": "a note needs a total that the fills do not explain",
    "outbox_uncertain_by_age": "the doubts of the demo end within a minute",
    "outbox_sending_by_age": "a send takes at most 5 s",
    "outbox_retry_count_bucket": "far fewer than one order in twenty is sent again",
    "idempotency_collisions_total": A_DEFECT,
    "idempotency_expired_keys_reused_total": "keys live longer than the demo",
    "idempotency_cache_errors_total": NO_REDIS,
    "venue_contradictions_total": A_BREACH,
    "venue_ended_orders_open_total": A_BREACH,
    "venue_quantity_gaps_total": A_BREACH,
    "venue_orders_missing_total": A_BREACH,
    "venue_orders_unknown_total": A_BREACH,
    "orders_overfilled_total": A_BREACH,
    "venue_execution_ids_reused_total": A_BREACH,
    "audit_file_cuts_total": A_DEFECT,
    "gateway_queue_rejects_total": OVERLOAD,
    "admission_turned_away_total": OVERLOAD,
    "admission_rejects_total": OVERLOAD,
    "http_connections_rejected_total": OVERLOAD,
    "sse_slow_readers_total": OVERLOAD,
    "gateway_queue_depth": OVERLOAD,
    "stage_failures_total": A_DEFECT,
    "sent_ids_exceeded_total": A_DEFECT,
    "kill_switch_blocked_total": "an order has to be on its way at the moment of the kill",
    "clock_skew_seconds": "the clock of this machine is right",
    "clock_step_seconds": "the clock of this machine is right",
    "quotes_unusable_total": A_BREACH,
    "quotes_missing_total": "an order has to arrive while London is down and its last quote is too old",
}


async def test_every_panel_shows_something_after_a_minute_of_the_demo(
    tmp_path: Path, session: aiohttp.ClientSession
) -> None:
    demo = Process(tmp_path / "demo", "demo")
    ports = ("--port", str(demo.port), "--backoffice-port", str(demo.backoffice_port))
    demo.arguments = ["--seconds", str(DAY_SECONDS), "--keep", "--folder", str(tmp_path / "site"), *ports]
    prometheus = PrometheusServer(tmp_path / "prometheus", [demo.url, demo.backoffice_url]).start()
    began = time.time()
    try:
        demo.spawn()

        def is_over() -> bool:
            assert demo.is_running, demo.log
            return "It stays open" in demo.log

        await until(is_over, lambda: demo.log, seconds_max=DEMO_SECONDS_MAX, pause_seconds=0.5)
        assert "FAILED" not in demo.log, demo.log
        empty, flat = [], []
        for title, dashboard in operations.dashboards().items():
            for panel in dashboard["panels"]:
                for target in panel["targets"]:
                    query = target["expr"].replace("$__rate_interval", WINDOW)
                    values = await prometheus.over_time(session, query, began)
                    place = f"{title}: {panel['title']}: {target['expr']}"
                    if not values:
                        empty.append(place)
                    elif max(values) <= 0 and not operations.metric_names(query) <= ZERO.keys():
                        flat.append(place)
        assert not empty, f"without data: {empty}"
        assert not flat, f"never above zero: {flat}"
        assert demo.stop() == 0, demo.log
    finally:
        demo.close()
        prometheus.close()
