"""The look for matched strays on SQLite, which has no statistics to plan by."""

from pathlib import Path

from switchyard.adapters.queries import matched_strays
from switchyard.adapters.sqlite.connections import connect
from switchyard.adapters.sqlite.database import SqliteDatabase
from switchyard.adapters.sqlite.queries import DIALECT

EXECUTIONS = 20_000
ADD = """
WITH RECURSIVE numbers (number) AS (SELECT 1 UNION ALL SELECT number + 1 FROM numbers LIMIT ?)
INSERT INTO executions (venue, exec_id, order_id) SELECT 'sim', number, 'ord' FROM numbers
"""


async def test_a_look_for_strays_does_not_read_all_executions(tmp_path: Path) -> None:
    path = tmp_path / "journal.db"
    await SqliteDatabase.upgrade(path)
    connection = connect(path)
    connection.execute(ADD, (EXECUTIONS,))
    steps = 0

    def count_step() -> bool:
        nonlocal steps
        steps += 1
        return False

    connection.set_progress_handler(count_step, 1)
    assert connection.execute(matched_strays(DIALECT), ("sim", "", 500)).fetchall() == []
    connection.close()

    assert steps < EXECUTIONS
