"""What a person calls fine is not found again: the same run once more, whatever found it and at whichever door."""

from typing import Any

import pytest

from detection.console.loops.fine_page import FIRST_CHOICES
from detection.models import Incident, Session
from detection.models.incidents import LabelReason
from detection.services.exceptions import fine
from detection.services.sessions.evaluation import evaluate
from tests.support import truth

SHAPES = [name for name, shape in truth.SHAPES.items() if shape.loops == 1 and name != "same text"]
REASONS = [LabelReason.POLL, LabelReason.HONEST_REPETITION, LabelReason.BROKEN_TOOL]


def posted(api, session, shape, times=1):
    """Report what has happened; nothing is blocked."""
    for number in range(times):
        events = [*truth.SHAPES[shape].events(session)]
        for event in events:
            if "call_id" in event:
                event["call_id"] += f"-{number}"
        assert api.post("/events", {"events": events}).status_code == 202
    evaluate(Session.objects.get(external_id=session).key)


def asked(api, session, shape, times=1):
    """Ask before each call, and go on after a block, as an agent does that takes no notice of it."""
    results: list[dict[str, Any]] = []
    for number in range(times):
        events = [*truth.SHAPES[shape].events(session)]
        of_calls = {event["call_id"]: event for event in events if event["type"] == "result"}
        for event in (one for one in events if one["type"] == "call"):
            call = {"call_id": f"{event['call_id']}-{number}"} | {
                name: event[name] for name in ("tool", "arguments")
            }
            body = {"session": session, "agent": event["agent"], "results": results, "calls": [call]}
            (verdict,) = api.post("/guard", body).json()["verdicts"]
            result = of_calls[event["call_id"]]
            about: dict[str, Any] = {name: result[name] for name in ("content", "is_error") if name in result}
            results = (
                [{"call_id": call["call_id"], **about}] if verdict["decision"] in ("allow", "warn") else []
            )
    api.post("/guard", {"session": session, "results": results, "calls": []})


def call_fine(api, project, reason):
    """Choose what the form has chosen."""
    (loop,) = api.get("/loops").json()["items"]
    places = {one.where for one in fine.choices(project.pk, loop["id"])}
    where = next(one for one in FIRST_CHOICES if one in places)
    answer = api.post(f"/loops/{loop['id']}/fine", {"where": where, "reason": reason})
    assert answer.status_code == 200, answer.text


def found_in(session):
    rows = Incident.objects.filter(session_name=session)
    return [(one.kind, one.count, one.limit, one.decision) for one in rows]


@pytest.mark.parametrize(
    ("door", "reason"),
    [(posted, LabelReason.OTHER), (asked, LabelReason.OTHER), *((posted, reason) for reason in REASONS)],
)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_run_is_not_found_again(api, project, shape, door, reason):
    door(api, "first", shape)
    assert found_in("first")
    call_fine(api, project, reason)
    door(api, "second", shape)
    assert found_in("second") == []


def test_a_run_that_was_cut_short_by_blocks_may_go_on(api, project):
    asked(api, "first", "same call")
    assert found_in("first")
    call_fine(api, project, LabelReason.OTHER)
    asked(api, "second", "same call", times=7)
    assert found_in("second") == []


def test_the_longest_run_decides(api, project):
    posted(api, "long", "same call", times=4)
    posted(api, "short", "same call")
    call_fine(api, project, LabelReason.OTHER)
    posted(api, "as-long", "same call", times=4)
    assert found_in("as-long") == []


@pytest.mark.parametrize("other", ["same error", "rephrased search"])
def test_loops_of_other_tools_are_found_as_before(api, project, other):
    posted(api, "first", "same call")
    call_fine(api, project, LabelReason.OTHER)
    posted(api, "second", other)
    assert found_in("second")


def test_a_run_that_goes_on_and_on_is_found(api, project):
    posted(api, "first", "same call")
    call_fine(api, project, LabelReason.OTHER)
    posted(api, "endless", "same call", times=14)
    assert found_in("endless")
