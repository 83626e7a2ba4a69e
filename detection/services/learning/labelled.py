"""Evidence in the calls of labelled incidents: arguments and result fields that look volatile, and calls that poll."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, Final

from django.utils import timezone

from detection.engine.detectors import detector_for
from detection.engine.identity import Keyer
from detection.engine.results import evaluate_result
from detection.engine.tool_classes import ToolTraits
from detection.models import Incident
from detection.models.evidence import EvidenceCall
from detection.models.incidents import IncidentLabel, LabelReason
from detection.services.exceptions.exceptions import varying_arguments
from detection.strict_json import JsonProblem, loads

MAX_INCIDENTS: Final = 300
"""The newest labelled incidents of a project that are read."""
MAX_AGE: Final = timedelta(days=90)
MAX_VARYING: Final = 4
"""Results that differ in more fields are considered different."""
MIN_POLL_GAP_SECONDS: Final = 1.0
MAX_POLL_UNEVENNESS: Final = 3.0
_HEX = re.compile(r"[0-9a-fA-F][0-9a-fA-F-]{7,255}")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d.{0,40}")
_NUMBER = re.compile(r"\d{9,40}(?:\.\d{1,20})?")
_TOKEN = re.compile(r"[A-Za-z0-9_+/=-]{16,512}")
_MAY_POLL: Final = ("", LabelReason.OTHER, LabelReason.HONEST_REPETITION)


def labelled_incidents(project_id: int) -> list[Incident]:
    """Return the newest labelled incidents of a project, without those of the demo and of spent limits."""
    rows = Incident.objects.filter(
        project_id=project_id, is_demo=False, opened_at__gte=timezone.now() - MAX_AGE
    ).exclude(label="")
    newest = rows.order_by("-id")[:MAX_INCIDENTS]
    return [row for row in newest if not detector_for(row.kind).is_run_limit]


def is_loop(incident: Incident) -> bool:
    """Return whether a person labelled it a loop."""
    return incident.label == IncidentLabel.TRUE_LOOP


def volatile_arguments(incident: Incident) -> list[str]:
    """Return the arguments that look volatile.

    Of a false alarm with that reason, those that vary. Of a loop, those that alone make its calls different, with
    another opaque value in each.
    """
    varying = varying_arguments(incident)
    if not is_loop(incident):
        return varying if incident.label_reason == LabelReason.VOLATILE_ARGUMENT else []
    calls = [found for call in _calls(incident) if (found := json_object(call.get("arguments"))) is not None]
    return [
        name
        for name in varying
        if len({str(call.get(name)) for call in calls}) == len(calls)
        and all(_is_opaque(str(call.get(name, ""))) for call in calls)
    ]


def volatile_result_fields(incident: Incident, traits: ToolTraits, keyer: Keyer) -> set[str]:
    """Return the fields in which alone the results of identical calls of a loop differ.

    What the engine masks anyway, such as times and request ids, is no difference.
    """
    if not is_loop(incident):
        return set()
    found: set[str] = set()
    for one, other in _identical_pairs(incident):
        texts = one.get("result") or "", other.get("result") or ""
        values = [json_object(text) for text in texts]
        if None in values or len({_digest(text, traits, keyer) for text in texts}) == 1:
            continue
        first, second = (dict(_leaves(value)) for value in values)
        if first.keys() != second.keys():
            return set()
        varying = {path for path in first if first[path] != second[path]}
        if len(varying) > MAX_VARYING or len(varying) == len(first):
            return set()
        found |= {path[-1] for path in varying}
    return found


def behaves_like_poll(incident: Incident) -> bool:
    """Return whether a false alarm is a poll: by its reason, or identical calls at even intervals without errors."""
    if is_loop(incident):
        return False
    if incident.label_reason == LabelReason.POLL:
        return True
    calls = _calls(incident)
    if incident.label_reason not in _MAY_POLL or len(calls) < 3:
        return False
    if len({call.get("call_key") for call in calls}) != 1 or any(call.get("is_error") for call in calls):
        return False
    moments = [datetime.fromisoformat(call["at"]) for call in calls]
    gaps = [(after - before).total_seconds() for before, after in pairwise(moments)]
    return min(gaps) >= MIN_POLL_GAP_SECONDS and max(gaps) <= MAX_POLL_UNEVENNESS * min(gaps)


def _is_opaque(value: str) -> bool:
    """Return whether a value looks like an id, a time or a token."""
    if _HEX.fullmatch(value) or _TIME.fullmatch(value) or _NUMBER.fullmatch(value):
        return True
    return _TOKEN.fullmatch(value) is not None and any(character.isdigit() for character in value)


def json_object(text: str | None) -> dict[str, object] | None:
    """Return a text as an object; None if it is cut or no object."""
    try:
        value = loads(text or "")
    except JsonProblem:
        return None
    return value if isinstance(value, dict) else None


def _calls(incident: Incident) -> Sequence[EvidenceCall]:
    return [*incident.evidence.get("calls", ())]


def _identical_pairs(incident: Incident) -> Iterator[tuple[EvidenceCall, EvidenceCall]]:
    by_key: dict[str, EvidenceCall] = {}
    for call in _calls(incident):
        if "result" not in call or call.get("is_error"):
            continue
        before = by_key.get(call["call_key"])
        if before is not None:
            yield before, call
        by_key[call["call_key"]] = call


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterable[tuple[tuple[str, ...], Any]]:
    """Return the values of an object with their paths; lists are one value."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, (*path, name))
    else:
        yield path, value


def _digest(text: str, traits: ToolTraits, keyer: Keyer) -> str:
    return evaluate_result(text, None, traits, keyer).digest
