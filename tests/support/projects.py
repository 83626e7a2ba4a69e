"""Makes what tests start from: projects, members and keys, through the services where there are any."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from django.contrib.auth import get_user_model

from detection.models import Membership, Project, Role
from detection.services import keys
from detection.services.audit import SYSTEM

if TYPE_CHECKING:
    from django.contrib.auth.models import User  # noqa: TID251

_numbers = itertools.count(1)


def make_project(slug: str | None = None, **fields: Any) -> Project:
    """A project with a name of its own."""
    slug = slug or f"project-{next(_numbers)}"
    return Project.objects.create(slug=slug, name=fields.pop("name", slug.title()), **fields)


def make_key(project: Project, **options: Any) -> str:
    """The token of a new key with every scope, or with the given `scopes`."""
    return keys.create_key(project, options.pop("name", "test key"), SYSTEM, **options)[1]


def make_member(
    project: Project, role: str = Role.ADMIN, username: str | None = None, password: str = "right horse"
) -> User:
    """A person with a role in the project."""
    user = get_user_model().objects.create_user(username or f"person-{next(_numbers)}", password=password)
    Membership.objects.create(project=project, user=user, role=role)
    return user
