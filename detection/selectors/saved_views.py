"""Reads saved views."""

from __future__ import annotations

from detection.models import SavedView

MAX_VIEWS = 50
"""Views of one list in a project."""


def list_views(project_id: int, list_name: str = "") -> list[SavedView]:
    """List the views of a list, by name, or those of all lists; one query."""
    rows = SavedView.objects.filter(project_id=project_id)
    return [*(rows.filter(list=list_name) if list_name else rows.order_by("list", "name"))]
