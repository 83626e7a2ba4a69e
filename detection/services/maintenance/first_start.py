"""The first start: creates a project, an administrator and a key once, and new secrets on request."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from django.contrib.auth import get_user_model
from django.db import transaction

from detection.models import ApiKey, Membership, Project, Role
from detection.services import audit, keys
from detection.services.audit import SYSTEM
from detection.sql.advisory_locks import AdvisoryLock, lock_until_commit

USERNAME, PROJECT_SLUG = "admin", "default"
_DEMO_KEY = "demo player"


@dataclass(frozen=True, slots=True)
class FirstStart:
    """Secrets that are shown once."""

    project_slug: str
    username: str
    password: str
    api_key: str


@transaction.atomic
def first_start() -> FirstStart | None:
    """Create the first project, its administrator and a key; return None if they exist."""
    lock_until_commit(AdvisoryLock.FIRST_START)
    if Project.objects.exists():
        return None
    project = Project.objects.create(slug=PROJECT_SLUG, name="Default project")
    return _hand_out(project)


@transaction.atomic
def new_secrets() -> FirstStart:
    """Set a new password for the administrator and create another key. Older keys stay valid."""
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


def unclaimed_login() -> str:
    """Return the name of the operator as long as nobody has signed in; then nobody may know the password."""
    people = get_user_model().objects
    return "" if people.exclude(last_login=None).exists() else USERNAME


def demo_key() -> str:
    """Create the key of the demo player, whose sessions are marked as demo; it replaces that of an earlier start."""
    project = Project.objects.order_by("pk").first()
    if project is None:
        raise RuntimeError("Set LoopGuard up before playing the demo.")
    for earlier in ApiKey.objects.filter(project=project, name=_DEMO_KEY, is_demo=True, revoked_at=None):
        keys.revoke_key(project, earlier.public_id, SYSTEM)
    _, token = keys.create_key(project, _DEMO_KEY, SYSTEM, scopes=["ingest", "guard", "read"], is_demo=True)
    return token
