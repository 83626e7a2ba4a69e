"""Schemas of imports of transcripts."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from ninja import Field, Schema
from pydantic import StringConstraints

from detection.api.schemas.common import PageQuerySchema, ShortText

Price = Annotated[float, Field(ge=0, le=100_000, allow_inf_nan=False)]
ImportKind = Literal["claude-code", "openai", "anthropic", "responses", "trace"]


class ImportRequestSchema(Schema):
    """What an uploaded file contains."""

    kind: ImportKind = Field("claude-code", description="Form of the record.")
    name: Annotated[ShortText, StringConstraints(max_length=120)] = Field(
        "transcript",
        description="Name of the file. Of message lists, it is a part of what names their sessions.",
    )
    usd_per_million_input: Price | None = Field(
        None, description="Price of a million input tokens, for records without costs."
    )
    usd_per_million_output: Price | None = Field(
        None, description="Price of a million output tokens, for records without costs."
    )


class ImportQuerySchema(PageQuerySchema):
    """Which page of the imports."""


class ImportFileSchema(Schema):
    """A file of an import."""

    name: str = Field(description="Its name.")
    bytes: int = Field(description="Its size.")


class WorstLoopSchema(Schema):
    """A loop that cost the most."""

    tool: str = Field(description="Tool of the loop.")
    session: str = Field(description="Name of the session.")
    calls: int = Field(description="Calls in the loop.")
    cost_usd: float = Field(description="What they cost.")
    url: str = Field(description="Address of the incident in the console.")


class ImportSummarySchema(Schema):
    """What the imported sessions show about loops."""

    sessions: int = Field(description="Sessions of the files, without those that were recorded live.")
    calls: int = Field(description="Their calls.")
    looping_sessions: int = Field(description="Sessions with a loop.")
    loops: int = Field(description="Loops.")
    loop_calls: int = Field(description="Calls in loops.")
    loop_cost_usd: float = Field(description="What these calls cost.")
    worst: list[WorstLoopSchema] = Field(description="The five that cost the most.")
    url: str = Field(description="Address of the incidents in the console.")


class ImportProblemSchema(Schema):
    """Why an import failed."""

    code: str = Field(description="Stable code in snake case.")
    detail: str = Field(description="What is wrong, with the file and the line or the run.")


class ImportSchema(Schema):
    """An import of transcripts."""

    id: str = Field(description="Id of the import.")
    kind: ImportKind = Field(description="Form of the record.")
    state: Literal["waiting", "running", "finished", "failed", "cancelled"] = Field(
        description="How far it is."
    )
    step: Literal["checking", "storing"] = Field(
        description="All files are checked before anything is stored; `done_bytes` counts each step."
    )
    files: list[ImportFileSchema] = Field(description="The uploaded files.")
    total_bytes: int = Field(description="Size of all files.")
    done_bytes: int = Field(description="How much of them this step has read.")
    sessions: int = Field(description="Sessions that the check found.")
    events: int = Field(description="Events that are new.")
    skipped: list[str] = Field(description="What was passed over, one sentence each.")
    error: ImportProblemSchema | None = Field(description="Why it failed.")
    summary: ImportSummarySchema | None = Field(description="What is stored, once the import has ended.")
    created_at: datetime = Field(description="When it was uploaded.")
    created_by: str = Field(description="A user name or `key:<id>`.")
    finished_at: datetime | None = Field(description="When it ended.")
    links: dict[str, str] = Field(description="`import`: its page in the console.")
