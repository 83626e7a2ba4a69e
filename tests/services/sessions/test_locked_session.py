import asyncio
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from channels.layers import get_channel_layer
from django.utils import timezone

from detection.engine import interventions
from detection.models import Incident, IncidentActivity, Project, Session, SessionKey
from detection.selectors.changes import snapshot
from detection.selectors.sessions import changed_since
from detection.services.errors import NotFound
from detection.services.incidents import loop_triage
from detection.services.keys import Principal
from detection.services.retention import retention
from detection.services.sessions import actions, session_rows
from detection.services.sessions.folding import Folding, Quarantine
from detection.services.sessions.locked_session import locked_session
from detection.sql.pipeline import fetch
from detection.stream.hints import project_group
from tests.support.agents import OPERATOR, Agent
from tests.support.patience import PATIENCE_SECONDS
from tests.support.threads import in_thread, wait_until_blocked

pytestmark = pytest.mark.servers


@pytest.fixture
def racing(transactional_db):
    project = Project.objects.create(slug="race", name="Race")
    return Agent(Principal(0, "x", project.pk, "race", frozenset(), False, None, b"secret"))


@async_to_sync
async def hints_after(project_id, do, count):
    """The hints that the watchers of a project get from `do`; waits for `count` of them."""
    layer = get_channel_layer()
    found: set[Any] = set()
    news: asyncio.Queue[Any] = asyncio.Queue()
    channel = await layer.new_channel()
    await layer.group_add(project_group(project_id), channel)

    async def receive():
        while True:
            message = await layer.receive(channel)
            for hint in message["hints"]:
                news.put_nowait((hint["topic"], hint["id"], hint["change"]))

    receiving = asyncio.create_task(receive())
    await asyncio.sleep(0.5)  # for what was published before
    while not news.empty():
        news.get_nowait()
    await sync_to_async(do)()
    async with asyncio.timeout(PATIENCE_SECONDS):
        while len(found) < count:
            found.add(await news.get())
    receiving.cancel()
    return found


def loop(agent):
    for _ in range(4):
        agent.asks()
    return Incident.objects.get()


def continued_loop(agent):
    """A loop that was stopped, in a session that is looping still: another call of it was allowed."""
    incident = loop(agent)
    agent.asks(agent.call("read_file"))
    return incident


def test_a_block_that_changes_nothing_writes_nothing(racing):
    racing.asks()
    before = Session.objects.values().get()
    with locked_session(SessionKey(before["project_id"], before["id"])):
        pass
    assert Session.objects.values().get() == before


def test_a_block_that_raises_leaves_everything_as_it_was(racing):
    racing.asks()
    before = Session.objects.values().get()

    def fail():
        with locked_session(SessionKey(before["project_id"], before["id"])) as locked:
            locked.session.call_count = 99
            interventions.reset_all(locked.tracker)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert Session.objects.values().get() == before


def test_a_session_that_is_gone_or_held_by_another_transaction_is_not_found(racing):
    racing.asks()
    session = Session.objects.get()
    with pytest.raises(NotFound), locked_session(session.key._replace(session_id=session.pk + 1)):
        pass
    raised = []

    def take():
        try:
            with locked_session(session.key, wait=False):
                pass
        except NotFound:
            raised.append(True)

    with locked_session(session.key):
        in_thread(take).result()
    assert raised == [True]


def test_the_state_that_a_waiting_call_reads_is_the_one_that_it_waited_for(racing):
    racing.asks()
    key = Session.objects.get().key
    racing.posts(racing.call())
    seen = []

    def second():
        with locked_session(key) as locked:
            seen.append((locked.session.evaluated_seq, locked.tracker.runs[""].ordinal))

    with locked_session(key) as locked:
        thread = in_thread(second)
        wait_until_blocked()
        Folding(locked, Quarantine()).catch_up()
    thread.result()
    assert seen == [(2, 2)]


def test_a_closing_during_an_evaluation_is_kept(racing):
    incident = loop(racing)
    racing.posts(racing.call())
    project_id = Project.objects.get().pk
    with locked_session(incident.session.key) as locked:
        assert locked.incidents.active
        thread = in_thread(lambda: loop_triage.fine(project_id, incident.loop.public_id, OPERATOR))
        wait_until_blocked()
        Folding(locked, Quarantine()).catch_up()
    thread.result()
    incident.refresh_from_db()
    assert (incident.label, incident.detections) == ("false_alarm", 2)


