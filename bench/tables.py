"""Prints a table of results and the goals that they meet, on the screen and as Markdown."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table


@dataclass(frozen=True)
class Goal:
    """A goal that the results cover."""

    met: bool
    text: str


@dataclass(frozen=True)
class Section:
    """One table of the report; the first `text_columns` are text, the others are figures."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    goals: Sequence[Goal] = ()
    text_columns: int = 2
    notes: Sequence[str] = ()


def print_section(console: Console, section: Section) -> None:
    if not section.rows:
        return
    table = Table(*section.headings, title=section.title, title_justify="left")
    for column in table.columns[section.text_columns :]:
        column.justify = "right"
    for row in section.rows:
        table.add_row(*row)
    console.print(table)
    for note in section.notes:
        console.print(note, highlight=False, markup=False)
    for goal in section.goals:
        verdict = "[green]pass[/]         " if goal.met else "[red]falls short[/]  "
        console.print(f"{verdict}{goal.text}", highlight=False)


def section_markdown(section: Section) -> str:
    """The section as Markdown, with an empty line before it; nothing if it has no rows."""
    if not section.rows:
        return ""
    figures = len(section.headings) - section.text_columns
    lines = ["", f"## {section.title}", "", f"| {' | '.join(section.headings)} |"]
    lines += ["|" + "---|" * section.text_columns + "---:|" * figures]
    lines += [f"| {' | '.join(row)} |" for row in section.rows]
    lines += ["", *(f"- {note}" for note in section.notes)]
    lines += [f"- {'pass' if goal.met else 'falls short'}: {goal.text}" for goal in section.goals]
    return "\n".join(lines).rstrip() + "\n"


def at_least(text: str, figure: float, minimum: float) -> Goal:
    """The goal that a figure, which the text names, is not below the minimum."""
    return Goal(figure >= minimum, f"{text}, goal at least {minimum:g}")


def below(text: str, figure: float, limit: float) -> Goal:
    """The goal that a figure, which the text names, stays under the limit."""
    return Goal(figure < limit, f"{text}, goal below {limit:g}")
