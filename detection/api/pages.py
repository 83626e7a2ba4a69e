"""Responses of list operations: one page, under the filters of the query."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from django.http import HttpResponse

from detection.api.query_parameters import check_parameters
from detection.api.requests import ApiRequest
from detection.api.responses import list_response
from detection.api.schemas.common import PageQuerySchema
from detection.selectors.pages import Page

Filters = TypeVar("Filters")
Row = TypeVar("Row")


def page_response(
    request: ApiRequest,
    query: PageQuerySchema,
    filters: Filters,
    read: Callable[[int, Filters, str, int], Page[Row]],
    document: Callable[[Row], dict[str, Any]],
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
    return list_response(map(document, page.items), page.next_cursor)
