"""Probes name any host: pods are asked by their address, which nobody can list in advance."""

from __future__ import annotations

from typing import Final

from django.http import HttpRequest, HttpResponsePermanentRedirect
from django.middleware import common

_PROBES: Final = frozenset(("/healthz", "/readyz"))


class CommonMiddleware(common.CommonMiddleware):
    """Django's, which checks the host, except for probes, and for metrics that are read with a key.

    Without a key metrics are for this machine, whose browsers may be led here by a foreign name.
    """

    def process_request(self, request: HttpRequest) -> HttpResponsePermanentRedirect | None:
        """Check the host of a request."""
        path = request.path_info
        if path in _PROBES or (path == "/metrics" and "HTTP_AUTHORIZATION" in request.META):
            return None
        return super().process_request(request)
