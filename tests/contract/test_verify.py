"""`verify_audit` names the first bad line, and detects missing or rewritten lines by the signed head."""

from datetime import datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from switchyard.adapters.files.audit_file import LocalAuditFile
from switchyard.adapters.files.head_file import LocalHeadFile, head_path_of
from switchyard.domain.journal.events import SYSTEM_ACCOUNT, event
from switchyard.domain.journal.facts import CutFact
from switchyard.domain.journal.lines import GENESIS, LINE_BYTES_MAX, SignedHead, head_text, link, stamp
from switchyard.flow.history.replay import AuditReport, verify_audit
from tests.support.memory.clock import START

KEY = b"a key that only the operators have"
LINES = 12


def chained(
    count: int = LINES, *, epochs: dict[int, int] | None = None, shift: dict[int, int] | None = None
) -> list[bytes]:
    """Lines as the journal writes them; `epochs` and `shift` (in seconds) change the epoch and the time of a seq."""
    lines, previous = [], GENESIS
    epoch = 1
    for seq in range(1, count + 1):
        epoch = (epochs or {}).get(seq, epoch)
        at: datetime = START + timedelta(seconds=seq + (shift or {}).get(seq, 0))
        fact = CutFact(path=f"ünïcode-{seq}", expected_seq=seq, found_seq=0)
        text = head_text(epoch, 0, seq, stamp(at)) + event("AuditFileCut", SYSTEM_ACCOUNT, None, fact).tail
        previous = link(previous, text)
        lines.append(f'{text},"hash":"{previous}"}}\n'.encode())
    return lines


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.log"


def verified(path: Path, lines: list[bytes], *, head: bool = False) -> AuditReport:
    path.write_bytes(b"".join(lines))
    return verify_audit(LocalAuditFile(path), LocalHeadFile(head_path_of(path)) if head else None, KEY)


def sign(path: Path, seq: int, digest: str, key: bytes = KEY) -> None:
    head = SignedHead(epoch=1, shard=0, seq=seq, hash=digest, at=stamp(START)).signed(key)
    head_path_of(path).write_bytes(head.content())


def hash_of(line: bytes) -> str:
    return line[-67:-3].decode()


def bad_number(report: AuditReport) -> int | None:
    return None if report.bad_line is None else report.bad_line.number


def test_an_untouched_file_is_valid(path: Path) -> None:
    lines = chained()
    report = verified(path, lines)
    assert report.holds
    assert (report.lines, report.last_seq, report.last_hash) == (LINES, LINES, hash_of(lines[-1]))


def test_an_empty_file_is_valid(path: Path) -> None:
    report = verified(path, [])
    assert report.holds
    assert (report.lines, report.last_seq, report.last_hash) == (0, 0, GENESIS)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_flipped_byte_anywhere_is_reported_with_its_line(path: Path, data: st.DataObject) -> None:
    lines = chained(4)
    number = data.draw(st.integers(1, 4), "line")
    place = data.draw(st.integers(0, len(lines[number - 1]) - 1), "byte")
    flip = data.draw(st.integers(1, 255), "flip")
    raw = bytearray(lines[number - 1])
    raw[place] ^= flip
    report = verified(path, [*lines[: number - 1], bytes(raw), *lines[number:]])
    if number == 4 and place == len(raw) - 1:
        # Without its line end the last line counts as unfinished; only the signed head can tell the difference.
        assert (report.lines, report.partial_bytes) == (3, len(raw))
    else:
        assert bad_number(report) == number
        assert report.lines == number - 1


def test_a_deleted_line_is_reported_as_a_gap(path: Path) -> None:
    lines = chained()
    report = verified(path, lines[:4] + lines[5:])
    assert report.bad_line is not None
    assert (report.bad_line.number, report.bad_line.seq) == (5, 6)
    assert report.bad_line.why == "seq is 6, expected 5"


def test_a_missing_first_line_is_reported(path: Path) -> None:
    assert bad_number(verified(path, chained()[1:])) == 1


def test_swapped_lines_are_reported_at_the_first_of_them(path: Path) -> None:
    lines = chained()
    lines[6], lines[7] = lines[7], lines[6]
    assert bad_number(verified(path, lines)) == 7


