"""The artifacts of a recheck: the metrics as JSON, the fills as CSV, equity and drawdown as SVG. Pure."""

from collections import deque
from collections.abc import Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Final
from xml.sax.saxutils import escape

import msgspec

from switchyard.domain.ids import AccountId
from switchyard.domain.journal.events import encode
from switchyard.domain.journal.lines import stamp
from switchyard.domain.strategies.metrics import Fill, Judgement, Measured, Track, Undefined, drawdowns, equity, shown
from switchyard.domain.strategies.registry import METRICS, Capital, Health, MetricName, Strategy
from switchyard.domain.strategies.requests import RecheckRequest
from switchyard.domain.values import ROUNDED, ZERO, plain

WIDTH: Final = 860
HEIGHT: Final = 470
_LEFT, _RIGHT = 110, 810
_EQUITY_TOP, _EQUITY_BOTTOM = 60, 290
_DRAWDOWN_TOP, _DRAWDOWN_BOTTOM = 330, 430
_DATES_MAX = 6
_FONT = "font-family='Helvetica,Arial,sans-serif' font-size='12'"
_STEPS = (Decimal(1), Decimal(2), Decimal("2.5"), Decimal(5), Decimal(10))
_HUNDRED = Decimal(100)


def equity_chart(strategy: str, days: Sequence[date], daily: Sequence[Decimal], capital: Decimal, unit: str) -> bytes:
    """The equity by day above its drawdown; the first point is the capital before the first day."""
    path = equity(daily, capital)
    falls = [ROUNDED.multiply(fall, _HUNDRED) for fall in drawdowns(path)]
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{HEIGHT}' "
        f"viewBox='0 0 {WIDTH} {HEIGHT}' role='img'>",
        f"<rect width='{WIDTH}' height='{HEIGHT}' fill='white'/>",
        _text(_LEFT, 24, f"{strategy}: equity and drawdown", size=16),
        _text(_LEFT, 46, f"Equity ({unit})"),
        _text(_LEFT, _DRAWDOWN_TOP - 14, "Drawdown from the peak (%)"),
    ]
    scale = _Scale(min(path), max(path), _EQUITY_TOP, _EQUITY_BOTTOM)
    parts += scale.grid()
    parts.append(_polyline(path, scale, "#1f5fa8"))
    fall_scale = _Scale(ZERO, max(falls), _DRAWDOWN_BOTTOM, _DRAWDOWN_TOP)
    parts += fall_scale.grid(count=2)
    parts.append(_area(falls, fall_scale, "#b3352c"))
    parts += _dates(days)
    parts.append("</svg>\n")
    return "\n".join(parts).encode()


class _Scale:
    """Maps values to heights, and chooses round values for the lines of the grid."""

    def __init__(self, low: Decimal, high: Decimal, top: int, bottom: int) -> None:
        if low == high:  # a flat line still needs a height
            high = ROUNDED.add(high, max(Decimal(1), ROUNDED.multiply(high.copy_abs(), Decimal("0.01"))))
        self._low, self._high, self._top, self._bottom = low, high, top, bottom

    def y(self, value: Decimal) -> Decimal:
        """The height of a value; `top` is that of the highest."""
        share = ROUNDED.divide(ROUNDED.subtract(value, self._low), ROUNDED.subtract(self._high, self._low))
        return ROUNDED.add(Decimal(self._bottom), ROUNDED.multiply(share, Decimal(self._top - self._bottom)))

    def grid(self, count: int = 6) -> list[str]:
        """Lines at round values, with their labels."""
        parts = []
        for value in _round_values(self._low, self._high, count):
            y = _number(self.y(value))
            parts.append(f"<line x1='{_LEFT}' x2='{_RIGHT}' y1='{y}' y2='{y}' stroke='#dddddd'/>")
            parts.append(f"<text x='{_LEFT - 8}' y='{y}' dy='4' text-anchor='end' {_FONT}>{plain(value)}</text>")
        return parts


