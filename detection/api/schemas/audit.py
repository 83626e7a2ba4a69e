"""Schemas of the audit log."""

from __future__ import annotations

from ninja import Field, Schema

from detection.api.schemas.common import (
    FileQuerySchema,
    FilterQuerySchema,
    PageQuerySchema,
    ShortText,
    Timestamp,
    with_fields_of,
)
from detection.selectors.record_rows import AuditRow


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


@with_fields_of(AuditRow)
class AuditEntrySchema(Schema):
    """A recorded change."""
