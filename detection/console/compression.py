"""Compresses pages on their way out. docs/decisions/0015-compressed-pages.md says why that reveals nothing."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponseBase
from django.middleware.gzip import GZipMiddleware


class CompressionMiddleware(GZipMiddleware):
    """Compresses HTML and the JSON of pages for clients that accept gzip, with a random length against BREACH.

    API responses are not compressed: a verdict fits into one packet, and latency matters. Static files have
    compressed copies.
    """

    def process_response(self, request: HttpRequest, response: HttpResponseBase) -> HttpResponseBase:
        """Return the response, compressed if it is a page."""
        kind = response.headers.get("Content-Type", "").partition(";")[0]
        is_page = kind == "text/html" or (kind == "application/json" and request.path.startswith("/p/"))
        if response.streaming or not is_page:
            return response
        return super().process_response(request, response)
