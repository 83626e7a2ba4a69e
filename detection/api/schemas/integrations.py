"""Schemas of integrations and keys."""

from __future__ import annotations

from datetime import datetime

from ninja import Field, Schema


class IntegrationSchema(Schema):
    """A way in which agents are connected, as heard in the last seven days."""

    name: str = Field(description="As in `guard`, `events`, `hooks/codex` or `import/claude-code`.")
    last_heard_at: datetime = Field(description="Time of its last event.")
    sessions: int = Field(description="Sessions that it began.")
    calls: int = Field(description="Calls in them.")
    observed_only: bool = Field(
        description="Whether calls of some sessions ran before anybody asked, so that nothing could be blocked."
    )
    observed_only_sessions: int = Field(description="Number of these sessions.")


class KeySchema(Schema):
    """A key of the project, without its token."""

    name: str = Field(description="Its name.")
    public_id: str = Field(description="The part of the token behind `lg_` that may be shown.")
    scopes: list[str] = Field(description="What it may be used for.")
    created_at: datetime = Field(description="When it was created.")
    expires_at: datetime | None = Field(description="When it stops working.")
    revoked_at: datetime | None = Field(description="When it was revoked.")
    last_used_at: datetime | None = Field(description="Its last request, to the minute.")
    last_heard_at: datetime | None = Field(
        description="Its last accepted events or calls, as far as recent requests are kept."
    )
    heard_on: list[str] = Field(
        description="Where these came in: `events`, `guard` or `hooks/<host>`, the latest first."
    )
    observed_only: bool = Field(description="Whether it only reports calls, so that nothing can be blocked.")
