"""The views that show tables under the names of their specifications, on both engines."""

import apsw
import asyncpg
import msgspec
import pytest

from switchyard.domain.journal.changes import Change
from switchyard.domain.orders.keys import PLACE_ORDER
from tests.support.build import ACCOUNT, an_accept
from tests.support.databases import SqlDatabase, run_sql
from tests.support.journal_checks import commit


async def test_the_idempotency_keys_are_readable_under_their_specified_name(
    sql_database: SqlDatabase,
) -> None:
    accepted = an_accept(key="one")
    await commit(sql_database.journal, accepted, an_accept(key="two"))
    result = msgspec.structs.replace(
        accepted.keys[0],
        status="succeeded",
        http_status=200,
        response_payload_json='{"status":"filled"}',
        result_digest="sha256:ab",
        version=2,
    )
    await commit(sql_database.journal, Change(keys=(result,)))

    found = await run_sql(
        sql_database,
        """
        SELECT
            request_digest, status, http_status, response_payload_json, result_digest, account_id, operation, order_id
        FROM idempo_ledger WHERE idempotency_key = 'one'
        """,
    )

    assert found == [
        (
            result.request_digest,
            "succeeded",
            200,
            '{"status":"filled"}',
            "sha256:ab",
            ACCOUNT,
            PLACE_ORDER,
            result.order_id,
        )
    ]
    assert await run_sql(sql_database, "SELECT count(*) FROM idempo_ledger WHERE expires_at > created_at") == [(2,)]


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO idempo_ledger (idempotency_key) VALUES ('two')",
        "UPDATE idempo_ledger SET status = 'failed'",
        "DELETE FROM idempo_ledger",
    ],
)
async def test_the_idempotency_keys_cannot_be_written_under_that_name(sql_database: SqlDatabase, sql: str) -> None:
    await commit(sql_database.journal, an_accept(key="one"))

    with pytest.raises((apsw.SQLError, asyncpg.ObjectNotInPrerequisiteStateError), match="view"):
        await run_sql(sql_database, sql)

    assert await run_sql(sql_database, "SELECT status FROM idempotency_keys") == [("accepted",)]
