"""Adds what a process of the gateway counted to the rows of minutes and hours, with costs, and deletes old rows."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime, timedelta
from itertools import starmap
from typing import Any, Final

import orjson
from django.db import connection, transaction
from django.utils import timezone

from detection.models import GatewayBackend, GatewayTraffic, TrafficPeriod
from detection.selectors.gateway_traffic import ADDED_MS, ERROR_KINDS
from detection.selectors.prices import load_prices

MINUTES_KEPT: Final = timedelta(hours=48)
HOURS_KEPT: Final = timedelta(days=366)
MAX_MODELS: Final = 100
"""Maximum number of model names per backend and hour; further models are counted without a name."""
MAX_NAME_CHARACTERS: Final = 200
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(slots=True)
class TrafficCounts:
    """Counts of requests to one backend and model.

    Attributes
    ----------
    input_tokens
        Includes tokens read from or written to a cache.
    abandoned
        Requests whose client disconnected before the end of the response.
    unguarded
        Requests of other paths than those that are guarded, except for lists of models and counts of tokens.
    unpriced_tokens, cost_usd
        Filled in when the counts are stored.
    added_counts
        Requests by the time that LoopGuard added, in the steps of `ADDED_MS`.
    added_ms
        Sum of these times.
    """

    requests: int = 0
    unreachable: int = 0
    timeouts: int = 0
    rate_limited: int = 0
    client_errors: int = 0
    server_errors: int = 0
    cut: int = 0
    unreadable: int = 0
    abandoned: int = 0
    unguarded: int = 0
    input_tokens: int = 0
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    unpriced_tokens: int = 0
    cost_usd: float = 0.0
    added_counts: list[int] = field(default_factory=lambda: [0] * (len(ADDED_MS) + 1))
    added_ms: float = 0.0

    def count_error(self, kind: str) -> None:
        """Count an error of the model server, one of `ERROR_KINDS`."""
        setattr(self, kind, getattr(self, kind) + 1)

    def count_added(self, milliseconds: float) -> None:
        """Count the time that LoopGuard added to a request."""
        step = next((n for n, limit in enumerate(ADDED_MS) if milliseconds <= limit), len(ADDED_MS))
        self.added_counts[step] += 1
        self.added_ms += milliseconds

    def add(self, other: TrafficCounts) -> None:
        """Add other counts to these."""
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.added_counts = [a + b for a, b in zip(self.added_counts, other.added_counts, strict=True)]


@dataclass(frozen=True, slots=True)
class TrafficKey:
    """The backend, model and minute of counts.

    Attributes
    ----------
    project_id
        That of the backend.
    minute
        Number of the minute since 1970.
    model, answered
        The model as the agent asked for it, and as the model server names it; empty where unknown.
    """

    project_id: int
    backend: str
    minute: int
    model: str = ""
    answered: str = ""


_SUMS: Final = tuple(one.name for one in fields(TrafficCounts) if one.name != "added_counts")
_COLUMNS: Final = ", ".join((*_SUMS, "added_counts"))
_TYPES: Final = ", ".join(
    f"{name} {'numeric' if name == 'cost_usd' else 'float8' if name == 'added_ms' else 'bigint'}"
    for name in _SUMS
)
_UPSERT: Final = f"""
INSERT INTO detection_gatewaytraffic AS total (project_id, backend_id, period, at, model, {_COLUMNS})
SELECT project_id, backend_id, period, at, model, {_COLUMNS}
FROM json_to_recordset(%s::json) AS fresh (
    project_id bigint, backend_id bigint, period smallint, at timestamptz, model text, {_TYPES}, added_counts bigint[])
ORDER BY project_id, backend_id, period, at, model
ON CONFLICT (project_id, backend_id, period, at, model) DO UPDATE SET
    {", ".join(f"{name} = total.{name} + excluded.{name}" for name in _SUMS)},
    added_counts = (SELECT array_agg(one.a + one.b ORDER BY one.place) FROM
        unnest(total.added_counts, excluded.added_counts) WITH ORDINALITY AS one (a, b, place))
