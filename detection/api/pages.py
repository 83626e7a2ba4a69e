"""Responses of list operations: one page, under the filters of the query."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from django.http import HttpResponse
from django.http.response import HttpResponseBase

from detection.api.problems import Problem
from detection.api.query_parameters import check_parameters
from detection.api.requests import ApiRequest, actor_of
from detection.api.responses import json_response, list_response
from detection.api.schemas.common import FileQuerySchema, FilterSchema, PageQuerySchema
from detection.filtering.language import Term
from detection.filtering.time_ranges import ALL_TIME, TimeRange
from detection.selectors.filters import ListQuery, ListSpec, given_terms, list_query
from detection.selectors.pages import Page
from detection.selectors.search import with_contents
from detection.web import exports

Filters = TypeVar("Filters")
Row = TypeVar("Row")


def query_of(
    request: ApiRequest,
    spec: ListSpec,
    query: FilterSchema,
    names: Mapping[str, str],
    *terms: Term,
    range: TimeRange = ALL_TIME,  # noqa: A002 - what it is called everywhere
) -> ListQuery:
    """Return the query for the filter and the typed parameters of a request.

    Parameters
    ----------
    names
        Fields of the filter language by the typed parameters that select one of their values.
    terms, range
        Further conditions.

    Raises
    ------
    FilterError
    """
    given = {field: getattr(query, name) for name, field in names.items()}
    sort = getattr(query, "sort", "")
    if sort.removeprefix("-") not in {"", *(key.name for key in spec.sorts)}:
        allowed = ", ".join(f"`{key.name}`" for key in spec.sorts)
        raise Problem(422, "invalid_value", f"`sort` must be one of {allowed}.", path="sort")
    wanted = list_query(spec, query.q, terms=(*given_terms(given), *terms), range=range, sort=sort)
    wanted = wanted.with_names(request.principal.redactor.name)
    return with_contents(request.principal.project_id, wanted)


def page_response(
    request: ApiRequest,
    query: PageQuerySchema,
    filters: Filters,
    read: Callable[[int, Filters, str, int], Page[Row]],
    document: Callable[[Row], dict[str, object]],
) -> HttpResponse:
    """Return a page of the project's rows.

    Parameters
    ----------
    query
        Contains cursor and limit; a parameter that its schema does not have is rejected.
    read
        Reads a page: project id, filters, cursor, limit.
    document
        Returns a row as JSON document.
    """
    check_parameters(request, type(query))
    page = read(request.principal.project_id, filters, query.cursor, query.limit)
    is_partial = isinstance(filters, ListQuery) and filters.is_partial
    return list_response(map(document, page.items), page.next_cursor, is_partial=is_partial)


def export_response(request: ApiRequest, query: FileQuerySchema, filters: ListQuery) -> HttpResponseBase:
    """Return a list as a file; a parameter that the query's schema does not have is rejected."""
    check_parameters(request, type(query))
    principal = request.principal
    return exports.list_file(
        principal.project_id, principal.project_slug, filters, query.format, limit=query.limit
    )


def bulk_response(
    request: ApiRequest, bulk: Callable[..., dict[str, str]], ids: list[str], action: str, **arguments: Any
) -> HttpResponse:
    """Apply an action to several rows, and return the outcome by id; an id that cannot exist is not found."""
    named = [public_id for public_id in ids if public_id.isprintable()]
    done = bulk(request.principal.project_id, named, action, actor_of(request), **arguments)
    return json_response({"outcome": dict.fromkeys(ids, "not_found") | done})
