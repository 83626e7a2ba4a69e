"""Roles of members, and their removal. A project keeps at least one active admin."""

from __future__ import annotations

from django.db import transaction

from detection.models import Membership, Project, Role
from detection.services import audit
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid, found
from detection.services.incidents.loop_triage import unassign_former_members


def checked_role(role: str) -> str:
    """Return the role; `Invalid` if there is none of this name."""
    if role not in Role.values:
        raise Invalid(f"`role` must be one of {', '.join(Role.values)}.", field="role")
    return role


def add_creator(project: Project, actor: Actor) -> None:
    """Make the person who has created a project its admin; must run inside the transaction of the creation."""
    if actor.user_id is None:
        return
    _, is_new = Membership.objects.update_or_create(
        project=project, user_id=actor.user_id, defaults={"role": Role.ADMIN}
    )
    if is_new:
        audit.record(actor, "member.add", actor.name, project_id=project.pk, after={"role": Role.ADMIN})


@transaction.atomic
def change_role(project_id: int, user_id: int, role: str, actor: Actor) -> Membership:
    """Give a member another role; takes effect with the next request.

    Raises
    ------
    Invalid, NotFound
        For an unknown role, or if the person is not a member.
    Conflict
        ``last_admin`` if nobody else is admin.
    """
    membership = _locked(project_id, user_id)
    before = membership.role
    if checked_role(role) == before:
        return membership
    _check_admin_remains(membership)
    membership.role = role
    membership.save(update_fields=["role"])
    audit.record(
        actor,
        "member.role",
        membership.user.get_username(),
        project_id=project_id,
        before={"role": before},
        after={"role": role},
    )
    return membership


@transaction.atomic
def remove_member(project_id: int, user_id: int, actor: Actor) -> Membership:
    """Remove a member, or let one leave. Keys that the person created stay valid, loops are left without owner.

    Raises
    ------
    NotFound
        If the person is not a member.
    Conflict
        ``last_admin`` if nobody else is admin.
    """
    membership = _locked(project_id, user_id)
    _check_admin_remains(membership)
    audit.record(
        actor,
        "member.leave" if actor.user_id == user_id else "member.remove",
        membership.user.get_username(),
        project_id=project_id,
        before={"role": membership.role},
    )
    membership.delete()
    unassign_former_members(project_id, actor)
    return membership


def _locked(project_id: int, user_id: int) -> Membership:
    # The lock of the project orders all changes of members: two admins cannot leave at the same time.
    Project.objects.select_for_update(no_key=True).get(pk=project_id)
    rows = Membership.objects.select_related("user").filter(project_id=project_id, user_id=user_id)
    return found(rows.first(), "This person is not a member of the project.")


def _check_admin_remains(membership: Membership) -> None:
    if membership.role != Role.ADMIN:
        return
    admins = Membership.objects.filter(
        project_id=membership.project_id, role=Role.ADMIN, user__is_active=True
    )
    if not admins.exclude(pk=membership.pk).exists():
        raise Conflict(
            "The project needs an admin. Make another member admin first.", field="role", code="last_admin"
        )
