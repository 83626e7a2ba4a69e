"""The price table: token prices of each model, and models without a price."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from django.contrib import messages
from django.http import HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from detection.console import edits
from detection.console.access import ProjectRequest, actor_of, in_project
from detection.models import ModelPrice, Role
from detection.selectors.gateway import list_backends
from detection.selectors.gateway_traffic import unpriced_models
from detection.selectors.prices import list_prices, recalculation
from detection.services.errors import ServiceError
from detection.services.gateway import prices as service
from detection.services.versions import ChangedMeanwhile

UNPRICED_SPAN: Final = timedelta(days=7)
_FIELDS: Final = ("backend", "model", *service.AMOUNTS)
_LABELS: Final = {
    "input_usd": ("Input", "US dollars per million tokens", True),
    "cached_input_usd": ("Cached input", "empty: same as input", False),
    "cache_write_usd": ("Cache write", "empty: same as input", False),
    "output_usd": ("Output", "US dollars per million tokens", True),
}
"""Label, hint, and whether the form requires it."""


@in_project()
@require_safe
def page(request: ProjectRequest) -> HttpResponse:
    """List the prices. The query string may name a price to edit, or a model to price."""
    return _page(request, given=_given(request))


def _given(request: ProjectRequest) -> dict[str, Any]:
    """Return the initial values of the form."""
    row = ModelPrice.objects.filter(
        project_id=request.project.pk, public_id=request.GET.get("edit", "")[:40]
    ).first()
    if row is not None:
        return {name: _plain(getattr(row, name)) for name in _FIELDS} | {
            "is_stored": True,
            "version": service.price_version(row),
        }
    return {name: request.GET.get(name, "")[:200] for name in ("backend", "model")}


def _plain(value: Any) -> str:
    """Return an amount without trailing zeros."""
    return "" if value is None else value if isinstance(value, str) else f"{value.normalize():f}"


def _page(request: ProjectRequest, given: Any, status: int = 200, **more: Any) -> HttpResponse:
    rows = list(list_prices(request.project.pk))
    context = {
        "prices": [
            (row, {name: _plain(getattr(row, name)) for name in service.AMOUNTS}, service.price_version(row))
            for row in rows
        ],
        "recalculation": recalculation(request.project.pk),
        "unpriced": unpriced_models(request.project.pk, timezone.now() - UNPRICED_SPAN),
        "backends": [row.name for row in list_backends(request.project.pk)],
        "given": given,
        "version": given.get("version", service.price_version(None)),
        "amounts": [(name, given.get(name, ""), *about) for name, about in _LABELS.items()],
        **more,
    }
    return render(request, "gateway/prices.html", context, status=status)


@in_project(Role.ADMIN)
@require_POST
def save(request: ProjectRequest) -> HttpResponse:
    """Save a price."""
    values = {name: request.POST.get(name, "").strip() for name in _FIELDS}
    version = request.POST.get("version")
    try:
        row = service.save_price(request.project.pk, actor_of(request), version=version, **values)
    except ChangedMeanwhile as error:
        shown = {name: service.check_values(values)[name] for name in service.AMOUNTS}
        entered = {name: None if value is None else float(value) for name, value in shown.items()}
        given = {**values, "is_stored": bool(error.current)}
        return _page(request, given, 409, **edits.conflict(error, entered))
    except ServiceError as error:
        messages.error(request, error.detail)
        return _page(request, {**values, **({"version": version} if version else {})}, error.status)
    messages.success(
        request,
        f"Price of {row.model} saved. It takes effect with the next answer, and imported calls are recalculated.",
    )
    return redirect("console:prices", request.project.slug)


@in_project(Role.ADMIN)
@require_POST
def delete(request: ProjectRequest) -> HttpResponse:
    """Delete a price."""
    public_id, version = request.POST.get("id", "")[:40], request.POST.get("version")
    try:
        service.delete_price(request.project.pk, public_id, actor_of(request), version=version)
    except ChangedMeanwhile as error:
        messages.error(
            request, f"Price of {error.current['model']} was changed in the meantime. It was not deleted."
        )
        return _page(request, {}, 409)
    except ServiceError as error:
        messages.error(request, error.detail)
    else:
        messages.success(request, "Price deleted. Imported calls are recalculated.")
    return redirect("console:prices", request.project.slug)
