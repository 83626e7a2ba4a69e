"""What the page of settings says about each of them: how much there is, and what needs a look."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import connection

_COUNTED = 1_000
"""Rows of a kind that are counted at most; the page shows more as "1,000+". A judgement, as of other counts."""

_ROWS = {
    "keys": "detection_apikey WHERE project_id = %(project)s AND revoked_at IS NULL",
    "unused_keys": "detection_apikey WHERE project_id = %(project)s AND revoked_at IS NULL AND last_used_at IS NULL",
    "backends": "detection_gatewaybackend WHERE project_id = %(project)s",
    "prices": "detection_modelprice WHERE project_id = %(project)s",
    "imports": "detection_transcriptimport WHERE project_id = %(project)s",
    "running_imports": "detection_transcriptimport WHERE project_id = %(project)s AND finished_at IS NULL",
    "quarantined": "detection_quarantinedevent WHERE project_id = %(project)s",
    "routes": "detection_alertroute WHERE project_id = %(project)s",
    "destinations": "detection_alertdestination WHERE project_id = %(project)s",
    "members": "detection_membership WHERE project_id = %(project)s",
    "invitations": (
        "detection_invitation WHERE project_id = %(project)s AND accepted_at IS NULL AND revoked_at IS NULL"
        " AND expires_at > now()"
    ),
    "erasures": "detection_erasure WHERE project_id = %(project)s",
    "open_erasures": "detection_erasure WHERE project_id = %(project)s AND finished_at IS NULL",
}
_COUNTS = (f"(SELECT count(*) FROM (SELECT 1 FROM {rows} LIMIT {_COUNTED}) AS x)" for rows in _ROWS.values())  # noqa: S608
_QUERY = f"SELECT {', '.join(_COUNTS)}"


@dataclass(frozen=True, slots=True)
class SettingsOverview:
    """How many rows of each kind a project has, counted up to a thousand."""

    keys: int
    unused_keys: int
    backends: int
    prices: int
    imports: int
    running_imports: int
    quarantined: int
    routes: int
    destinations: int
    members: int
    invitations: int
    erasures: int
    open_erasures: int


def settings_overview(project_id: int) -> SettingsOverview:
    """Count the settings of a project; one query with a bounded count of each."""
    with connection.cursor() as cursor:
        cursor.execute(_QUERY, {"project": project_id})
        return SettingsOverview(**dict(zip(_ROWS, cursor.fetchone(), strict=True)))
