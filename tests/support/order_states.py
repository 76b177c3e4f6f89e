"""The page of the order's states: pictures and tables of the table in `domain/orders/lifecycle.py`.

Reads the module and the comments of its statuses and steps; `python -m tests.support.order_states` writes the page.
"""

import inspect
import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import get_args

from switchyard.domain.orders import lifecycle
from switchyard.domain.orders.lifecycle import ImpossibleStep, Status, Step, is_final, next_status

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "order-states.md"
STATUSES: tuple[Status, ...] = get_args(Status)
STEPS: tuple[Step, ...] = get_args(Step)
OPEN = tuple(status for status in STATUSES if not is_final(status))
ENDED = tuple(status for status in STATUSES if is_final(status))

_TEXT = """\
# The states of an order

This page is generated from `domain/orders/lifecycle.py`; after a change there run
`.venv/bin/python -m tests.support.order_states`.

A new order is `ACCEPTED`, or `REJECTED` if a pre-trade check rejects it. It moves by steps: attempts to send it,
cancels, and what its venue answers and reports. A step that the table does not have raises `ImpossibleStep`, a defect.
Steps that leave the status as it is are not drawn.

## Open orders

{opened}
The steps that end an order from every open status:

{shared}
## After the end

A report of the venue outweighs an end that was decided without one.

{ended}
## Statuses

| status | ends the order | meaning |
|---|---|---|
{statuses}
## Steps

{steps}
The status after each step. `same`: it stays as it is. An empty cell: the step is impossible there.

{open_table}
{ended_table}"""


def page() -> str:
    """The text of the page."""
    shared = _shared()
    from_each = {("open", end): ", ".join(steps) for end, steps in _by_end(shared).items()}
    comments = _comments()
    return _TEXT.format(
        opened=_diagram(["[*] --> ACCEPTED"], _moves(OPEN, without=shared)),
        shared=_diagram(['state "every open status" as open'], from_each),
        ended=_diagram([], _moves(ENDED)),
        statuses="".join(f"| `{each}` | {'yes' if is_final(each) else ''} | {comments[each]} |\n" for each in STATUSES),
        steps="".join(_meanings(comments)),
        open_table="".join(_table(OPEN)),
        ended_table="".join(_table(ENDED)),
    )


def _after(status: Status, step: Step) -> Status | None:
    try:
        return next_status(status, step)
    except ImpossibleStep:
        return None


def _shared() -> dict[Step, Status]:
    """The steps that lead from every open status to the same status."""
    ends = {step: {_after(status, step) for status in OPEN} for step in STEPS}
    return {step: end for step, (end, *others) in ends.items() if end is not None and not others}


def _by_end(shared: Mapping[Step, Status]) -> dict[Status, list[Step]]:
    found: dict[Status, list[Step]] = defaultdict(list)
    for step, end in shared.items():
        found[end].append(step)
    return found


def _moves(starts: Iterable[Status], without: Collection[Step] = ()) -> Mapping[tuple[str, Status], str]:
    """The steps from each status to another one, without those that are drawn once for all."""
    found: dict[tuple[str, Status], list[Step]] = defaultdict(list)
    for start in starts:
        for step in STEPS:
            end = _after(start, step)
            if end is not None and end != start and step not in without:
                found[start, end].append(step)
    return {move: ", ".join(steps) for move, steps in found.items()}


def _diagram(first: Sequence[str], moves: Mapping[tuple[str, Status], str]) -> str:
    lines = [*first, *(f"{start} --> {end}: {steps}" for (start, end), steps in moves.items())]
    return "\n".join(["```mermaid", "stateDiagram-v2", *(f"    {line}" for line in lines), "```", ""])


def _comments() -> Mapping[str, str]:
    """The comment beside each status and step."""
    found = re.findall(r'^    "(\w+)",(?:  # (.*))?$', inspect.getsource(lifecycle), re.MULTILINE)
    return {name: comment.replace("|", "\\|") for name, comment in found}


def _meanings(comments: Mapping[str, str]) -> Iterator[str]:
    yield "| step | meaning |\n|---|---|\n"
    for step in STEPS:
        yield f"| `{step}` | {comments[step]} |\n"


def _table(statuses: Sequence[Status]) -> Iterator[str]:
    yield "| step | " + " | ".join(f"`{status}`" for status in statuses) + " |\n"
    yield "|---" * (len(statuses) + 1) + "|\n"
    for step in STEPS:
        ends = [_after(status, step) for status in statuses]
        if any(ends):
            cells = ["same" if end == start else end or "" for start, end in zip(statuses, ends, strict=True)]
            yield f"| `{step}` | " + " | ".join(cells) + " |\n"


if __name__ == "__main__":
    PAGE.write_text(page())
