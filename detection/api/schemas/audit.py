"""Schemas of the audit log."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from ninja import Field, Schema

from detection.api.schemas.common import (
    FileQuerySchema,
    FilterQuerySchema,
    PageQuerySchema,
    ShortText,
    Timestamp,
)


class AuditFiltersSchema(FilterQuerySchema):
    """Filters of the audit log."""

    actor: ShortText = Field("", description="A user name, `key:<id>`, `command` or `system`.")
    action: ShortText = Field(
        "", description="An action, as in `session.stop`, or its first part, as in `session`."
    )
    subject: ShortText = Field("", description="What was changed.")
    start: Timestamp | None = Field(None, description="Start of the time span, inclusive.")
    end: Timestamp | None = Field(None, description="End of the time span, exclusive.")


class AuditQuerySchema(AuditFiltersSchema, PageQuerySchema):
    """Filters of the audit list."""


class AuditExportQuerySchema(FileQuerySchema, AuditFiltersSchema):
    """Filters of the audit export."""


class AuditEntrySchema(Schema):
    """A recorded change."""

    id: str = Field(description="Id of the entry.")
    at: datetime = Field(description="When the change was made.")
    actor: str = Field(description="A user name, `key:<id>`, `command` or `system`.")
    action: str = Field(description="What was done, as in `session.stop`.")
    subject: str = Field(description="What was changed.")
    before: Any | None = Field(description="Values before the change.")
    after: Any | None = Field(description="Values after the change.")
    address: str | None = Field(description="Network address of the actor.")
    request_id: str = Field(description="Id of the request.")
