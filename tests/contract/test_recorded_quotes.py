"""Files of recorded quotes that cannot be replayed: the error names the file, the line and the field."""

from pathlib import Path

import pytest

from switchyard.adapters.files import recorded_quotes
from switchyard.adapters.files.recorded_quotes import RecordedQuotes, UnreadableRecord
from tests.support.memory.clock import ManualClock

HEAD = "at,symbol,bid,ask\n"
GOOD = "2026-01-05T09:00:00Z,USDJPY,150.01,150.02\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("q.csv", "", "line 1: the column 'at' is missing"),
        ("q.csv", "at,symbol,bid\n", "line 1: the column 'ask' is missing"),
        ("q.csv", HEAD, "has no quotes; a line looks like"),
        ("q.csv", HEAD + GOOD + "yesterday,USDJPY,1,2\n", "line 3: at: must be a time with its offset.*'yesterday'"),
        ("q.csv", HEAD + "2026-01-05T09:00:00,USDJPY,1,2\n", "line 2: at: must be a time with its offset"),
        ("q.csv", HEAD + "2026-01-05T09:00:00Z,usd jpy,1,2\n", "line 2: symbol: must match"),
        ("q.csv", HEAD + "2026-01-05T09:00:00Z,USDJPY,2,1\n", "line 2: bid: must not be above the ask"),
        ("q.csv", HEAD + "2026-01-05T09:00:00Z,USDJPY,0,1\n", "line 2: bid: "),
        ("q.csv", HEAD + "2026-01-05T09:00:00Z,USDJPY,NaN,1\n", "line 2: bid: "),
        ("q.csv", HEAD + "2026-01-05T09:00:00Z,USDJPY,one,1\n", "line 2: bid: must be a number, not 'one'"),
        ("q.csv", HEAD + "2026-01-05T09:00:00Z,USDJPY,1\n", "line 2: ask: must be a number, not None"),
        ("q.csv", HEAD + "2026-01-05T09:00:00Z,USDJPY,1,1.123456789\n", "line 2: ask: "),
        ("q.csv", HEAD + '2026-01-05T09:00:00Z,"USDJPY,1,2\n', "after line 1: "),
        ("q.csv", HEAD + GOOD + "0001-01-01T00:00:00+01:00,USDJPY,1,2\n", "line 3: at: must be a time"),
        ("q.csv", HEAD + GOOD + "0002-01-01T00:00:00Z,USDJPY,1,2\n", "spans more than 366 days"),
        ("q.jsonl", "[1]\n", "line 1: Expected `object`"),
        ("q.jsonl", '{"at":"2026-01-05T09:00:00Z","symbol":"USDJPY","bid":1}\n', "line 1: ask: must be a number"),
        ("q.jsonl", "\n\n{\n", "line 3: "),
    ],
)
def test_a_line_that_cannot_be_used_is_named(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UnreadableRecord, match=message) as caught:
        RecordedQuotes(tmp_path / name, clock=ManualClock())
    assert str(tmp_path / name) in str(caught.value)


def test_a_file_that_is_missing_or_too_long_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "q.csv"
    with pytest.raises(UnreadableRecord, match="cannot be read"):
        RecordedQuotes(path, clock=ManualClock())
    path.write_text(HEAD + GOOD * 3)
    monkeypatch.setattr(recorded_quotes, "RECORDS_MAX", 2)
    with pytest.raises(UnreadableRecord, match="more than 2 quotes"):
        RecordedQuotes(path, clock=ManualClock())
    monkeypatch.setattr(recorded_quotes, "BYTES_MAX", 10)
    with pytest.raises(UnreadableRecord, match="larger than 10 bytes"):
        RecordedQuotes(path, clock=ManualClock())
