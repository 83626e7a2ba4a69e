"""Schemas of imports of transcripts."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from ninja import Field, Schema
from pydantic import StringConstraints

from detection.api.schemas.common import PageQuerySchema, ShortText
from detection.models import TranscriptImport
from detection.selectors.row_fields import PUBLIC_ID, Shown

Price = Annotated[float, Field(ge=0, le=100_000, allow_inf_nan=False)]
ImportKind = Literal[
    "claude-code",
    "codex",
    "gemini-cli",
    "copilot",
    "pi",
    "qwen-code",
    "cline",
    "opencode",
    "kilo",
    "openai",
    "anthropic",
    "responses",
    "trace",
]


class ImportRequestSchema(Schema):
    """What an uploaded file contains."""

    kind: ImportKind = Field("claude-code", description="Format of the transcripts.")
    name: Annotated[ShortText, StringConstraints(max_length=120)] = Field(
        "transcript",
        description="Name of the file. For message lists, it becomes part of the session names.",
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

    name: str = Field(description="Name of the file.")
    bytes: int = Field(description="Size in bytes.")


class WorstLoopSchema(Schema):
    """One of the most expensive loops."""

    tool: str = Field(description="Tool of the loop.")
    session: str = Field(description="Name of the session.")
    calls: int = Field(description="Calls in the loop.")
    cost_usd: float = Field(description="Cost of these calls, in US dollars.")
    url: str = Field(description="Address of the incident in the console.")


class ImportSummarySchema(Schema):
    """What the imported sessions show about loops."""

    sessions: int = Field(description="Sessions in the files, except those that were recorded live.")
    calls: int = Field(description="Calls in these sessions.")
    looping_sessions: int = Field(description="Sessions with a loop.")
    loops: int = Field(description="Loops.")
    loop_calls: int = Field(description="Calls in loops.")
    loop_cost_usd: float = Field(description="Cost of these calls, in US dollars.")
    worst: list[WorstLoopSchema] = Field(description="The five most expensive loops.")
    url: str = Field(description="Address of the incidents in the console.")


class ImportProblemSchema(Schema):
    """Why an import failed."""

    code: str = Field(description="Stable code in snake case.")
    detail: str = Field(description="What is wrong, with the file and the line or the run.")


def _step(row: TranscriptImport) -> str:
    return "storing" if row.is_checked else "checking"


def _problem(row: TranscriptImport) -> dict[str, str] | None:
    return {"code": row.error_code, "detail": row.error} if row.error else None


class ImportSchema(Schema):
    """An import of transcripts."""

    id: Annotated[str, PUBLIC_ID] = Field(description="Id of the import.")
    kind: ImportKind = Field(description="Format of the transcripts.")
    state: Literal["waiting", "running", "finished", "failed", "cancelled"] = Field(
        description="State of the import."
    )
    step: Annotated[Literal["checking", "storing"], Shown(show=_step)] = Field(
        description="All files are checked before anything is stored; `done_bytes` counts each step."
    )
    files: list[ImportFileSchema] = Field(description="The uploaded files.")
    tags: list[str] = Field(description="Tags for its sessions.")
    metadata: dict[str, str] = Field(description="Metadata for its sessions.")
    total_bytes: int = Field(description="Size of all files in bytes.")
    done_bytes: int = Field(description="How many of these bytes the current step has read.")
    sessions: int = Field(description="Sessions found by the check.")
    events: int = Field(description="New events.")
    skipped: list[str] = Field(description="What was skipped, one sentence each.")
    error: Annotated[ImportProblemSchema | None, Shown(show=_problem)] = Field(description="Why it failed.")
    summary: ImportSummarySchema | None = Field(
        description="Summary of what is stored, once the import has ended."
    )
    created_at: datetime = Field(description="When it was uploaded.")
    created_by: str = Field(description="A user name or `key:<id>`.")
    finished_at: datetime | None = Field(description="When it ended.")
    links: dict[str, str] = Field(description="`import`: console page of the import.")
