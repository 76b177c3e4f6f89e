"""The DAG behind `PDCA_RUNNER=airflow`: a run rechecks the strategies of one request.

Its only parameter is the id of a stored request. The command is idempotent, with a fence for each strategy, so a task
may be cleared and run again at any time. Airflow's workers need the command `switchyard` and the settings of the
installation in their environment; SWITCHYARD_COMMAND names the command where it is not on the path.
"""

import os
import re
import subprocess
from datetime import UTC, datetime, timedelta

from airflow.sdk import dag, get_current_context, task

# The same form that Switchyard gives its ids: nothing else becomes an argument of a command.
REQUEST_ID = re.compile(r"[0-9A-HJKMNP-TV-Z]{26}")


@dag(
    dag_id="switchyard_recheck",
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=4,
    is_paused_upon_creation=False,
    tags=["switchyard"],
    doc_md=__doc__,
)
def switchyard_recheck() -> None:
    """Recheck the strategies of one request."""

    # The command succeeds once every strategy has a result or an error; a retry continues with those that have none.
    @task(retries=3, retry_delay=timedelta(seconds=30), execution_timeout=timedelta(hours=6))
    def recheck() -> None:
        request_id = str((get_current_context()["dag_run"].conf or {}).get("request_id"))
        if not REQUEST_ID.fullmatch(request_id):
            raise ValueError("conf.request_id must be the id of a recheck")
        subprocess.run([os.environ.get("SWITCHYARD_COMMAND", "switchyard"), "pdca", "run", request_id], check=True)

    recheck()


switchyard_recheck()