"""  # noqa: S608 (names of columns)
assert set(ERROR_KINDS) < set(_SUMS)  # noqa: S101 (checked once, when the module is imported)
_Place = tuple[int, int, int, datetime, str]


@transaction.atomic
def store_traffic(counts: Mapping[TrafficKey, TrafficCounts]) -> None:
    """Add counts to the rows of their minutes and hours; counts of deleted backends are dropped.

    Four queries for each project.
    """
    for project_id in sorted({key.project_id for key in counts}):
        _store(project_id, {key: one for key, one in counts.items() if key.project_id == project_id})


def _store(project_id: int, counts: Mapping[TrafficKey, TrafficCounts]) -> None:
    rows = GatewayBackend.objects.filter(project_id=project_id, public_id__in={one.backend for one in counts})
    # No row of a backend may appear while it is being deleted.
    locked = rows.order_by("pk").select_for_update(no_key=True, of=("self",))
    backends = {row.public_id: row for row in locked.only("pk", "public_id", "project_id", "name")}
    prices = load_prices(project_id)
    models = _known_models([*backends.values()], [key.minute for key in counts])
    totals: dict[_Place, TrafficCounts] = defaultdict(TrafficCounts)
    for key, one in counts.items():
        backend = backends.get(key.backend)
        if backend is None:
            continue
        tokens = (one.input_tokens, one.cached_tokens, one.cache_write_tokens, one.output_tokens)
        price = prices.find(backend.name, [name for name in (key.model, key.answered) if name])
        one.cost_usd = price.cost(*tokens) if price else 0.0
        one.unpriced_tokens = 0 if price else one.input_tokens + one.output_tokens
        minute = EPOCH + timedelta(minutes=key.minute)
        hour = minute.replace(minute=0)
        model = _bounded((key.model or key.answered)[:MAX_NAME_CHARACTERS], models[backend.pk, hour])
        place = backend.project_id, backend.pk
        totals[*place, TrafficPeriod.MINUTE, minute, model].add(one)
        totals[*place, TrafficPeriod.HOUR, hour, model].add(one)
        totals[*place, TrafficPeriod.ALWAYS, EPOCH, ""].add(one)
    if totals:
        documents = list(starmap(_document, totals.items()))
        with connection.cursor() as cursor:
            cursor.execute(_UPSERT, [orjson.dumps(documents).decode()])


def _known_models(backends: Any, minutes: Sequence[int]) -> dict[tuple[int, datetime], set[str]]:
    first = EPOCH + timedelta(minutes=min(minutes, default=0))
    found = GatewayTraffic.objects.filter(
        backend__in=backends, period=TrafficPeriod.HOUR, at__gte=first.replace(minute=0)
    )
    known: dict[tuple[int, datetime], set[str]] = defaultdict(set)
    for backend_id, at, model in found.values_list("backend_id", "at", "model"):
        known[backend_id, at].add(model)
    return known


def _bounded(model: str, known: set[str]) -> str:
    if model in known or len(known) < MAX_MODELS:
        known.add(model)
        return model
    return ""


def _document(place: _Place, counts: TrafficCounts) -> dict[str, object]:
    project_id, backend_id, period, at, model = place
    values = {name: getattr(counts, name) for name in (*_SUMS, "added_counts")}
    row = {
        "project_id": project_id,
        "backend_id": backend_id,
        "period": int(period),
        "at": at,
        "model": model,
    }
    return row | values


def trim_traffic() -> None:
    """Delete the rows of minutes after two days and those of hours after a year."""
    now = timezone.now()
    for period, kept in ((TrafficPeriod.MINUTE, MINUTES_KEPT), (TrafficPeriod.HOUR, HOURS_KEPT)):
        GatewayTraffic.objects.filter(period=period, at__lt=now - kept).delete()
