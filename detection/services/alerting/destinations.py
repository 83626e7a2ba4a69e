"""Destinations of alerts and their signing secrets.

Addresses and secrets are never shown again, except for a webhook's new secret, which is returned once.
"""

from __future__ import annotations

import base64
import secrets

from django.db import transaction

from detection.models import AlertDestination, DestinationKind, Project
from detection.services import audit, outgoing_http
from detection.services.alerting import notifiers
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid, found
from detection.services.versions import require_version, version_of

MAX_DESTINATIONS = 50
MAX_SIGNING_SECRETS = 3
MAX_NAME_CHARACTERS = 80


def new_signing_secret() -> str:
    """Return a new secret in the format of Standard Webhooks, 256 random bits."""
    return "whsec_" + base64.b64encode(secrets.token_bytes(32)).decode()


def checked_name(name: str) -> str:
    """Return a name without surrounding spaces; `Invalid` for an empty, long or unprintable one."""
    name = name.strip()
    if not name or len(name) > MAX_NAME_CHARACTERS or not name.isprintable():
        raise Invalid(f"`name` must have 1 to {MAX_NAME_CHARACTERS} printable characters.", field="name")
    return name


def recognised(address: str) -> tuple[str, str]:
    """Return kind and stored form of an address as people paste it: of a chat service, or of a webhook."""
    address = address.strip()
    scheme = address.partition("://")[0].lower()
    if scheme not in ("http", "https"):
        return DestinationKind.APPRISE, address
    of_service = notifiers.of_web_address(address) if scheme == "https" else ""
    return (DestinationKind.APPRISE, of_service) if of_service else (DestinationKind.WEBHOOK, address)


def _destination(project_id: int, public_id: str) -> AlertDestination:
    rows = AlertDestination.objects.select_for_update(no_key=True)
    return found(rows.filter(project_id=project_id, public_id=public_id).first())


def _address(kind: str, address: str) -> str:
    """Check an address and return the part that is not secret."""
    if kind == DestinationKind.WEBHOOK:
        return outgoing_http.check_url(address).shown[:200]
    if kind == DestinationKind.APPRISE:
        return notifiers.check(address)[:200]
    raise Invalid(f"`kind` must be one of {', '.join(DestinationKind.values)}.", field="kind")


def _shown(row: AlertDestination) -> dict[str, object]:
    return {
        "name": row.name,
        "kind": row.kind,
        "address": row.shown_address,
        "is_enabled": row.is_enabled,
        "signing_secret_count": len(row.signing_secrets),
    }


def destination_version(row: AlertDestination) -> str:
    """Return the version of a destination as a form shows it."""
    return version_of(_shown(row))


def create_destination(
    project_id: int, actor: Actor, *, name: str, kind: str, address: str
) -> tuple[AlertDestination, str]:
    """Create a destination.

    Parameters
    ----------
    kind
        ``webhook`` or ``apprise``.
    address
        Checked now and with every notification.

    Returns
    -------
    tuple
        The row and, for a webhook, the signing secret, which cannot be shown again.

    Raises
    ------
    Invalid
        For the field at fault.
    Conflict
        ``too_many`` or ``name_taken``.
    """
    address = address.strip()
    shown = _address(kind, address)  # may resolve a host name, so before the transaction
    name = checked_name(name)  # after the address, which names what nobody named
    secret = new_signing_secret() if kind == DestinationKind.WEBHOOK else ""
    with transaction.atomic():
        Project.objects.select_for_update(no_key=True).get(pk=project_id)
        existing = AlertDestination.objects.filter(project_id=project_id)
        if existing.count() >= MAX_DESTINATIONS:
            raise Conflict(f"A project can have at most {MAX_DESTINATIONS} destinations.", code="too_many")
        if existing.filter(name=name).exists():
            raise Conflict("A destination with this name already exists.", field="name", code="name_taken")
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


def update_destination(
    project_id: int,
    public_id: str,
    actor: Actor,
    *,
    name: str | None = None,
    address: str | None = None,
    is_enabled: bool | None = None,
    version: str | None = None,
) -> AlertDestination:
    """Change the given fields. A new address and enabling both end a pause.

    Raises
    ------
    ChangedMeanwhile
        When its version is no longer `version`, as `destination_version` gave it; None checks nothing.
    """
    shown = ""
    if address is not None:
        rows = AlertDestination.objects.filter(project_id=project_id, public_id=public_id)
        kind = found(rows.values_list("kind", flat=True).first())
        address = address.strip()
        shown = _address(kind, address)
    with transaction.atomic():
        row = _destination(project_id, public_id)
        before = _shown(row)
        require_version(version, before)
        if name is not None:
            row.name = checked_name(name)
            taken = AlertDestination.objects.filter(project_id=project_id, name=row.name).exclude(pk=row.pk)
            if taken.exists():
                raise Conflict(
                    "A destination with this name already exists.", field="name", code="name_taken"
                )
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
    """Add an active secret. Notifications carry one signature per active secret, so that the receiver can switch over.

    Returns
    -------
    str
        The secret, which cannot be shown again. The oldest of three is removed.
    """
    row = _destination(project_id, public_id)
    if row.kind != DestinationKind.WEBHOOK:
        raise Conflict("Only webhooks have signing secrets.")
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
def remove_old_secrets(
    project_id: int, public_id: str, actor: Actor, *, version: str | None = None
) -> AlertDestination:
    """Remove every secret except the newest.

    Raises
    ------
    ChangedMeanwhile
        When the destination is no longer the one with this `version`, so that the newest may be one that nobody has
        seen.
    """
    row = _destination(project_id, public_id)
    require_version(version, _shown(row))
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
def delete_destination(project_id: int, public_id: str, actor: Actor, *, version: str | None = None) -> None:
    """Delete a destination and its notifications. Routes keep their other destinations.

    Raises
    ------
    ChangedMeanwhile
        When its version is no longer `version`; see `update_destination`.
    """
    row = _destination(project_id, public_id)
    before = _shown(row)
    require_version(version, before)
    row.delete()
    audit.record(actor, "destination.delete", public_id, project_id=project_id, before=before)
