"""Judges runs that users reported: what an agent's calls met with, against what an expert user would want.

Calls count from 1. A notice about the result of a call that arrives with the next call belongs to that next one. The
expectations: `warn_by`, `block_by` and `stop_by` name the call that such a reaction, or a stricter one, must have come
by; `no_warn_before` and `no_block_before` the call before which there must be none; `never` is `finding` or `block`;
`warns_at_most` limits the warnings, and `reacts_at_least` wants so many, or a block. `runs` names calls that must run,
`incident` its `kind` (one or several, of which one is enough, or `any`), `not_kind` and `at_most`; `message_has` and
`message_has_not` parts of texts. Where `stopped_means_stopped`, no call runs after a text that says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

from development.measuring.differences import Played

Json = dict[str, Any]
Kind = Literal["warn", "block", "stop"]

_KINDS: tuple[Kind, ...] = ("warn", "block", "stop")
_SAYS_STOPPED = re.compile(r"session (was |has been |is )?stopped", re.IGNORECASE)
_EXPECTED = frozenset(
    (
        *(f"{kind}_by" for kind in _KINDS),
        *(f"no_{kind}_before" for kind in _KINDS),
        "never",
        "warns_at_most",
        "reacts_at_least",
        "runs",
        "incident",
        "message_has",
        "message_has_not",
        "stopped_means_stopped",
    )
)
_OF_INCIDENTS = frozenset(("kind", "not_kind", "at_most"))


@dataclass(frozen=True, slots=True)
class ReportReaction:
    """What a call met with. A held call is a blocked one: until a person decides, it does not run."""

    call: int
    kind: Kind
    message: str


@dataclass(slots=True)
class ReportRun:
    """The run of a case: how many calls the agent made, which of them ran, and what they met with."""

    calls: int = 0
    ran: list[int] = field(default_factory=list)
    reactions: list[ReportReaction] = field(default_factory=list)


def compared(case: Json, run: ReportRun, incidents: list[Json]) -> Played:
    """Return a played case with its differences; a case with an unknown expectation fails."""
    expect: Json = case["expect"]
    got = {
        "calls": run.calls,
        "ran": run.ran,
        "reactions": [[one.call, one.kind, one.message] for one in run.reactions],
        "incidents": [
            {name: one[name] for name in ("kind", "tool", "count", "limit", "decision")} for one in incidents
        ],
    }
    problems = (
        *_unknown(expect),
        *_of_reactions(expect, run, incidents),
        *_of_incidents(expect.get("incident", {}), [str(one["kind"]) for one in incidents]),
        *_of_messages(expect, run),
        *(f"expected call {number} to run" for number in expect.get("runs", ()) if number not in run.ran),
    )
    return Played(case["id"], got, problems)


def is_awaited(case: Json, incidents: list[Json]) -> bool:
    """Return whether an incident that a case expects is missing."""
    wanted = case["expect"].get("incident", {})
    return "kind" in wanted and not _has(wanted["kind"], [str(one["kind"]) for one in incidents])


def _unknown(expect: Json) -> Iterator[str]:
    names = {*(expect.keys() - _EXPECTED), *(expect.get("incident", {}).keys() - _OF_INCIDENTS)}
    yield from (f"unknown expectation {name!r}" for name in sorted(names))
    if expect.get("never", "finding") not in ("finding", "block"):
        yield f"unknown expectation never {expect['never']!r}"


def _of_reactions(expect: Json, run: ReportRun, incidents: list[Json]) -> Iterator[str]:
    for rank, kind in enumerate(_KINDS):
        first = min((one.call for one in run.reactions if one.kind in _KINDS[rank:]), default=None)
        by, before = expect.get(f"{kind}_by"), expect.get(f"no_{kind}_before", 0)
        if by and (first is None or first > by):
            yield f"expected {kind} by call {by}, got {first or 'none'} of {run.calls}"
        if first is not None and first < before:
            yield f"expected no {kind} before call {before}, got one at {first}"
        if first is not None and expect.get("never") == kind:
            yield f"expected no {kind}, got one at {first}"
    if expect.get("never") == "finding" and run.reactions:
        yield f"expected no finding, got {run.reactions[0].kind} at {run.reactions[0].call}"
    elif expect.get("never") == "finding" and incidents:
        yield f"expected no finding, got {incidents[0]['kind']}"
    warnings = sum(one.kind == "warn" for one in run.reactions)
    if warnings > expect.get("warns_at_most", warnings):
        yield f"expected at most {expect['warns_at_most']} warnings, got {warnings}"
    if len(run.reactions) == warnings < expect.get("reacts_at_least", 0):
        yield f"expected {expect['reacts_at_least']} warnings or a block, got {warnings} of {run.calls}"


def _of_incidents(wanted: Json, kinds: list[str]) -> Iterator[str]:
    got = ", ".join(kinds) or "none"
    if "kind" in wanted and not _has(wanted["kind"], kinds):
        yield f"expected an incident {wanted['kind']}, got {got}"
    if wanted.get("not_kind") in kinds:
        yield f"expected no incident {wanted['not_kind']}, got {got}"
    if len(kinds) > wanted.get("at_most", len(kinds)):
        yield f"expected at most {wanted['at_most']} incidents, got {got}"


def _has(wanted: str | list[str], kinds: list[str]) -> bool:
    if wanted == "any":
        return bool(kinds)
    return any(one in kinds for one in ([wanted] if isinstance(wanted, str) else wanted))


def _of_messages(expect: Json, run: ReportRun) -> Iterator[str]:
    texts = " | ".join(one.message for one in run.reactions).lower()
    for text in expect.get("message_has", ()):
        if text.lower() not in texts:
            yield f"expected a message with {text!r}"
    for text in expect.get("message_has_not", ()):
        if text.lower() in texts:
            yield f"expected no message with {text!r}"
    said = min((one.call for one in run.reactions if _SAYS_STOPPED.search(one.message)), default=None)
    last = max(run.ran, default=0)
    if expect.get("stopped_means_stopped") and said is not None and last > said:
        yield f"the message of call {said} says that the session is stopped, but call {last} ran"
