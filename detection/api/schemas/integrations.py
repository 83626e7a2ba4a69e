"""Schemas of integrations and keys."""

from __future__ import annotations

from datetime import datetime

from ninja import Field, Schema

from detection.api.schemas.common import with_fields_of
from detection.integrations.reach import Reach
from detection.selectors.integrations import HeardAgent


class IntegrationSchema(Schema):
    """A way in which agents are connected, as seen in the last seven days."""

    name: str = Field(
        description="Name of the integration, as in `guard`, `events`, `hooks/codex` or `import/claude-code`."
    )
    last_heard_at: datetime = Field(description="Time of its last event.")
    sessions: int = Field(description="Sessions that it started.")
    calls: int = Field(description="Calls in these sessions.")
    reach: Reach = Field(
        description="What can be done to all of its sessions: they `can_stop`, their calls `can_block`, or "
        "`watch_only`."
    )
    watched_sessions: int = Field(
        description="Sessions that ran calls without requesting verdicts, so that nothing can be blocked."
    )


class KeySchema(Schema):
    """A key of the project, without its token."""

    name: str = Field(description="Name of the key.")
    public_id: str = Field(description="The part of the token after `lg_` that may be shown.")
    scopes: list[str] = Field(description="What the key may be used for.")
    created_at: datetime = Field(description="When it was created.")
    expires_at: datetime | None = Field(description="When it stops working.")
    revoked_at: datetime | None = Field(description="When it was revoked.")
    last_used_at: datetime | None = Field(description="Time of its last request, to five seconds.")
    last_heard_at: datetime | None = Field(
        description="Time of its last accepted events or calls, to five seconds."
    )
    tags: list[str] = Field(description="Tags of the key.")
    heard_on: list[str] = Field(
        description="Where they arrived in the seven days before: `events`, `guard`, `otlp` or `hooks/<host>`, "
        "latest first."
    )
    reach: Reach | None = Field(
        description="What can be done to what it sends: the weakest of the routes that ask before calls; `watch_only` "
        "if it only reports calls. Null if nothing arrived."
    )


@with_fields_of(HeardAgent)
class AgentSchema(Schema):
    """An agent, as seen in the last seven days."""

    tags: list[str] = Field(description="Tags of the agent.")
