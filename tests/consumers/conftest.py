"""A project with a signed-in member, and the sockets that a browser of theirs would open."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import pytest
from django.conf import settings
from django.contrib.auth import BACKEND_SESSION_KEY, HASH_SESSION_KEY, SESSION_KEY, get_user_model

from detection.models import Membership, Project, Role
from loopguard_site.asgi import application

from .sockets import Socket

OWN_ORIGIN = settings.PUBLIC_URL


@dataclass
class SignedIn:
    """A person with an open session in a browser."""

    user: Any
    session: Any

    @property
    def cookie(self) -> str:
        return f"{settings.SESSION_COOKIE_NAME}={self.session.session_key}"


def sign_in(user: Any) -> SignedIn:
    session = import_module(settings.SESSION_ENGINE).SessionStore()
    session[SESSION_KEY] = str(user.pk)
    session[BACKEND_SESSION_KEY] = "django.contrib.auth.backends.ModelBackend"
    session[HASH_SESSION_KEY] = user.get_session_auth_hash()
    session.save()
    return SignedIn(user, session)


@pytest.fixture
def project(transactional_db: None) -> Project:
    return Project.objects.create(slug="support", name="Support agents")


@pytest.fixture
def member(project: Project) -> SignedIn:
    user = get_user_model().objects.create_user("ana", password="a long enough password")
    Membership.objects.create(project=project, user=user, role=Role.VIEWER)
    return sign_in(user)


def socket_to(path: str, person: SignedIn | None = None, *, origin: str | None = OWN_ORIGIN) -> Socket:
    headers = []
    if origin is not None:
        headers.append((b"origin", origin.encode()))
    if person is not None:
        headers.append((b"cookie", person.cookie.encode()))
    return Socket(application, path, headers)


@contextlib.asynccontextmanager
async def open_page(project: Project, person: SignedIn) -> AsyncIterator[Socket]:
    """Open the project's socket and wait until hints can arrive."""
    socket = socket_to(f"/ws/p/{project.slug}/", person)
    assert await socket.connect() is None
    try:
        assert (await socket.frame())["type"] == "ready"
        assert await socket.frame() == {"type": "resync"}
        yield socket
    finally:
        if not socket.future.done():
            await socket.leave()
