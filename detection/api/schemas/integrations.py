"""Schemas of integrations and keys."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from ninja import Field, Schema

from detection.selectors.row_fields import Shown


class IntegrationSchema(Schema):
    """A way in which agents are connected, as seen in the last seven days."""

    name: str = Field(
        description="Name of the integration, as in `guard`, `events`, `hooks/codex` or `import/claude-code`."
    )
    last_heard_at: datetime = Field(description="Time of its last event.")
    sessions: int = Field(description="Sessions that it started.")
    calls: int = Field(description="Calls in these sessions.")
    observed_only: Annotated[bool, Shown(column="is_observed_only")] = Field(
        description="Whether some sessions ran calls without requesting verdicts, so that nothing could be blocked."
    )
    observed_only_sessions: Annotated[int, Shown(column="unguarded_sessions")] = Field(
        description="Number of such sessions."
    )


class KeySchema(Schema):
    """A key of the project, without its token."""

    name: str = Field(description="Name of the key.")
    public_id: str = Field(description="The part of the token after `lg_` that may be shown.")
    scopes: list[str] = Field(description="What the key may be used for.")
    created_at: datetime = Field(description="When it was created.")
    expires_at: datetime | None = Field(description="When it stops working.")
    revoked_at: datetime | None = Field(description="When it was revoked.")
    last_used_at: datetime | None = Field(description="Time of its last request, to the minute.")
    last_heard_at: datetime | None = Field(
        description="Time of its last accepted events or calls, to the minute."
    )
    heard_on: list[str] = Field(
        description="Where they arrived in the seven days before: `events`, `guard`, `otlp` or `hooks/<host>`, "
        "latest first."
    )
    observed_only: bool = Field(description="Whether it only reports calls, so that nothing can be blocked.")
