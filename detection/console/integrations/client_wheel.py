"""The wheel of the Python client, which pip downloads without signing in."""

from __future__ import annotations

import shlex

from django.conf import settings
from django.http import FileResponse, Http404, HttpRequest
from django.urls import reverse
from django.views.decorators.http import require_safe


@require_safe
def download(request: HttpRequest, name: str) -> FileResponse:
    """Send the wheel that this server offers.

    Raises
    ------
    Http404
        Any other name; pip needs the version in it.
    """
    wheel = settings.CLIENT_WHEEL
    if wheel is None or name != wheel.name or not wheel.is_file():
        raise Http404
    return FileResponse(
        wheel.open("rb"), content_type="application/octet-stream", filename=name, as_attachment=True
    )


def requirement() -> str:
    """Return what pip installs: the address of the wheel or, in a checkout without one, the folder of its sources."""
    if settings.CLIENT_WHEEL is None:
        return shlex.quote(settings.CLIENT_SOURCES)
    return f"{settings.PUBLIC_URL}{reverse('console:client_wheel', args=[settings.CLIENT_WHEEL.name])}"
