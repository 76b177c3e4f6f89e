"""Folds a downloaded ledger and compares it with balances and positions; for backoffice_replay_verify.sh.

Exit code 0: equal; 1: different, with a line for each difference; 3: entries were added during the download.
Standard library only, and no code of the back office: it computes everything again.
"""

import hashlib
import json
import sys
from collections import defaultdict
from decimal import Context, Decimal
from pathlib import Path

CHANGED = 3
EXACT = Context(prec=60)
UNITS = ("position", "position_clearing")


def main(folder: Path) -> int:
    """Compare, print and return the exit code."""
    problems: list[str] = []
    balances: defaultdict[tuple[str, str], Decimal] = defaultdict(Decimal)
    number, digest = 0, "0" * 64
    for path in sorted(folder.glob("ledger.*")):
        for text, entry in entries_of(path.read_text()):
            shown = entry["hash"]
            if entry["number"] != number + 1:
                problems.append(f"entry {entry['number']} comes after entry {number}")
            if hashlib.sha256((digest + text).encode()).hexdigest() != shown:
                problems.append(f"entry {entry['number']} does not have the hash of its text and of the one before it")
            number, digest = int(entry["number"]), shown
            problems += take(entry, balances)
    last = read(folder / "last")["entries"]
    if last and last[-1]["number"] != number:
        return CHANGED
    problems += compare(folder, balances)
    lines = [f"FAIL  {problem}" for problem in problems[:100]]
    lines = lines or [f"ok    {number} entries replayed: chain, balances and positions agree"]
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if problems else 0


def entries_of(text: str) -> list[tuple[str, dict]]:
    """Each entry with its hashed text: the member `hash` is added by the API."""
    decoder = json.JSONDecoder(parse_float=Decimal, parse_int=Decimal)
    found = []
    place = text.index('"entries":[') + len('"entries":[')
    while text[place] != "]":
        entry, end = decoder.raw_decode(text, place)
        suffix = f',"hash":"{entry["hash"]}"}}'
        raw = text[place:end]
        assert raw.endswith(suffix), "an entry ends with its hash"
        found.append((raw[: -len(suffix)] + "}", entry))
        place = end + 1 if text[end] == "," else end
    return found


def take(entry: dict, balances: defaultdict) -> list[str]:
    """Add the entry's legs; returns what is wrong with them."""
    sums: defaultdict[tuple[bool, str], Decimal] = defaultdict(Decimal)
    for leg in entry.get("legs", ()):
        amount = Decimal(leg["amount"])
        key = leg["account"], leg["unit"]
        balances[key] = EXACT.add(balances[key], amount)
        unit = leg["account"] in UNITS, leg["unit"]
        sums[unit] = EXACT.add(sums[unit], amount)
    return [f"entry {entry['number']}: the legs in {unit} sum to {total}" for (_, unit), total in sums.items() if total]


def compare(folder: Path, balances: dict) -> list[str]:
    """Differences between the sums of the legs and what the back office shows."""
    shown = {}
    for path in sorted(folder.glob("balances.*")):
        for row in read(path)["balances"]:
            names = [name for name in row if name != "currency" and isinstance(row[name], Decimal)]
            shown |= {(name, row["currency"]): row[name] for name in names}
    held: defaultdict[str, Decimal] = defaultdict(Decimal)
    for path in sorted(folder.glob("positions.*")):
        for row in read(path)["positions"]:
            held[row["symbol"]] = EXACT.add(held[row["symbol"]], row["qty"])
    shown |= {("position", symbol): qty for symbol, qty in held.items()}
    none = Decimal(0)
    return [
        f"{name} {unit}: the entries give {balances.get((name, unit), none)}, the back office has "
        f"{shown.get((name, unit), none)}"
        for name, unit in sorted(shown.keys() | {key for key in balances if key[0] in ("cash", "position")})
        if shown.get((name, unit), none) != balances.get((name, unit), none)
    ]


def read(path: Path) -> dict:
    """A saved answer, with exact numbers."""
    return json.loads(path.read_text(), parse_float=Decimal, parse_int=Decimal)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