def _round_values(low: Decimal, high: Decimal, count: int) -> list[Decimal]:
    """Multiples of a round step between two values; about as many as asked."""
    rough = ROUNDED.divide(ROUNDED.subtract(high, low), Decimal(count))
    magnitude = Decimal(1).scaleb(rough.adjusted())
    step = next(step * magnitude for step in _STEPS if step * magnitude >= rough)
    first = ROUNDED.to_integral_value(ROUNDED.divide(low, step))
    values = [ROUNDED.multiply(first + number, step) for number in range(2 * count + 2)]
    return [value for value in values if low <= value <= high]


def _x(number: int, count: int) -> Decimal:
    return Decimal(_LEFT) + Decimal(_RIGHT - _LEFT) * number / max(count - 1, 1)


def _points(values: Sequence[Decimal], scale: _Scale) -> list[str]:
    count = len(values)
    return [f"{_number(_x(number, count))},{_number(scale.y(value))}" for number, value in enumerate(values)]


def _polyline(values: Sequence[Decimal], scale: _Scale, colour: str) -> str:
    return f"<polyline fill='none' stroke='{colour}' stroke-width='2' points='{' '.join(_points(values, scale))}'/>"


def _area(values: Sequence[Decimal], scale: _Scale, colour: str) -> str:
    floor = _number(scale.y(ZERO))
    corners = [f"{_LEFT},{floor}", *_points(values, scale), f"{_number(_x(len(values) - 1, len(values)))},{floor}"]
    return f"<polygon fill='{colour}' fill-opacity='0.35' stroke='{colour}' points='{' '.join(corners)}'/>"


