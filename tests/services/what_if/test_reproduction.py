"""A replay under the policy of the time finds exactly the incidents that evaluation recorded."""

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detection.engine.identity import Keyer
from detection.engine.scopes import PROJECT, Scope
from detection.models import Incident, Project
from detection.models.session_state import SessionState
from detection.selectors.policies import load_overrides
from detection.services.policies.overrides import save_override
from detection.services.what_if.changes import PolicyChange
from detection.services.what_if.comparison import Findings
from detection.services.what_if.history import History
from tests.services.sessions.test_one_history import histories, presets
from tests.support.agents import OPERATOR
from tests.support.histories import play

SUPPRESSED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]
NOTHING = PolicyChange(Scope.of(agent="of nobody"), {"enabled": False})
numbers = itertools.count()


def replayed(session, change=NOTHING):
    """Replay one session as a what-if does, and return what was found."""
    project = Project.objects.get(pk=session.project_id)
    found, seen = Findings(), []
    add = found.add
    keyer = Keyer(bytes(project.digest_secret))
    history = History(project, load_overrides(project.pk), change, keyer, session.started_at, lambda: None)

    class Kept(Findings):
        def add(self, outcome, since):
            seen.append(outcome)
            add(outcome, since)

    history.replay(session, history.records_of([session]), Kept())
    return found, seen[0]


def facts(incidents):
    return sorted(
        (
            one.kind,
            one.calls_digest,
            one.first_seq,
            one.last_seq,
            one.decision,
            one.count,
            one.limit,
            one.seqs,
        )
        for one in incidents
    )


@settings(max_examples=15, deadline=None, suppress_health_check=SUPPRESSED)
@given(preset=presets, history=histories, size=st.sampled_from([1, 3, 1000]))
def test_any_history_is_reproduced(principal, preset, history, size):
    save_override(principal.project_id, PROJECT, {"preset": preset}, OPERATOR, note="a test")
    session = play(principal, f"s-{next(numbers)}", history, itertools.repeat(size))
    found, outcome = replayed(session)
    assert facts(outcome.before) == facts(outcome.recorded)
    assert len(outcome.recorded) == Incident.objects.filter(session=session).count()
    assert found.recorded["reproduced"] == found.recorded["incidents"] == len(outcome.recorded)
    assert found.recorded["not_recorded"] == {}
    assert (found.gained["count"], found.lost["count"], found.changed["count"]) == (0, 0, 0)


pytestmark = pytest.mark.django_db


def test_a_reported_call_of_a_loop_that_waits_for_an_answer_is_reproduced(principal):
    """It opens no approval, and does not close that of the call that asked."""
    save_override(principal.project_id, PROJECT, {"preset": "interactive"}, OPERATOR, note="a test")
    call = {"call_id": "c-0", "tool": "search", "arguments": '{"q": "a"}'}
    result = {"call_id": "c-0", "content": "0 hits"}
    reported = {**call, "type": "call", "call_id": ""}
    history: list[Any] = [([result] if number else [], [call]) for number in range(4)]
    history += [reported, {**result, "type": "result"}, reported]
    session = play(principal, "s-waits", history, itertools.repeat(1))
    assert session.state == SessionState.HELD
    _, outcome = replayed(session)
    (recorded,) = outcome.recorded
    assert facts(outcome.before) == facts([recorded])
    assert recorded.count == 6
