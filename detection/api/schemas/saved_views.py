"""Schemas of saved views."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from ninja import Field, Schema
from pydantic import StringConstraints

from detection.api.schemas.common import FilterText, ShortText, StrictSchema
from detection.selectors.row_fields import PUBLIC_ID

ListName = Literal["sessions", "loops", "incidents", "approvals", "audit", "notifications", "statistics"]
ViewName = Annotated[str, StringConstraints(min_length=1, max_length=80)]
_NAME = "Name, 1 to 80 printable characters. Unique in the list."
_RANGE = "Time range, as in `7d` or `2026-11-01T00:00Z/2026-11-08T00:00Z`. Empty for the list's default."


class ViewQuerySchema(Schema):
    """Which views are listed."""

    list: Literal[
        "", "sessions", "loops", "incidents", "approvals", "audit", "notifications", "statistics"
    ] = Field("", description="Only the views of this list.")


class ViewRequestSchema(StrictSchema):
    """A view to be saved."""

    list: ListName = Field(description="The list.")
    name: ViewName = Field(description=_NAME)
    q: FilterText | None = Field(
        None, description="Filter. Empty for all rows, null for the list's default filter."
    )
    range: ShortText = Field("", description=_RANGE)
    sort: ShortText = Field("", description="Order. Empty for the list's default.")


class RenameViewRequestSchema(StrictSchema):
    """A new name for a view."""

    name: ViewName = Field(description=_NAME)


class ViewSchema(Schema):
    """A filter, range and order of a list under a name. All members of the project see it."""

    id: Annotated[str, PUBLIC_ID] = Field(description="Id of the view.")
    list: ListName = Field(description="The list.")
    name: str = Field(description="Name.")
    q: str = Field(description="Filter, as the API accepts it for this list.")
    range: str = Field(description=_RANGE)
    sort: str = Field(description="Order, as the API accepts it for this list.")
    created_by: str = Field(description="Who first saved it: a user name or `key:<id>`.")
    created_at: datetime = Field(description="When it was first saved.")
    links: dict[str, str] = Field(description="Console page of the list with this view.")
