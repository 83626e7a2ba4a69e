"""Saved views of lists: named filters that are shared in a project."""

from __future__ import annotations

from typing import Final
from urllib.parse import parse_qsl, urlencode

from django.db import IntegrityError, transaction

from detection.filtering import time_ranges
from detection.filtering.language import FilterError
from detection.models import SavedView
from detection.selectors.filters import ListSpec, list_query
from detection.selectors.lists import LISTS
from detection.selectors.saved_views import MAX_VIEWS
from detection.services import audit
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid, found

MAX_QUERY_LENGTH: Final = 4_000
_MORE: Final = {"sessions": ("rows",), "statistics": ("board", "by"), "notifications": ("tab",)}
"""Query parameters of some list pages other than filter, range and order."""


def save_view(project_id: int, list_name: str, name: str, query: str, actor: Actor) -> SavedView:
    """Save the query of a list under a name; a view of this name is replaced.

    Parameters
    ----------
    query
        Query string of the list's address.

    Raises
    ------
    Invalid
        For an unknown list, an empty or long name, a query that the list cannot apply, and more than `MAX_VIEWS` views.
    """
    name = _name(name)
    _check(list_name, query)
    with transaction.atomic():
        views = SavedView.objects.select_for_update().filter(project_id=project_id, list=list_name)
        known = views.filter(name=name).first()
        if known is None and views.count() >= MAX_VIEWS:
            raise Invalid(f"A list can have at most {MAX_VIEWS} views. Delete one first.", field="name")
        view, _ = SavedView.objects.update_or_create(
            project_id=project_id,
            list=list_name,
            name=name,
            defaults={"query": query},
            create_defaults={"query": query, "created_by": actor.name[:150]},
        )
        before = {"query": known.query} if known else None
        audit.record(
            actor, "view.save", str(view), project_id=project_id, before=before, after={"query": query}
        )
    return view


def view_query(list_name: str, q: str | None = None, range: str = "", sort: str = "") -> str:  # noqa: A002
    """Return the query string of a list's address, as its page writes it.

    Parameters
    ----------
    q
        None for the list's default filter.
    """
    spec = _spec(list_name)
    own = {"q": spec.default_text, "sort": str(spec.order(""))}
    tab = "sent" if list_name == "notifications" else ""
    given = {"tab": tab, "q": own["q"] if q is None else q, "range": range, "sort": sort or own["sort"]}
    return urlencode({name: value for name, value in given.items() if value != own.get(name, "")})


def fields_of(view: SavedView) -> dict[str, str]:
    """Return filter (`q`), range and order of a view; those that the address omits are the list's own."""
    spec, given = LISTS[view.list], dict(parse_qsl(view.query, keep_blank_values=True))
    own = {"q": spec.default_text, "range": spec.default_range, "sort": str(spec.order(""))}
    return {name: given.get(name, value) for name, value in own.items()}


def rename_view(project_id: int, public_id: str, name: str, actor: Actor) -> SavedView:
    """Give a view another name.

    Raises
    ------
    NotFound, Invalid, Conflict
        Conflict if the list has a view of this name.
    """
    name = _name(name)
    with transaction.atomic():
        view = _locked(project_id, public_id)
        before, view.name = view.name, name
        try:
            with transaction.atomic():
                view.save(update_fields=["name"])
        except IntegrityError as error:
            raise Conflict(f"There is already a view named {name}.", field="name") from error
        changes = {"before": {"name": before}, "after": {"name": name}}
        audit.record(actor, "view.rename", str(view), project_id=project_id, **changes)
    return view


def delete_view(project_id: int, public_id: str, actor: Actor) -> None:
    """Delete a view.

    Raises
    ------
    NotFound
    """
    with transaction.atomic():
        view = _locked(project_id, public_id)
        audit.record(actor, "view.delete", str(view), project_id=project_id, before={"query": view.query})
        view.delete()


def _locked(project_id: int, public_id: str) -> SavedView:
    rows = SavedView.objects.select_for_update().filter(project_id=project_id, public_id=public_id)
    return found(rows.first())


def _name(name: str) -> str:
    name = " ".join(name.split())
    if not 1 <= len(name) <= 80 or not name.isprintable():
        raise Invalid("`name` must have 1 to 80 printable characters.", field="name")
    return name


def _check(list_name: str, query: str) -> None:
    spec = _spec(list_name)
    if len(query) > MAX_QUERY_LENGTH:
        raise Invalid(f"The address can have at most {MAX_QUERY_LENGTH:,} characters.", field="query")
    given = dict(parse_qsl(query, keep_blank_values=True))
    allowed = ["q", "range", "sort", *_MORE.get(list_name, ())]
    if unknown := given.keys() - {*allowed}:
        names = ", ".join(f"`{one}`" for one in allowed)
        raise Invalid(f"`{min(unknown)[:40]}` is not part of a view. Allowed: {names}.", field="query")
    sorts = [key.name for key in spec.sorts]
    if given.get("sort", "").removeprefix("-") not in {"", *sorts}:
        raise Invalid(f"`sort` must be one of {', '.join(f'`{one}`' for one in sorts)}.", field="sort")
    field = "q"
    try:
        found = list_query(spec, given.get("q", ""))
        field = "range"
        time_ranges.parse_range(given.get("range", ""), found.now, found.zone)
    except FilterError as error:
        raise Invalid(error.detail, field=field, code="invalid_filter") from error


def _spec(list_name: str) -> ListSpec:
    if list_name not in LISTS:
        raise Invalid(f"`list` must be one of {', '.join(LISTS)}.", field="list")
    return LISTS[list_name]
