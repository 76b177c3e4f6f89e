"""Draws the growth as an SVG: one small chart for each figure, one line for each server."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from bench.growth.report import Growth
from bench.memory import MIB
from bench.report import NAMES, Part

COLUMNS = 3
WIDTH, HEIGHT = 300, 210
LEFT, RIGHT, TOP, BOTTOM = 52, 16, 34, 30
LEGEND_HEIGHT = 34
COLOURS: Mapping[Part, str] = {"sqlite": "#0b6e99", "postgres": "#b5551d"}


@dataclass(frozen=True)
class Chart:
    title: str
    figure: Callable[[Growth], float]


CHARTS = (
    Chart("accepts per second", lambda result: result.accepts_per_second),
    Chart("claims per second", lambda result: result.claims_per_second),
    Chart("restart, seconds", lambda result: result.restart_seconds),
    Chart("GET /orders p99, ms", lambda result: result.list_p99_ms),
    Chart("GET /orders/{id} p99, ms", lambda result: result.order_p99_ms),
    Chart("resident memory, MiB", lambda result: result.memory_bytes / MIB),
)


def growth_svg(results: Sequence[Growth]) -> str:
    rows = -(-len(CHARTS) // COLUMNS)
    width, height = COLUMNS * WIDTH, rows * HEIGHT + LEGEND_HEIGHT
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        'font-size="11" fill="#333">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for number, chart in enumerate(CHARTS):
        row, column = divmod(number, COLUMNS)
        lines.append(f'<g transform="translate({column * WIDTH},{row * HEIGHT})">')
        lines += [*_chart(chart, results), "</g>"]
    lines += [*_legend(results, rows * HEIGHT + 20), "</svg>"]
    return "\n".join(lines) + "\n"


def _chart(chart: Chart, results: Sequence[Growth]) -> Iterator[str]:
    """Orders on a logarithmic axis; the figure on an axis from 0, because a flat line is what matters."""
    sizes = [math.log10(result.orders) for result in results]
    first, span = min(sizes), (max(sizes) - min(sizes)) or 1.0
    top = max(chart.figure(result) for result in results) * 1.1 or 1.0

    def place(result: Growth) -> tuple[float, float]:
        x = LEFT + (math.log10(result.orders) - first) / span * (WIDTH - LEFT - RIGHT)
        y = HEIGHT - BOTTOM - chart.figure(result) / top * (HEIGHT - TOP - BOTTOM)
        return round(x, 1), round(y, 1)

    yield f'<text x="{LEFT}" y="20" font-weight="bold">{chart.title}</text>'
    for share in (0.0, 0.5, 1.0):
        y = HEIGHT - BOTTOM - share / 1.1 * (HEIGHT - TOP - BOTTOM)
        yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{_short(share * top / 1.1)}</text>'
    for part, colour in COLOURS.items():
        own = [result for result in results if result.part == part]
        points = [place(result) for result in own]
        joined = " ".join(f"{x},{y}" for x, y in points)
        yield f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="2"/>'
        yield from (f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in points)
    # The sizes of both servers differ a little, so that the labels of the first stand for both.
    labelled = results[0].part if results else None
    for result in results:
        if result.part == labelled:
            x, _ = place(result)
            yield f'<text x="{x}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{_short(result.orders)}</text>'


def _legend(results: Sequence[Growth], y: int) -> Iterator[str]:
    for number, part in enumerate(dict.fromkeys(result.part for result in results)):
        x = LEFT + number * WIDTH
        yield f'<rect x="{x}" y="{y - 9}" width="10" height="10" fill="{COLOURS[part]}"/>'
        yield f'<text x="{x + 16}" y="{y}">{NAMES[part]}, by orders in the database</text>'


def _short(value: float) -> str:
    if value >= 1_000_000:
        return f"{value / 1_000_000:.3g} M"
    if value >= 1_000:
        return f"{value / 1_000:.3g} k"
    return f"{value:.3g}"