def test_a_finding_writes_only_what_findings_change(agent):
    incident = loop(agent)
    agent.posts(agent.call())
    with locked_session(incident.session.key) as locked:
        assert locked.incidents.active
        Incident.objects.update(status="done", label="true_loop")
        Folding(locked, Quarantine()).catch_up()
    incident.refresh_from_db()
    assert (incident.status, incident.label, incident.detections) == ("done", "true_loop", 2)


def test_closing_a_loop_leaves_its_session_running(racing):
    incident = continued_loop(racing)
    project_id = incident.project_id
    cursor = snapshot().partition(":")[0]
    hints = hints_after(
        project_id, lambda: loop_triage.done(project_id, incident.loop.public_id, OPERATOR), 3
    )
    assert Session.objects.get().state == "running"
    assert [row.state for row in changed_since(project_id, cursor).sessions] == ["running"]
    assert ("session", "s-1", "changed") in hints


def test_undoing_that_a_loop_was_closed_makes_the_session_loop_again(agent):
    incident = continued_loop(agent)
    loop_triage.done(incident.project_id, incident.loop.public_id, OPERATOR)
    loop_triage.undo(incident.project_id, incident.loop.public_id, OPERATOR)
    assert Session.objects.get().state == "looping"


def test_the_incident_of_a_removed_session_can_still_be_closed(agent):
    incident = loop(agent)
    Incident.objects.update(session=None)
    loop_triage.done(incident.project_id, incident.loop.public_id, OPERATOR)
    assert Incident.objects.get().status == "done"


def test_an_abandoned_loop_ends_on_the_open_pages_too(racing):
    incident = continued_loop(racing)
    Session.objects.update(last_event_at=timezone.now() - timedelta(hours=2))
    cursor = snapshot().partition(":")[0]
    hints = hints_after(incident.project_id, retention.end_abandoned, 2)
    incident.refresh_from_db()
    assert (incident.ended_at is not None, incident.recovered) == (True, True)
    assert IncidentActivity.objects.filter(action="ended", note="abandoned").count() == 1
    assert [row.state for row in changed_since(incident.project_id, cursor).sessions] == ["running"]
    assert hints >= {("session", "s-1", "changed"), ("incident", incident.public_id, "ended")}


def test_a_loop_whose_session_is_at_work_is_not_abandoned(racing):
    incident = loop(racing)
    Session.objects.update(last_event_at=timezone.now() - timedelta(hours=2))
    with locked_session(incident.session.key):
        ended = []
        in_thread(lambda: ended.append(retention.end_abandoned())).result()
    assert ended == [0]


@pytest.mark.one_database("the plan of a statement")
def test_the_row_of_a_known_session_is_found_among_any_number_without_statistics(agent):
    agent.asks()
    session = Session.objects.get()
    known = session_rows.KnownRows(session.key, session_rows.RowVersions("(0,1)", "1", "1", "1"), [], 0)
    values = session_rows.saved_values(session)
    saving = session_rows.save_if_known(known, values, values)
    plan = "\n".join(line for (line,) in fetch(f"EXPLAIN {saving.text}", saving.parameters))
    assert "Tid Scan on detection_session s" in plan


def test_stopping_withdraws_and_writes_the_reason_once(agent, project):
    agent.asks()
    actions.stop(project.pk, "s-1", OPERATOR, "runs wild")
    actions.stop(project.pk, "s-1", OPERATOR, "again")
    session = Session.objects.get()
    assert (session.state, session.stopped_by, session.stop_reason) == ("stopping", "ana", "runs wild")


def test_stopping_several_sessions_passes_over_those_that_are_gone(agent, principal, project):
    agent.asks()
    Agent(principal, "s-2").asks()
    assert actions.stop_many(project.pk, ["s-1", "removed", "s-2"], OPERATOR) == {"can_stop": 2}
    assert set(Session.objects.values_list("state", flat=True)) == {"stopping"}
