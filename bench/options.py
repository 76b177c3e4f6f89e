"""The command line of `python -m bench`."""

import argparse
from pathlib import Path

from bench.report import Part

# The servers whose accept rate is compared.
ACCEPTING: tuple[Part, ...] = ("hello", "sqlite", "postgres", "redis", "peer")
DEFAULT_PARTS = (
    *ACCEPTING,
    "streams",
    "risk",
    "e2e",
    "half",
    "latency",
    "paper",
    "overload",
    "keys",
    "cache",
    "appends",
    "drain",
    "bus",
    "rebuild",
)
# Take half an hour; `counts` also needs Valgrind.
LONG_PARTS = ("growth", "counts")


class Options(argparse.Namespace):
    """The parsed options."""

    seconds: int
    rounds: int
    connections: list[int]
    rate: int | None
    streams: int
    orders: int
    rows: int
    entries: int
    growth: list[int]
    base: Path | None
    only: list[str]
    out: Path | None
    plot: Path | None


def parsed_options() -> Options:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Measures every server under the same load, in one run on one machine."
    )
    choices = [*DEFAULT_PARTS, *LONG_PARTS]
    parser.add_argument("--seconds", type=_positive, default=8, help="length of each measurement (%(default)s)")
    parser.add_argument(
        "--rounds", type=_positive, default=1, help="repeat accept, end to end and half load; the table shows medians"
    )
    parser.add_argument("--connections", type=_positives, default=[1, 64, 256], help="levels, default 1,64,256")
    parser.add_argument(
        "--base", type=Path, help="another checkout with its own .venv, measured alternately as 'before'"
    )
    parser.add_argument(
        "--rate",
        type=_positive,
        help="orders per second of the half load, instead of half of the end-to-end rate of the base, and of latency",
    )
    parser.add_argument("--streams", type=_positive, default=1_000, help="idle streams (%(default)s)")
    parser.add_argument("--orders", type=_positive, default=640, help="orders of each count (%(default)s)")
    parser.add_argument("--rows", type=_positive, default=50_000, help="rows of each drain (%(default)s)")
    parser.add_argument(
        "--entries",
        type=_positive,
        default=40_000,
        help="entries of the books that are rebuilt (%(default)s)",
    )
    parser.add_argument(
        "--growth",
        type=_positives,
        default=[10_000, 100_000, 1_000_000],
        help="orders in the database, default 10000,100000,1000000",
    )
    parser.add_argument(
        "--only",
        type=_names,
        default=list(DEFAULT_PARTS),
        help=f"some of {','.join(choices)}; the default is all but {','.join(LONG_PARTS)}",
    )
    parser.add_argument("--out", type=Path, help="also write the tables to this file, as Markdown")
    parser.add_argument("--plot", type=Path, help="write the plot of the growth to this file, as SVG")
    options = parser.parse_args(namespace=Options())
    if unknown := set(options.only) - set(choices):
        parser.error(f"--only: no such part: {', '.join(sorted(unknown))}; choose from {', '.join(choices)}")
    if "half" in options.only and "e2e" not in options.only and options.rate is None:
        parser.error("--only: half needs e2e, which measures the rate that is halved, or --rate")
    return options


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def _positives(text: str) -> list[int]:
    return [_positive(part) for part in text.split(",")]


def _names(text: str) -> list[str]:
    return text.split(",")
