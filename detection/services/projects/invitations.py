"""Invitations into a project by link: single use, expiring and revocable.

Only `create_invitation` returns the token.
"""

from __future__ import annotations

import hmac
from datetime import timedelta
from typing import Any

from django.contrib.auth import get_user_model
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.utils import timezone

from detection.models import Invitation, Membership, Project
from detection.services import audit, keys
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid, NotFound, found
from detection.services.projects.members import checked_role

PREFIX = "lgi_"
MAX_OPEN = 100
"""Invitations of a project that can still be accepted."""
MAX_DAYS = 30
MAX_RECIPIENT_CHARACTERS = 120


def open_invitations(project_id: int) -> Any:
    """Return the invitations of a project that can be accepted, the newest first."""
    rows = Invitation.objects.filter(project_id=project_id, accepted_at=None, revoked_at=None)
    return rows.filter(expires_at__gt=timezone.now())


def create_invitation(
    project_id: int, actor: Actor, *, role: str, days: int, recipient: str = ""
) -> tuple[Invitation, str]:
    """Create an invitation.

    Parameters
    ----------
    days
        Lifetime in days, 1 to 30.
    recipient
        Name of the recipient, shown in the list of invitations.

    Returns
    -------
    tuple
        The row and the token of the link, which is not stored and cannot be shown again.

    Raises
    ------
    Invalid, Conflict
        For the field at fault, or ``too_many``.
    """
    recipient = recipient.strip()
    if len(recipient) > MAX_RECIPIENT_CHARACTERS or not recipient.isprintable():
        raise Invalid(
            f"`recipient` can have at most {MAX_RECIPIENT_CHARACTERS} printable characters.",
            field="recipient",
        )
    if not 1 <= days <= MAX_DAYS:
        raise Invalid(f"`days` must be between 1 and {MAX_DAYS}.", field="days")
    public_id, token = keys.new_token(PREFIX)
    with transaction.atomic():
        Project.objects.select_for_update(no_key=True).get(pk=project_id)
        if open_invitations(project_id).count() >= MAX_OPEN:
            raise Conflict(f"A project can have at most {MAX_OPEN} open invitations.", code="too_many")
        row = Invitation.objects.create(
            project_id=project_id,
            role=checked_role(role),
            recipient=recipient,
            public_id=public_id,
            digest=keys.digest_of(token),
            created_by_id=actor.user_id,
            expires_at=timezone.now() + timedelta(days=days),
        )
        audit.record(
            actor,
            "invitation.create",
            public_id,
            project_id=project_id,
            after={"role": role, "recipient": recipient, "days": days},
        )
    return row, token


@transaction.atomic
def revoke_invitation(project_id: int, public_id: str, actor: Actor) -> Invitation:
    """Revoke an invitation that has not been accepted; revoking twice changes nothing."""
    rows = Invitation.objects.select_for_update().filter(project_id=project_id, public_id=public_id)
    row = found(rows.first())
    if row.accepted_at is not None:
        raise Conflict("The invitation has been accepted. Remove the member instead.")
    if row.revoked_at is None:
        row.revoked_at = timezone.now()
        row.save(update_fields=["revoked_at"])
        audit.record(actor, "invitation.revoke", public_id, project_id=project_id)
    return row


def find_invitation(token: str, *, is_locked: bool = False) -> Invitation:
    """Return the invitation of a token; `NotFound` if it is unknown, used, revoked or expired."""
    if token.isascii() and keys.looks_like_key(token, PREFIX):
        rows = Invitation.objects.select_for_update(of=("self",)) if is_locked else Invitation.objects.all()
        row = rows.select_related("project").filter(public_id=token[len(PREFIX) :][:10]).first()
        if (
            row is not None
            and hmac.compare_digest(row.digest, keys.digest_of(token))
            and row.accepted_at is None
            and row.revoked_at is None
            and row.expires_at > timezone.now()
        ):
            return row
    raise NotFound("This invitation was used, revoked or has expired. Ask for a new one.")


@transaction.atomic
def accept_invitation(token: str, actor: Actor) -> Membership:
    """Make the actor a member.

    Raises
    ------
    NotFound
        If the invitation cannot be used.
    Conflict
        ``already_member``; the invitation stays open then.
    """
    if actor.user_id is None:
        raise TypeError("Only people accept invitations.")
    row = find_invitation(token, is_locked=True)
    if Membership.objects.filter(project_id=row.project_id, user_id=actor.user_id).exists():
        raise Conflict("You are already a member of this project.", code="already_member")
    membership = Membership.objects.create(project=row.project, user_id=actor.user_id, role=row.role)
    row.accepted_at, row.accepted_by_id = timezone.now(), actor.user_id
    row.save(update_fields=["accepted_at", "accepted_by"])
    audit.record(
        actor,
        "invitation.accept",
        row.public_id,
        project_id=row.project_id,
        after={"role": row.role, "member": actor.name},
    )
    return membership


@transaction.atomic
def create_account(token: str, *, username: str, password: str, address: str | None, request_id: str) -> Any:
    """Create an account for the person who was invited, with the role of the invitation.

    Returns
    -------
    User
        The account, with neither staff nor superuser rights.

    Raises
    ------
    NotFound, Invalid
        If the invitation cannot be used, or for the field at fault.
    """
    find_invitation(token)
    user = get_user_model()(username=get_user_model().normalize_username(username.strip()))
    try:
        user.clean_fields(exclude=["password"])
    except ValidationError as error:
        problem = error.message_dict["username"][0]
        raise Invalid(problem, field="username") from error
    try:
        validate_password(password, user)
    except ValidationError as error:
        raise Invalid(" ".join(error.messages), field="password") from error
    user.set_password(password)
    try:
        with transaction.atomic():
            user.save()
    except IntegrityError:
        raise Invalid("This username is taken. Sign in if it is yours.", field="username") from None
    accept_invitation(token, Actor(user.get_username(), user.pk, address, request_id))
    return user
