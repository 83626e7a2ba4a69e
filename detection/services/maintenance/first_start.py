"""The first start: a project, an operator and a key, made once; and new ones on request."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from django.contrib.auth import get_user_model
from django.db import transaction

from detection.models import Membership, Project, Role
from detection.services import audit, keys
from detection.services.audit import SYSTEM
from detection.sql.advisory_locks import AdvisoryLock, lock_until_commit

USERNAME, PROJECT_SLUG = "admin", "default"


@dataclass(frozen=True, slots=True)
class FirstStart:
    """What is shown once and never again."""

    project_slug: str
    username: str
    password: str
    api_key: str


@transaction.atomic
def first_start() -> FirstStart | None:
    """Make the first project, its administrator and a key; None when that was done before."""
    lock_until_commit(AdvisoryLock.FIRST_START)
    if Project.objects.exists():
        return None
    project = Project.objects.create(slug=PROJECT_SLUG, name="Default project")
    return _hand_out(project)


@transaction.atomic
def new_secrets() -> FirstStart:
    """Give the administrator a new password and make one more key; older keys go on working."""
    return _hand_out(
        Project.objects.order_by("pk").first()
        or Project.objects.create(slug=PROJECT_SLUG, name="Default project")
    )


def _hand_out(project: Project) -> FirstStart:
    password = secrets.token_urlsafe(15)
    user, _ = get_user_model().objects.get_or_create(
        username=USERNAME, defaults={"is_staff": True, "is_superuser": True}
    )
    user.set_password(password)
    user.save()
    Membership.objects.update_or_create(project=project, user=user, defaults={"role": Role.ADMIN})
    _, token = keys.create_key(project, "first key", SYSTEM)
    audit.record(SYSTEM, "operator.credentials", USERNAME, project_id=project.pk)
    return FirstStart(project.slug, USERNAME, password, token)


def demo_key() -> str:
    """Make the key that the demo player sends with: what it sends is marked as demo."""
    project = Project.objects.order_by("pk").first()
    if project is None:
        raise RuntimeError("Set LoopGuard up before playing the demo.")
    _, token = keys.create_key(
        project, "demo player", SYSTEM, scopes=["ingest", "guard", "read"], is_demo=True
    )
    return token
