"""The equity and drawdown of a recheck as an SVG picture. Pure; a hundred lines replace a plotting library."""

from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from typing import Final
from xml.sax.saxutils import escape

from switchyard.domain.money import ROUNDED, ZERO, plain
from switchyard.domain.pdca.metrics.series import drawdowns, equity

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
    parts.append(_line(path, scale, "#1f5fa8"))
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


def _line(values: Sequence[Decimal], scale: _Scale, colour: str) -> str:
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