def test_an_inserted_line_is_reported(path: Path) -> None:
    lines = chained()
    assert bad_number(verified(path, [*lines[:3], lines[2], *lines[3:]])) == 4
    assert bad_number(verified(path, [*lines[:3], b"\n", *lines[3:]])) == 4


def test_a_line_renumbered_to_fit_does_not_match_its_hash(path: Path) -> None:
    lines = chained()
    moved = lines[5].replace(b'"seq":6', b'"seq":5')
    report = verified(path, [*lines[:4], moved])
    assert report.bad_line is not None
    assert (report.bad_line.number, report.bad_line.why) == (
        5,
        "its hash does not match its text and the hash of the line before",
    )


def test_a_time_that_goes_back_is_reported_although_the_hashes_match(path: Path) -> None:
    report = verified(path, chained(shift={8: -5}))
    assert bad_number(report) == 8
    assert report.bad_line is not None
    assert report.bad_line.why.startswith("time ")


def test_the_epoch_may_increase_but_never_decrease(path: Path) -> None:
    assert verified(path, chained(epochs={5: 2})).holds
    report = verified(path, chained(epochs={5: 2, 9: 1}))
    assert report.bad_line is not None
    assert (report.bad_line.number, report.bad_line.why) == (9, "epoch is 1, lower than 2 in the line before")


def test_members_in_another_order_or_with_spaces_are_reported(path: Path) -> None:
    lines = chained()
    assert bad_number(verified(path, [lines[0].replace(b'"epoch":1,"shard":0', b'"shard":0,"epoch":1')])) == 1
    assert bad_number(verified(path, [lines[0].replace(b',"shard"', b', "shard"')])) == 1


def test_a_line_over_the_maximum_is_reported_without_reading_all_of_it(path: Path) -> None:
    assert bad_number(verified(path, [*chained(2), b"x" * (LINE_BYTES_MAX + 1)])) == 3


def test_an_unfinished_last_line_is_reported_but_valid(path: Path) -> None:
    lines = chained()
    report = verified(path, [*lines[:-1], lines[-1][:100]])
    assert report.holds
    assert (report.lines, report.partial_bytes) == (LINES - 1, 100)


def test_missing_lines_at_the_end_are_detected_by_the_signed_head(path: Path) -> None:
    lines = chained()
    sign(path, 10, hash_of(lines[9]))
    assert verified(path, lines, head=True).holds
    assert verified(path, lines[:10], head=True).holds
    assert verified(path, lines[:9]).holds  # without the head this cannot be detected
    report = verified(path, lines[:9], head=True)
    assert report.head_problem == "lines are missing at the end: the last seq is 9, the signed head is at seq 10"
    assert not report.holds


def test_a_rewritten_file_is_detected_by_the_signed_head(path: Path) -> None:
    sign(path, 10, hash_of(chained()[9]))
    report = verified(path, chained(shift={3: -1}), head=True)
    assert report.bad_line is None
    assert report.head_problem is not None
    assert "rewritten" in report.head_problem


def test_an_edited_head_is_reported(path: Path) -> None:
    lines = chained()
    sign(path, 10, hash_of(lines[9]))
    head_path_of(path).write_bytes(head_path_of(path).read_bytes().replace(b'"seq":10', b'"seq":9'))
    report = verified(path, lines[:9], head=True)
    assert report.head_problem is not None
    assert str(head_path_of(path)) in report.head_problem


@pytest.mark.parametrize("content", [b"", b"not json", b"{}", b'{"seq":"\xff"}'])
def test_an_unreadable_head_is_reported(path: Path, content: bytes) -> None:
    head_path_of(path).write_bytes(content)
    assert verified(path, chained(), head=True).head_problem is not None


def test_a_missing_head_is_reported(path: Path) -> None:
    report = verified(path, chained(), head=True)
    assert report.head_problem == f"{head_path_of(path)} is missing"


def test_the_head_may_be_kept_in_another_folder(path: Path, tmp_path: Path) -> None:
    lines = chained()
    sign(path, LINES, hash_of(lines[-1]))
    elsewhere = tmp_path / "elsewhere"
    head_path_of(path).rename(elsewhere)
    path.write_bytes(b"".join(lines))
    assert verify_audit(LocalAuditFile(path), LocalHeadFile(elsewhere), KEY).holds
