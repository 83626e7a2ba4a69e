"""Forms that could not be handled because the sign-in had ended: they are kept until they can be sent again.

The fields travel through the sign-in page in a signed field, so that nothing is stored; afterwards they are shown, and
the person sends them with a fresh CSRF token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from django.core import signing
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render

from detection.console.answered_forms import form_id
from detection.engine.fields import FIELDS
from detection.web.request_context import IdentifiedRequest

SALT = "kept-form"
MAX_AGE_SECONDS = 24 * 3600
MAX_CHARACTERS = 200_000
_UNSEEN = frozenset(
    ("csrfmiddlewaretoken", "next", "id", "ids", "version", "name", "pattern", "scope", "days")
)
_SECRET = ("password", "secret", "token", "credential", "api_key")


@dataclass(frozen=True, slots=True)
class KeptForm:
    """A form that was sent.

    Attributes
    ----------
    path
        Where it was sent, with its query.
    page
        The page that it was on.
    form_id
        Names the form, for the page that keeps a draft of it.
    """

    path: str
    page: str
    form_id: str
    fields: tuple[tuple[str, str], ...]

    @property
    def typed(self) -> list[tuple[str, str, str]]:
        """Names, labels and values of the fields; secrets are not shown."""
        return [
            (name, _label(name), "••••••" if _is_secret(name) else value)
            for name, value in self.fields
            if value.strip() and name not in _UNSEEN
        ]


def _label(name: str) -> str:
    """Return the label of a setting, or the name of another field in words."""
    setting = FIELDS.get(name.removeprefix("set_")) if name.startswith("set_") else None
    return setting.label if setting else name.replace("_", " ").capitalize()


def _is_secret(name: str) -> bool:
    return any(part in name.lower() for part in _SECRET)


def keep(request: HttpRequest) -> str:
    """Return the form of a request as signed text; empty if it is too long to be kept."""
    fields = [
        (name, str(value))
        for name, values in request.POST.lists()
        if name != "csrfmiddlewaretoken"
        for value in values
    ]
    if sum(len(name) + len(value) for name, value in fields) > MAX_CHARACTERS:
        return ""
    document = {
        "path": request.get_full_path(),
        "page": _page_of(request),
        "form": form_id(request),
        "fields": fields,
    }
    return signing.dumps(document, salt=SALT, compress=True)


def read(text: str) -> KeptForm | None:
    """Return a form that `keep` signed within the last day; None for anything else."""
    try:
        found: dict[str, Any] = signing.loads(text, salt=SALT, max_age=MAX_AGE_SECONDS)
    except signing.BadSignature:
        return None
    fields = tuple((name, value) for name, value in found["fields"])
    return KeptForm(found["path"], found["page"], found.get("form", ""), fields)


def _page_of(request: HttpRequest) -> str:
    """Return the address of the page that sent the form, if it is a page of LoopGuard."""
    referrer = urlsplit(request.headers.get("Referer", ""))
    is_own = referrer.netloc == request.get_host()
    return f"{referrer.path}{'?' + referrer.query if referrer.query else ''}" if is_own else "/"


def sign_in_needed(request: IdentifiedRequest) -> HttpResponse:
    """Return the response to a person who is not signed in: the sign-in page, which keeps a form that was sent."""
    if request.headers.get("HX-Request"):
        # The page decides: it leaves for the sign-in only if nothing was typed.
        return HttpResponse(status=401, headers={"HX-Trigger": "loopguard:signed-out"})
    if request.headers.get("Accept") == "application/json":
        return JsonResponse({"detail": "You are signed out. Sign in and try again."}, status=401)
    context = {"next": _page_of(request), "kept": keep(request), "username": "", "error": ""}
    return render(request, "accounts/sign_in.html", context, status=401)


def show(request: HttpRequest, kept: KeptForm, reason: str) -> HttpResponse:
    """Return the page that shows a kept form, to be sent again or discarded."""
    return render(request, "console/kept_form.html", {"kept": kept, "reason": reason})


def is_own_page(request: HttpRequest) -> bool:
    """Whether, according to the browser, a page of LoopGuard sent this form."""
    return request.headers.get("Origin", "") == f"{request.scheme}://{request.get_host()}"
