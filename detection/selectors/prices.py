"""Reads of the price table: which price applies to a model, and what its tokens cost."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fnmatch import fnmatchcase

from django.db.models import QuerySet

from detection.models import ModelPrice, Recalculation, Session
from detection.selectors.session_rows import SessionRow


@dataclass(frozen=True, slots=True)
class Price:
    """A price in US dollars per million tokens."""

    backend: str
    model: str
    input_usd: float
    cached_input_usd: float
    cache_write_usd: float
    output_usd: float

    def cost(
        self, input_tokens: int, cached_tokens: int, cache_write_tokens: int, output_tokens: int
    ) -> float:
        """Return what tokens cost in US dollars; `input_tokens` include the cached and the written ones."""
        fresh = max(0, input_tokens - cached_tokens - cache_write_tokens)
        return (
            fresh * self.input_usd
            + cached_tokens * self.cached_input_usd
            + cache_write_tokens * self.cache_write_usd
            + output_tokens * self.output_usd
        ) / 1_000_000


class PriceList:
    """The prices of a project.

    Parameters
    ----------
    prices
        In any order.
    """

    def __init__(self, prices: Iterable[Price]) -> None:
        ranked = sorted(prices, key=_rank, reverse=True)
        self._prices = [(price, _glob(price.model)) for price in ranked]

    def find(self, backend: str, models: Sequence[str]) -> Price | None:
        """Return the price for the first of the model's names that has one, None for an unknown model.

        A price for the backend takes precedence over one for all backends, then the longest pattern applies.
        """
        for model in models:
            for price, pattern in self._prices:
                if price.backend in ("", backend) and fnmatchcase(model.lower(), pattern):
                    return price
        return None


def _rank(price: Price) -> tuple[bool, int, bool]:
    return bool(price.backend), len(price.model.replace("*", "")), "*" not in price.model


def _glob(text: str) -> str:
    """Return a pattern of `fnmatch` in which only the star is special."""
    return text.lower().replace("[", "[[]").replace("?", "[?]")


FRESH_SECONDS = 0.9
"""How long the prices of a project are used without a query: a change takes effect within a second."""
MAX_PROJECTS = 1_000


class PriceCache:
    """The prices of the projects that this process used lately; bounded."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[float, PriceList]] = {}

    def get(self, project_id: int) -> PriceList:
        """Return the prices of a project, at most a second old; at most one query."""
        found = self._known.get(project_id)
        if found is not None and time.monotonic() - found[0] < FRESH_SECONDS:
            return found[1]
        prices = load_prices(project_id)
        if len(self._known) >= MAX_PROJECTS:
            self._known.clear()
        self._known[project_id] = (time.monotonic(), prices)
        return prices


price_cache = PriceCache()


def known_cost(session: Session | SessionRow) -> Decimal | None:
    """Return the cost of a session; None if it is unknown: no tokens were reported, or they have no price."""
    if session.cost_usd:
        return session.cost_usd
    if not session.token_count:
        return None
    price = price_cache.get(session.project_id).find(session.backend, [session.model])
    return None if price is None else session.cost_usd


def list_prices(project_id: int) -> QuerySet[ModelPrice]:
    """Return the prices of a project by backend and model."""
    return ModelPrice.objects.filter(project_id=project_id).order_by("backend", "model")


def recalculation(project_id: int) -> Recalculation | None:
    """Return the newest recalculation of imported calls; None if no price was ever changed."""
    return Recalculation.objects.filter(project_id=project_id).first()


def load_prices(project_id: int) -> PriceList:
    """Return the prices of a project; one query."""
    return PriceList(_price(row) for row in ModelPrice.objects.filter(project_id=project_id))


def _price(row: ModelPrice) -> Price:
    base = float(row.input_usd)
    return Price(
        row.backend,
        row.model,
        base,
        base if row.cached_input_usd is None else float(row.cached_input_usd),
        base if row.cache_write_usd is None else float(row.cache_write_usd),
        float(row.output_usd),
    )
