"""Save and delete prices of models. They apply to the next model response and to imported calls."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal, InvalidOperation
from typing import Any, Final

from django.db import transaction

from detection.models import ModelPrice, Project
from detection.services import audit
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid, found
from detection.services.maintenance import recalculations
from detection.services.versions import require_version, version_of

MAX_PRICES: Final = 500
MAX_USD: Final = Decimal(100_000)
"""Per million tokens."""
AMOUNTS: Final = ("input_usd", "cached_input_usd", "cache_write_usd", "output_usd")
OPTIONAL_AMOUNTS: Final = ("cached_input_usd", "cache_write_usd")
_BACKEND = re.compile(r"(?:[a-z0-9][a-z0-9._-]{0,63})?", re.ASCII)
_MODEL = re.compile(r"[\x21-\x7e]{1,200}", re.ASCII)
MAX_STARS: Final = 4
"""In a pattern; more would make matching slow."""


def check_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return checked values of a whole price; raises `Invalid` for the field at fault."""
    backend, model = str(values.get("backend") or ""), str(values.get("model") or "")
    if not _BACKEND.fullmatch(backend):
        raise Invalid("`backend` must be the name of a backend, or empty for all backends.", field="backend")
    if not _MODEL.fullmatch(model) or model.count("*") > MAX_STARS:
        raise Invalid(
            f"`model` must have 1 to 200 printable characters without spaces, and at most {MAX_STARS} `*`.",
            field="model",
        )
    return {"backend": backend, "model": model, **{name: _amount(name, values.get(name)) for name in AMOUNTS}}


def _amount(name: str, value: Any) -> Decimal | None:
    if value in (None, ""):
        if name in OPTIONAL_AMOUNTS:
            return None
        raise Invalid(f"`{name}` is required.", field=name)
    try:
        amount = Decimal(str(value))
    except InvalidOperation:
        amount = Decimal(-1)
    if not amount.is_finite() or not 0 <= amount <= MAX_USD or amount != round(amount, 6):
        raise Invalid(
            f"`{name}` must be US dollars per million tokens, between 0 and {MAX_USD:,}, with at most six decimals.",
            field=name,
        )
    return amount


def _shown(row: ModelPrice) -> dict[str, Any]:
    amounts = {name: getattr(row, name) for name in AMOUNTS}
    shown = {name: None if value is None else float(value) for name, value in amounts.items()}
    return {"backend": row.backend, "model": row.model, **shown}


def price_version(row: ModelPrice | None) -> str:
    """Return the version of a price as a form shows it; also of one that is not stored."""
    return version_of(_shown(row) if row is not None and row.pk else {})


@transaction.atomic
def save_price(project_id: int, actor: Actor, *, version: str | None = None, **values: Any) -> ModelPrice:
    """Create or replace the price of a pattern.

    Parameters
    ----------
    version
        `price_version` of what the person has seen; None checks nothing.
    **values
        `backend` (empty: all), `model`, `input_usd`, `output_usd`, and optionally `cached_input_usd` and
        `cache_write_usd`, which are otherwise as `input_usd`; all in US dollars per million tokens.

    Raises
    ------
    Invalid
        For the field at fault.
    Conflict
        ``too_many``.
    ChangedMeanwhile
        When it was changed since.
    """
    checked = check_values(values)
    Project.objects.select_for_update(no_key=True).get(pk=project_id)
    existing = ModelPrice.objects.filter(project_id=project_id)
    row = existing.filter(backend=checked["backend"], model=checked["model"]).first()
    before = _shown(row) if row else None
    require_version(version, before or {})
    if row is None:
        if existing.count() >= MAX_PRICES:
            raise Conflict(f"A project can have at most {MAX_PRICES} prices.", code="too_many")
        row = ModelPrice(project_id=project_id)
    for name, value in checked.items():
        setattr(row, name, value)
    row.save()
    if _shown(row) != before:
        audit.record(
            actor, "price.save", row.public_id, project_id=project_id, before=before, after=_shown(row)
        )
        recalculations.request(project_id)
    return row


@transaction.atomic
def delete_price(project_id: int, public_id: str, actor: Actor, *, version: str | None = None) -> None:
    """Delete a price. The cost of its models is then unknown, unless another price matches.

    Raises
    ------
    ChangedMeanwhile
        When its version is no longer `version`; see `save_price`.
    """
    rows = ModelPrice.objects.select_for_update(no_key=True)
    row = found(rows.filter(project_id=project_id, public_id=public_id).first())
    before = _shown(row)
    require_version(version, before)
    row.delete()
    audit.record(actor, "price.delete", public_id, project_id=project_id, before=before)
    recalculations.request(project_id)
