"""Destinations of alerts with their secrets, and the test and resend buttons.

An address and a signing secret go in and never come out again; only a webhook's new secret is returned, once, to be
copied. Which message goes where is `routes`, sending is `delivery`.
"""

from __future__ import annotations

import base64
import secrets
from collections.abc import Sequence
from typing import Any

from django.db import transaction
from django.utils import timezone

from detection.models import (
    AlertDelivery,
    AlertDestination,
    DeliveryState,
    DestinationKind,
    Project,
)
from detection.services import audit, outgoing_http
from detection.services.alerting import delivery, notifiers
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid, NotFound

MAX_DESTINATIONS = 50
MAX_SIGNING_SECRETS = 3
MAX_RESENT = 1000


def new_signing_secret() -> str:
    """Make a secret in the form of Standard Webhooks: 256 random bits."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def checked_name(name: str) -> str:
    """Return a name without the space around it, or refuse it."""
    name = name.strip()
    if not name or len(name) > 80 or not name.isprintable():
        raise Invalid("A name has 1 to 80 printable characters.", field="name")
    return name


def _destination(project_id: int, public_id: str) -> AlertDestination:
    row = (
        AlertDestination.objects.select_for_update(no_key=True)
        .filter(project_id=project_id, public_id=public_id)
        .first()
    )
    if row is None:
        raise NotFound("There is no such destination in this project.")
    return row


def _address(kind: str, address: str) -> str:
    """Check an address and return what may be shown of it."""
    if kind == DestinationKind.WEBHOOK:
        return outgoing_http.check_url(address).shown[:200]
    if kind == DestinationKind.APPRISE:
        return notifiers.check(address)[:200]
    raise Invalid(f"A kind is one of {', '.join(DestinationKind.values)}.", field="kind")


def _shown(row: AlertDestination) -> dict[str, Any]:
    return {
        "name": row.name,
        "kind": row.kind,
        "address": row.shown_address,
        "is_enabled": row.is_enabled,
        "signing_secret_count": len(row.signing_secrets),
    }


def create_destination(
    project_id: int, actor: Actor, *, name: str, kind: str, address: str
) -> tuple[AlertDestination, str]:
    """Make a destination.

    Parameters
    ----------
    kind
        ``webhook`` or ``apprise``.
    address
        Checked now and again with every message.

    Returns
    -------
    tuple
        The row, and for a webhook the secret its messages are signed with, which cannot be shown again.

    Raises
    ------
    Invalid
        For the field that is to blame.
    """
    name, address = checked_name(name), address.strip()
    shown = _address(kind, address)  # may look a name up, so before the transaction
    secret = new_signing_secret() if kind == DestinationKind.WEBHOOK else ""
    with transaction.atomic():
        Project.objects.select_for_update(no_key=True).get(pk=project_id)
        existing = AlertDestination.objects.filter(project_id=project_id)
        if existing.count() >= MAX_DESTINATIONS:
            raise Conflict(f"A project has at most {MAX_DESTINATIONS} destinations.", code="too_many")
        if existing.filter(name=name).exists():
            raise Conflict("There is a destination of this name.", field="name", code="name_taken")
        row = AlertDestination.objects.create(
            project_id=project_id,
            name=name,
            kind=kind,
            address=address,
            shown_address=shown,
            signing_secrets=[secret] if secret else [],
        )
        audit.record(actor, "destination.create", row.public_id, project_id=project_id, after=_shown(row))
    return row, secret


def change_destination(
    project_id: int,
    public_id: str,
    actor: Actor,
    *,
    name: str | None = None,
    address: str | None = None,
    is_enabled: bool | None = None,
) -> AlertDestination:
    """Change what is given; a new address ends a pause, and so does enabling."""
    shown = ""
    if address is not None:
        kind = (
            AlertDestination.objects.filter(project_id=project_id, public_id=public_id)
            .values_list("kind", flat=True)
            .first()
        )
        if kind is None:
            raise NotFound("There is no such destination in this project.")
        address = address.strip()
        shown = _address(kind, address)
    with transaction.atomic():
        row = _destination(project_id, public_id)
        before = _shown(row)
        if name is not None:
            row.name = checked_name(name)
            taken = AlertDestination.objects.filter(project_id=project_id, name=row.name).exclude(pk=row.pk)
            if taken.exists():
                raise Conflict("There is a destination of this name.", field="name", code="name_taken")
        if address is not None:
            row.address, row.shown_address = address, shown
        if is_enabled is not None:
            row.is_enabled = is_enabled
        if address is not None or is_enabled:
            row.failures_in_row, row.paused_until = 0, None
        row.save()
        after = _shown(row) | ({"address_changed": True} if address is not None else {})
        audit.record(
            actor, "destination.change", row.public_id, project_id=project_id, before=before, after=after
        )
    return row


@transaction.atomic
def add_signing_secret(project_id: int, public_id: str, actor: Actor) -> str:
    """Make one more active secret, so that a receiver can change over; every message is signed with all of them.

    Returns
    -------
    str
        The secret, which cannot be shown again. The oldest is retired when there were three.
    """
    row = _destination(project_id, public_id)
    if row.kind != DestinationKind.WEBHOOK:
        raise Conflict("Only webhooks are signed.")
    secret = new_signing_secret()
    row.signing_secrets = [*row.signing_secrets, secret][-MAX_SIGNING_SECRETS:]
    row.save(update_fields=["signing_secrets"])
    audit.record(
        actor,
        "destination.secret_add",
        row.public_id,
        project_id=project_id,
        after={"signing_secret_count": len(row.signing_secrets)},
    )
    return secret


@transaction.atomic
def retire_signing_secrets(project_id: int, public_id: str, actor: Actor) -> AlertDestination:
    """Keep the newest secret only."""
    row = _destination(project_id, public_id)
    if len(row.signing_secrets) > 1:
        before = len(row.signing_secrets)
        row.signing_secrets = row.signing_secrets[-1:]
        row.save(update_fields=["signing_secrets"])
        audit.record(
            actor,
            "destination.secrets_retire",
            row.public_id,
            project_id=project_id,
            before={"signing_secret_count": before},
            after={"signing_secret_count": 1},
        )
    return row


@transaction.atomic
def delete_destination(project_id: int, public_id: str, actor: Actor) -> None:
    """Remove a destination with its messages; routes go on without it."""
    row = _destination(project_id, public_id)
    before = _shown(row)
    row.delete()
    audit.record(actor, "destination.delete", public_id, project_id=project_id, before=before)


def send_test(project_id: int, public_id: str, actor: Actor) -> AlertDelivery:
    """Send a test message now and wait for what comes of it, a few seconds at most."""
    with transaction.atomic():
        row = _destination(project_id, public_id)
        message = AlertDelivery.objects.create(
            project_id=project_id, destination=row, is_test=True, due_at=timezone.now()
        )
        audit.record(
            actor,
            "destination.test",
            row.public_id,
            project_id=project_id,
            after={"message": message.public_id},
        )
    delivery.send_now(message.pk)
    message.refresh_from_db()
    return message


@transaction.atomic
def resend(project_id: int, public_ids: Sequence[str] | None, actor: Actor) -> int:
    """Send messages again, under the ids and with the bytes they had.

    Parameters
    ----------
    public_ids
        None for every failed message of the project, at most 1,000 at once.

    Returns
    -------
    int
        How many; messages that wait already are brought forward.
    """
    rows = AlertDelivery.objects.select_for_update().filter(project_id=project_id)
    if public_ids is None:
        rows = rows.filter(state=DeliveryState.FAILED, is_test=False).order_by("id")[:MAX_RESENT]
    else:
        rows = rows.filter(public_id__in=public_ids).exclude(state=DeliveryState.SENDING)
    chosen = list(rows)
    if public_ids is not None and not chosen:
        raise NotFound("There is no such message in this project, or it is being sent.")
    for row in chosen:
        row.state, row.due_at, row.tries_left, row.finished_at = (
            DeliveryState.WAITING,
            timezone.now(),
            delivery.TRIES,
            None,
        )
        row.save(update_fields=["state", "due_at", "tries_left", "finished_at"])
    if chosen:
        audit.record(
            actor,
            "delivery.resend",
            chosen[0].public_id if len(chosen) == 1 else f"{len(chosen)} messages",
            project_id=project_id,
            after={"messages": [row.public_id for row in chosen[:50]]},
        )
    return len(chosen)