def _dates(days: Sequence[date]) -> list[str]:
    """Labels below the ends of some days; point 0 is before the first day."""
    every = max(1, -(-len(days) // _DATES_MAX))
    return [
        f"<text x='{_number(_x(number, len(days) + 1))}' y='{HEIGHT - 18}' text-anchor='middle' {_FONT}>{day}</text>"
        for number, day in enumerate(days, 1)
        if (len(days) - number) % every == 0
    ]


def _text(x: int, y: int, text: str, size: int = 12) -> str:
    return f"<text x='{x}' y='{y}' font-family='Helvetica,Arial,sans-serif' font-size='{size}'>{escape(text)}</text>"


def _number(value: Decimal) -> str:
    """A length in the picture: a tenth of a pixel is enough."""
    return format(ROUNDED.quantize(value, Decimal("0.1")), "f")


_HEADER: Final = (
    "at",
    "account_id",
    "order_id",
    "exec_id",
    "venue",
    "symbol",
    "side",
    "qty",
    "price",
    "multiplier",
    "currency",
    "fee",
    "fee_currency",
)
# A spreadsheet takes a text that begins with one of these for a formula; the wide forms are those of Japanese input.
_FORMULA_STARTS: Final = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")


class FillsTable:
    """The newest fills that fit into a number of bytes, the oldest of them first."""

    def __init__(self, bytes_max: int) -> None:
        self._header = _csv_line(_HEADER)
        self._room = bytes_max - len(self._header)
        self._lines: deque[bytes] = deque()
        self.dropped = 0
        """Older fills that did not fit."""

    def add(self, fill: Fill) -> None:
        """Add a fill; where there is no room, the oldest ones make it."""
        line = _csv_line(_values(fill))
        self._lines.append(line)
        self._room -= len(line)
        while self._room < 0:
            self._room += len(self._lines.popleft())
            self.dropped += 1

    @property
    def listed(self) -> int:
        """How many fills it has."""
        return len(self._lines)

    def content(self) -> bytes:
        """The table as UTF-8."""
        return b"".join((self._header, *self._lines))


def safe_text(text: str) -> str:
    """The text, with an apostrophe before it where a spreadsheet would take it for a formula."""
    return f"'{text}" if text.startswith(_FORMULA_STARTS) else text


def _values(fill: Fill) -> tuple[str, ...]:
    # Numbers are our own text: a minus sign before digits is no formula.
    return (
        stamp(fill.at),
        safe_text(fill.account_id),
        safe_text(fill.order_id),
        safe_text(fill.exec_id),
        safe_text(fill.venue),
        safe_text(fill.symbol),
        fill.side,
        plain(fill.qty),
        plain(fill.price),
        plain(fill.multiplier),
        safe_text(fill.currency),
        plain(fill.fee),
        safe_text(fill.fee_currency or ""),
    )


def _csv_line(values: tuple[str, ...]) -> bytes:
    # A lone surrogate from a venue's text must not stop the table.
    return (",".join(map(_quoted, values)) + "\r\n").encode("utf-8", "replace")


def _quoted(text: str) -> str:
    return '"' + text.replace('"', '""') + '"' if any(mark in text for mark in ',"\r\n') else text


METRICS_FILE: Final = "metrics.json"
FILLS_FILE: Final = "fills.csv"
CHART_FILE: Final = "equity.svg"


class File(msgspec.Struct, frozen=True):
    """An artifact."""

    name: str
    media_type: str
    content: bytes


class FullFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A metric with the size of its sample."""

    value: Decimal | None
    unit: str | None
    reason: Undefined | None
    sample: int


class Day(msgspec.Struct, frozen=True):
    """A day of the series."""

    date: str
    net_pnl: Decimal


class MetricsReport(msgspec.Struct, frozen=True, kw_only=True):
    """The content of `metrics.json`."""

    request_id: str
    account_id: AccountId | None
    """None for a strategy of a client, in which no orders count."""
    strategy_id: str
    window_from: datetime
    window_to: datetime
    """Inclusive; not later than the acceptance of the request."""
    books_seq: int
    """The journal number up to which the books had been read, at least."""
    days_per_year: int
    capital: Capital | None
    currency: str | None
    fills: int
    fills_listed: int
    """Those of them in `fills.csv`; the oldest are left out where they do not fit."""
    orders: int
    round_trips: int
    net_pnl: Decimal | None
    metrics: dict[MetricName, FullFigure]
    fill_latency_p95: FullFigure
    health: Health
    health_reasons: tuple[str, ...]
    daily: list[Day]
    """Empty where results are in several currencies."""


def files(
    request: RecheckRequest,
    strategy: Strategy,
    track: Track,
    measured: Measured,
    judgement: Judgement,
    table: FillsTable,
    *,
    window_to: datetime,
    books_seq: int,
    days_per_year: int,
) -> list[File]:
    """The artifacts; the chart needs one currency, a capital and a day."""
    days, daily = list(track.daily), list(track.daily.values())
    is_mixed = measured.net_pnl is None
    report = MetricsReport(
        request_id=request.request_id,
        account_id=strategy.account_id,
        strategy_id=strategy.strategy_id,
        window_from=track.window.start,
        window_to=window_to,
        books_seq=books_seq,
        days_per_year=days_per_year,
        capital=strategy.capital,
        currency=measured.currency,
        fills=measured.fills,
        fills_listed=table.listed,
        orders=measured.orders,
        round_trips=measured.round_trips,
        net_pnl=measured.net_pnl,
        metrics={name: _full(name, measured) for name in selected(request, strategy)},
        fill_latency_p95=FullFigure(
            value=measured.slowest_fills.value,
            unit="ms",
            reason=measured.slowest_fills.reason,
            sample=measured.slowest_fills.sample,
        ),
        health=judgement.health,
        health_reasons=judgement.reasons,
        daily=[] if is_mixed else [Day(day.isoformat(), amount) for day, amount in zip(days, daily, strict=True)],
    )
    found = [
        File(METRICS_FILE, "application/json", encode(report)),
        File(FILLS_FILE, "text/csv; charset=utf-8", table.content()),
    ]
    if strategy.capital is not None and days and not is_mixed:
        capital = strategy.capital
        chart = equity_chart(strategy.strategy_id, days, daily, capital.amount, capital.currency)
        found.append(File(CHART_FILE, "image/svg+xml", chart))
    return found


def selected(request: RecheckRequest, strategy: Strategy) -> list[MetricName]:
    """The metrics that the request asks for and those that the health is judged by; all, if it asks for none."""
    wanted = {*request.metrics, *strategy.thresholds} if request.metrics else set(METRICS)
    return [name for name in METRICS if name in wanted]


def _full(name: MetricName, measured: Measured) -> FullFigure:
    figure = measured.metrics[name]
    unit = shown(name, figure, measured.currency).unit
    return FullFigure(value=figure.value, unit=unit, reason=figure.reason, sample=figure.sample)
