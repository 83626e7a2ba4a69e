"""Statistics: what detection did, over time and by tool, model and detector."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any, Literal

from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Field, Query, Router, Schema

from detection.api.auth import READ, project_of
from detection.api.problems import Problem
from detection.api.responses import answer
from detection.api.schemas import Moment
from detection.selectors.statistics import Numbers, statistics

router = Router(tags=["statistics"])
DEFAULT_SPAN, MAX_SPAN, MAX_HOURLY_SPAN = timedelta(days=7), timedelta(days=400), timedelta(days=40)
By = Literal["total", "hour", "day", "kind", "tool", "model", "backend"]


class StatisticsQuery(Schema):
    """The span, half open, and what to group by."""

    from_: Moment | None = Field(None, alias="from", description="Seven days before `to` unless given.")
    to: Moment | None = Field(None, description="Now unless given.")
    by: By = "total"
    demo: bool = True


class NumbersOut(Schema):
    """The numbers of a group. Numbers of calls are null where calls have no share: by detector."""

    checks: int | None = Field(description="Calls that were looked at.")
    warned: int | None
    blocked: int | None
    token_count: int | None
    cost_usd: float | None
    incidents: int
    findings: int
    true_loops: int = Field(description="As labelled by people, like false_alarms.")
    false_alarms: int
    precision: float | None = Field(description="True loops among the labelled.")
    average_confidence: float | None
    recovered: int = Field(description="Ended loops that the agent left by itself.")
    not_recovered: int
    recovery: float | None
    loop_calls: int
    loop_calls_blocked: int
    loop_cost_usd: float
    saved_cost_usd_estimate: float | None = Field(description="Blocked calls at the average price of a call.")


class GroupOut(NumbersOut):
    """A group's numbers."""

    key: str = Field(description="A time in UTC, a detector, a tool, backend/model or a backend.")


class RecoveryOut(Schema):
    """What agents did after the reactions of one rung."""

    rung: str
    recovered: int
    went_on: int
    stopped: int
    share: float | None


class JudgeOut(Schema):
    """What the judge ruled."""

    outcome: Literal["accepted", "denied", "unclear", "failed", "refused", "obeyed"]
    count: int
    average_latency_ms: float
    token_count: int
    cost_usd: float


class StatisticsOut(Schema):
    """An answer."""

    from_: datetime = Field(alias="from")
    to: datetime
    by: By
    counted_at: datetime | None = Field(description="Calls evaluated later than this are not counted yet.")
    total: NumbersOut
    items: list[GroupOut]
    recovery: list[RecoveryOut]
    judge: list[JudgeOut]
    is_cut: bool = Field(description="Whether there were more than 1,000 groups.")


def numbers_document(numbers: Numbers) -> dict[str, Any]:
    """Return numbers as the API shows them."""
    return asdict(numbers) | {
        "precision": numbers.precision,
        "recovery": numbers.recovery,
        "saved_cost_usd_estimate": numbers.saved_cost_usd_estimate,
    }


@router.get(
    "/statistics",
    auth=READ,
    response={200: StatisticsOut},
    by_alias=True,
    operation_id="getStatistics",
    summary="Read statistics",
)
def get_statistics(request: HttpRequest, query: Query[StatisticsQuery]) -> HttpResponse:
    """Return totals of a span and groups of it. Calls are counted by whole hours that begin in the span."""
    _refuse_unknown(request)
    end = query.to or timezone.now()
    start = query.from_ or end - DEFAULT_SPAN
    longest = MAX_HOURLY_SPAN if query.by == "hour" else MAX_SPAN
    if not start < end or end - start > longest:
        raise Problem(
            422, "invalid_span", f"The span must be over 0 and at most {longest.days} days.", path="from"
        )
    by = None if query.by == "total" else query.by
    found = statistics(project_of(request), start, end, by, demo=query.demo)
    return answer(
        {
            "from": start.isoformat(),
            "to": end.isoformat(),
            "by": query.by,
            "counted_at": found.counted_at.isoformat() if found.counted_at else None,
            "total": numbers_document(found.total),
            "items": [{"key": row.key, **numbers_document(row.numbers)} for row in found.rows],
            "recovery": [
                {
                    "rung": row.rung,
                    "recovered": row.recovered,
                    "went_on": row.went_on,
                    "stopped": row.stopped,
                    "share": row.share,
                }
                for row in found.recovery
            ],
            "judge": [asdict(share) for share in found.judge],
            "is_cut": found.is_cut,
        }
    )


def _refuse_unknown(request: HttpRequest) -> None:
    unknown = request.GET.keys() - {"from", "to", "by", "demo"}
    if unknown:
        raise Problem(422, "unknown_parameter", "There are: from, to, by, demo.", path=min(unknown)[:60])
