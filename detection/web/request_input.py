"""Rejects query strings, cookies and forms that no view can read or store, before any view runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from django.core.exceptions import BadRequest, RequestDataTooBig, SuspiciousOperation
from django.http import Http404, HttpRequest, HttpResponseBase, QueryDict
from django.http.request import UnreadablePostError

from detection.web.request_context import IdentifiedRequest

NUL = "\x00"
"""PostgreSQL cannot store text with this character, so such text matches nothing and cannot be saved."""


class InvalidInput(BadRequest):
    """The request is malformed.

    Attributes
    ----------
    code
        Stable, in snake case.
    detail
        One sentence for people.
    """

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(detail)
        self.code, self.detail = code, detail


class CheckedRequest(IdentifiedRequest):
    """A request after `RequestInputMiddleware`.

    Attributes
    ----------
    invalid_input : InvalidInput
        Set if the request was rejected.
    """

    invalid_input: InvalidInput


class RequestInputMiddleware:
    """Answers 400 to a malformed request, and 404 to a path that cannot exist.

    The API checks names and bodies itself; elsewhere every text of cookies, query string and form is checked here.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        """Return the response of a request that is well formed.

        Raises
        ------
        InvalidInput, Http404
            Django turns them into the error pages.
        """
        is_api = request.path_info.startswith("/api/")
        if not is_api and NUL in request.path_info:
            raise Http404
        try:
            texts = _texts(request, is_form=request.method == "POST" and not is_api)
            if not is_api and any(NUL in text for text in texts):
                raise InvalidInput("invalid_characters", "The request contains a NUL character.")
        except InvalidInput as error:
            cast("CheckedRequest", request).invalid_input = error
            # The error page must not read the same input again.
            request.GET = request.POST = QueryDict("")
            raise
        return self.get_response(request)


def _texts(request: HttpRequest, *, is_form: bool) -> list[str]:
    """Return every text of cookies, query string and form."""
    texts = [*request.COOKIES.values()]
    for field in _fields(request, is_form=is_form):
        for name, values in field.lists():
            texts += [name, *values]
    return texts


def _fields(request: HttpRequest, *, is_form: bool) -> list[QueryDict]:
    if request.encoding is not None and request.encoding.lower() not in ("utf-8", "utf8"):
        if is_form:
            raise InvalidInput("unsupported_charset", "The charset must be UTF-8.")
        request.encoding = "utf-8"  # that of the body says nothing about the query string
    try:
        return [request.GET, request.POST] if is_form else [request.GET]
    except RequestDataTooBig as error:
        raise InvalidInput("too_large", "A form can have at most 2 MB.") from error
    except SuspiciousOperation as error:
        raise InvalidInput("too_many_fields", "A request can have at most 1,000 fields.") from error
    except ValueError as error:
        raise InvalidInput("invalid_length", "`Content-Length` must be a number.") from error
    except UnreadablePostError as error:
        raise InvalidInput("incomplete_body", "The body is shorter than its `Content-Length`.") from error
