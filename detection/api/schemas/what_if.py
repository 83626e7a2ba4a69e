"""Schemas of what-ifs."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal

from ninja import Field, Schema

from detection.api.schemas.common import Name256, PageQuerySchema, ShortText, StrictSchema
from detection.api.schemas.settings import ToolClassName

Label = Literal["", "true_loop", "false_alarm"]


class WhatIfRequestSchema(StrictSchema):
    """A change to try: the proposed override or tool rule of one scope."""

    scope: ShortText = Field(
        description="The scope, written like the source of a setting: `project`, `agent:triage`, "
        "`model:openai/gpt-5`, `tool:search_*` or `session`.",
    )
    days: int = Field(7, description="Number of past days whose sessions are replayed: 7 or 30.")
    session: str = Field(
        "", max_length=256, description="Your name for the session, for the scope `session`."
    )
    values: dict[str, Any] = Field(
        {}, description="All settings of the override by name; missing ones are inherited."
    )
    tool_class: ToolClassName = Field("", description="Class of the tools, for the scope of tools.")
    ignore_arguments: list[Name256] = Field(
        [], max_length=50, description="Arguments that identity ignores, for the scope of tools."
    )
    volatile_result_fields: list[Name256] = Field(
        [], max_length=50, description="Fields of results that are ignored, for the scope of tools."
    )
    exempt: bool = Field(False, description="Exempt the tools from detection, for the scope of tools.")


class WhatIfQuerySchema(PageQuerySchema):
    """A page of what-ifs."""


class WhatIfProgressSchema(Schema):
    """Progress of a what-if."""

    share: float = Field(description="Share of the calls that has been replayed, from 0 to 1.")
    sessions: int = Field(description="Sessions in the period.")
    done_sessions: int = Field(description="Sessions replayed so far.")
    calls: int = Field(description="Calls in these sessions.")
    done_calls: int = Field(description="Calls replayed so far.")


class WhatIfIncidentSchema(Schema):
    """An incident that a replay finds."""

    session: str = Field(description="Your name for the session.")
    incident: str | None = Field(
        description="Id of the recorded incident about the same loop, if there is one."
    )
    label: Label = Field(description="Label of the recorded incident.")
    kind: str = Field(description="Detector.")
    tool: str = Field(description="Tool, or the tools of a cycle.")
    agent: str = Field(description="Agent.")
    backend: str = Field(description="LLM backend.")
    model: str = Field(description="Model.")
    decision: str = Field(description="Strictest decision.")
    count: int = Field(description="The count that the detector reached.")
    limit: int = Field(description="The limit.")
    calls: int = Field(description="Calls in the loop.")
    cost_usd: float = Field(0, description="Cost of the calls that the incident counts, in US dollars.")
    first_seq: int = Field(description="Sequence number of the first call of the loop.")
    found_at_call: int = Field(description="Number of the call at which it was found, from 1.")
    reacted_at_call: int = Field(
        0,
        description="Number of the call at which the strictest decision was first made; 0 without a reaction.",
    )
    opened_at: datetime = Field(description="When the incident was opened.")


class WhatIfChangedIncidentSchema(WhatIfIncidentSchema):
    """An incident that both policies find, with what the changed one does."""

    difference: Literal["weaker", "stricter", "later", "earlier", "costlier", "cheaper"] = Field(
        description="How the incident differs: a weaker or stricter decision, a detection or "
        "reaction at a later or earlier call, or else only in the cost of the calls that it counts."
    )
    decision_after: str = Field(description="Strictest decision under the changed policy.")
    kind_after: str = Field(description="The detector that acts under the changed policy.")
    limit_after: int = Field(description="The limit under the changed policy.")
    found_at_call_after: int = Field(description="Number of the call at which the changed policy finds it.")
    reacted_at_call_after: int = Field(
        0, description="Number of the call at which the changed policy first makes its strictest decision."
    )
    cost_usd_after: float = Field(
        0, description="Cost of the calls that it counts under the changed policy, in US dollars."
    )


class WhatIfIncidentsSchema(Schema):
    """Incidents gained or lost."""

    count: int = Field(description="Number of incidents.")
    by_kind: dict[str, int] = Field(description="By detector.")
    cost_usd: float = Field(description="Cost of those not labelled false alarms, in US dollars.")
    labelled: dict[str, int] = Field(
        description="How many of them are labelled `true_loop` and `false_alarm`."
    )
    items: list[WhatIfIncidentSchema] = Field(
        description="The incidents, at most 100: labelled ones first, then the strictest, then the newest."
    )


class WhatIfChangedSchema(Schema):
    """Incidents that both policies find, and to which they react differently."""

    count: int = Field(description="Number of incidents.")
    by_difference: dict[str, int] = Field(description="How many of each difference.")
    cost_usd: float = Field(description="Cost of those not labelled false alarms, in US dollars.")
    cost_usd_after: float = Field(description="The same under the changed policy.")
    items: list[WhatIfChangedIncidentSchema] = Field(
        description="The incidents, at most 100, in the same order."
    )


class WhatIfRecordedSchema(Schema):
    """How well the replay under the current policy agrees with the recorded incidents."""

    incidents: int = Field(description="Recorded incidents of the replayed sessions.")
    reproduced: int = Field(description="How many of them the replay finds.")
    not_found: dict[str, int] = Field(
        description="The others by cause: `settings` were different, `people` decided about calls, or `other`."
    )
    not_recorded: dict[str, int] = Field(description="Incidents that only the replay finds, by cause.")


class WhatIfCoverageSchema(Schema):
    """How much of the history was replayed."""

    share: float = Field(description="Share of the calls that was replayed, from 0 to 1.")
    calls: int = Field(description="Calls in the period, including those of removed sessions.")
    replayed_calls: int = Field(description="Calls that were replayed.")
    missing: dict[str, int] = Field(
        description="Calls that were not: `payloads_not_stored`, "
        "`too_long` sessions, `removed` sessions, `out_of_time`."
    )
    unaffected_sessions: int = Field(description="Sessions in which the change applies to no call.")
    failed_events: int = Field(description="Events that the replay could not evaluate.")


class WhatIfStopsSchema(Schema):
    """Loops that one of the two policies blocks, holds or stops and the other does not."""

    count: int = Field(description="Number of loops.")
    cost_usd: float = Field(description="Their cost in US dollars, without those labelled false alarms.")
    false_stops: int = Field(description="How many of them are labelled `false_alarm`.")


class WhatIfResultSchema(Schema):
    """The results so far."""

    gained: WhatIfIncidentsSchema = Field(description="Incidents that only the changed policy finds.")
    lost: WhatIfIncidentsSchema = Field(description="Incidents that only the current policy finds.")
    changed: WhatIfChangedSchema = Field(description="Incidents that both find, with different reactions.")
    incidents: dict[str, int] = Field(
        description="Incidents under the current policy (`before`) and `after`."
    )
    spent_usd: dict[str, float] = Field(
        description="Cost of these incidents in US dollars, `before` and `after`, "
        "without those labelled false alarms. `after` is `before` less the cost of the "
        "lost ones, plus that of the gained ones and the difference of the changed ones."
    )
    decisions: dict[str, dict[str, int]] = Field(description="Calls by decision, `before` and `after`.")
    endings: dict[str, dict[str, int]] = Field(
        description="Blocked calls that are to `finish`, `reuse` an answer or `delay`, `before` and `after`."
    )
    stops: dict[str, WhatIfStopsSchema] = Field(
        description="Loops that only the current policy blocks, holds or stops (`lost`), "
        "and only the changed one (`gained`)."
    )
    days: dict[str, list[int]] = Field(
        description="Loops that each policy blocks, holds or stops by the day on which they were found (UTC): "
        "before and after."
    )
    recorded: WhatIfRecordedSchema = Field(description="Agreement with the record.")
    coverage: WhatIfCoverageSchema = Field(description="Which calls were replayed.")


class WhatIfProblemSchema(Schema):
    """Why a what-if failed."""

    code: str = Field(description="Stable code in snake case.")
    detail: str = Field(description="What happened.")


class WhatIfSchema(Schema):
    """A what-if."""

    id: str = Field(description="Id of the what-if.")
    state: Literal["waiting", "running", "finished", "failed", "cancelled"] = Field(
        description="State of the replay."
    )
    days: int = Field(description="Number of past days that are replayed.")
    change: dict[str, Any] = Field(description="The proposed change, as in the request.")
    progress: WhatIfProgressSchema = Field(description="Progress of the replay.")
    result: WhatIfResultSchema | None = Field(description="Results so far. Null before the replay starts.")
    is_outdated: bool = Field(description="Whether a setting of the project was changed after the replay.")
    error: WhatIfProblemSchema | None = Field(description="Why it failed.")
    created_by: str = Field(description="A user name or `key:<id>`.")
    created_at: datetime = Field(description="When it was created.")
    finished_at: datetime | None = Field(description="When it ended.")
    links: dict[str, str] = Field(description="`what_if`: console page of the what-if.")
