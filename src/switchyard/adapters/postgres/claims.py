"""The claims of a group as the server-side function `breached_claims` reads them, and what it returns."""

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import msgspec

from switchyard.domain.changes import Change
from switchyard.domain.orders import Order
from switchyard.domain.risk.book import claimed_order
from switchyard.domain.risk.claims import Breach, BreachCode, Claim, Limits
from switchyard.domain.risk.exposure import totals_of

_encoder = msgspec.json.Encoder()
_breaches = msgspec.json.Decoder(dict[int, tuple[BreachCode, Decimal, Decimal, bool]])
_LIMITS = Limits.__struct_fields__


def claims_json(changes: Sequence[Change]) -> str | None:
    """The claims with the keys of the totals that they need, each once; none where no change has a claim."""
    if not any(change.claims for change in changes):
        return None
    rows = _Rows()
    for number, change in enumerate(changes):
        for claim in change.claims:
            rows.add(number, claim, claimed_order(change, claim))
    return rows.encoded()


def breaches_from(text: str | None) -> dict[int, Breach]:
    """The breaches by the number of their change."""
    return {} if text is None else {number: Breach(*parts) for number, parts in _breaches.decode(text).items()}


class _Rows:
    """Numbers the totals from 1, as arrays of PostgreSQL do."""

    def __init__(self) -> None:
        self._lines: dict[tuple[str, str, str], dict[str, Any]] = {}
        self._purses: dict[tuple[str, str], dict[str, Any]] = {}
        self._owners: dict[str, dict[str, Any]] = {}
        self._claims: list[dict[str, Any]] = []

    def add(self, number: int, claim: Claim, order: Order) -> None:
        part = totals_of(order)
        self._claims.append(
            {
                "change": number,
                "line": self._line(order),
                "purse": self._purse(claim, order),  # its key, until all claims are known
                "owner": self._owner(claim, order),
                "side": order.side,
                "qty": order.qty,
                "notional": part.notional,
                "reducing": order.reducing,
                **{name: limit for name in _LIMITS if (limit := getattr(claim.limits, name)) is not None},
            }
        )

    def encoded(self) -> str:
        for claim in self._claims:
            # Another claim of the group may need the sum, and this one adds to it.
            purse = self._purses.get(claim["purse"])
            claim["purse"] = None if purse is None else purse["purse"]
        rows = {
            "lines": list(self._lines.values()),
            "purses": list(self._purses.values()),
            "owners": list(self._owners.values()),
            "claims": self._claims,
        }
        return _encoder.encode(rows).decode()

    def _line(self, order: Order) -> int:
        account, symbol, currency = order.account_id, order.symbol, order.currency or ""
        row = {"line": len(self._lines) + 1, "account_id": account, "symbol": symbol, "currency": currency}
        line: int = self._lines.setdefault((account, symbol, currency), row)["line"]
        return line

    def _purse(self, claim: Claim, order: Order) -> tuple[str, str]:
        """The account and currency; numbered only if a limit needs the sum over the account's symbols."""
        limits, key = claim.limits, (order.account_id, order.currency or "")
        if limits.open_notional is not None or limits.gross_exposure is not None or limits.daily_loss is not None:
            row = {"purse": len(self._purses) + 1, "account_id": key[0], "currency": key[1], "day": None}
            purse = self._purses.setdefault(key, row)
            purse["day"] = claim.day or purse["day"]
        return key

    def _owner(self, claim: Claim, order: Order) -> int:
        row = self._owners.setdefault(
            order.account_id,
            {"owner": len(self._owners) + 1, "account_id": order.account_id, "since": None, "counts": False},
        )
        if claim.since is not None:
            row["since"] = claim.since if row["since"] is None else min(row["since"], claim.since)
        row["counts"] = row["counts"] or claim.limits.open_orders is not None
        owner: int = row["owner"]
        return owner
