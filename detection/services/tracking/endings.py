"""How loops end: why, and whether the agent recovered. `tracker` says when, and writes it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final, NamedTuple

from detection.engine.detectors import detector_for
from detection.models import EventType, Incident
from detection.services.events.event_records import EventRecord


class Ending(NamedTuple):
    """Why an incident ends; `recovered` is None where that does not say whether the agent recovered."""

    note: str
    recovered: bool | None


LEFT: Final = Ending("the agent changed course", recovered=True)
_SIGNS_OF_LIFE: Final = {
    EventType.RESULT: Ending("the result arrived", recovered=True),
    EventType.HEARTBEAT: Ending("the call still runs", recovered=True),
    EventType.CALL: Ending("the run continued", recovered=True),
    EventType.MESSAGE: Ending("the run continued", recovered=True),
    EventType.END: Ending("the session ended", recovered=None),
}
"""How an incident about silence ends, by the event that ends it."""


def of_silence(incident: Incident, event: EventRecord) -> Ending | None:
    """Return how an event ends an incident about silence as a sign of life; None for others."""
    if not detector_for(incident.kind).is_silence:
        return None
    call, kind = incident.evidence.get("detail", {}).get("call", 0), event.type
    if call and kind != EventType.END:
        is_over = event.closes == call and kind in (EventType.RESULT, EventType.HEARTBEAT)
    else:
        is_over = kind in (EventType.CALL, EventType.RESULT, EventType.MESSAGE, EventType.END)
    return _SIGNS_OF_LIFE[EventType(kind)] if is_over else None


def with_session(loops: Sequence[Incident], call_count: int) -> list[Ending]:
    """Return how each of the loops of a session ends with it."""
    gone = left(loops, call_count)
    latest = [_last_call(one) for one in loops if detector_for(one.kind).is_of_calls]
    ends = []
    for incident in loops:
        if incident.public_id not in gone:
            is_other = any(call > _last_call(incident) for call in latest)
            ends.append(
                Ending(f"the session ended in {'another' if is_other else 'the'} loop", recovered=False)
            )
        elif call_count == incident.last_call_number:
            ends.append(Ending("its last call had a new result", recovered=True))
        else:
            ends.append(LEFT)
    return ends


def left(loops: Collection[Incident], call_count: int) -> set[str]:
    """Return the ids of the incidents that the latest call of their session, its `call_count`-th, was not a part of."""
    # An agent that leaves one loop for another one has not recovered.
    latest = max((_last_call(one) for one in loops if detector_for(one.kind).is_of_calls), default=0)
    return {
        one.public_id
        for one in loops
        if call_count > (latest if detector_for(one.kind).is_of_calls else _last_call(one))
    }


def _last_call(incident: Incident) -> int:
    """Return the number of the latest call in the loop, less one if a call in it had a new result since."""
    return incident.last_call_number - ("progress" in incident.evidence)
