"""Loops: which incidents are one, what people do with them, and that sessions do not wait for one another."""

import threading
from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from detection.console.loops import loop_text
from detection.engine.loop_identity import identify
from detection.models import AuditEntry, Incident, Loop, LoopActivity, Session
from detection.selectors import loops as selector
from detection.selectors.filters import list_query
from detection.selectors.lists import LOOPS
from detection.services.audit import Actor
from detection.services.errors import Conflict, Invalid, NotFound
from detection.services.incidents import loop_changes, loop_triage
from detection.services.tracking import loops
from tests.support.agents import OPERATOR, Agent
from tests.support.alerts import make_incident
from tests.support.projects import make_member, make_project
from tests.support.threads import Worker


def key(kind="repeat", tool="search", results="equal", detail=None, calls=None):
    return identify(kind, tool, results, detail or {}, calls or [{"tool": tool}]).key


def shell(command, tool="Bash"):
    return key(tool=tool, calls=[{"tool": tool, "arguments": command}])


def test_arguments_and_the_start_of_a_lap_do_not_tell_loops_apart_but_tool_result_and_program_do():
    assert key(calls=[{"tool": "search", "arguments": '{"q":"a"}'}]) == key(results="unknown")
    assert key("cycle", "a → b → c") == key("cycle", "b → c → a")
    assert len({key(), key("outcome"), key(tool="grep"), key(results="errors"), key(results="empty")}) == 5
    assert key("outage", detail={"trouble": "rate limit"}) != key("outage", detail={"trouble": "time-out"})
    assert key("budget", "a", detail={"unit": "calls"}) == key("budget", "b", detail={"unit": "calls"})
    lap = [{"tool": "a"}, {"tool": "b"}]
    assert key("stagnation", "a", calls=lap) == key("stagnation", "b", calls=lap) != key("stagnation", "a")
    pytest_ = shell('{"command": "cd /srv && FOO=1 python/pytest -x tests/a.py"}')
    assert pytest_ == shell('["bash", "-lc", "pytest tests/b.py"]') == shell('{"cmd": "pytest"}')
    assert (
        len({pytest_, shell('{"command": "git push"}'), shell('{"command": "git status"}'), shell("{")}) == 4
    )


@pytest.fixture
def repeat(project, principal):
    """Let sessions repeat a call with arguments of their own."""

    def make(session, agent="triage", model="gpt-5", tool="search_web", calls=5):
        one = Agent(principal, session, backend="openai", model=model, agent=agent)
        for number in range(calls):
            call = one.call(tool, f'{{"q": "{session}"}}', call_id=f"{session}-{number}")
            results = [one.result(f"{session}-{number - 1}")] if number else ()
            one.asks(call, results=results)
        return Incident.objects.filter(session_name=session).earliest("pk")

    return make


def test_the_same_loop_of_other_sessions_and_agents_is_one_loop_with_what_they_share(project, repeat):
    for session, agent, model in (
        ("s-1", "triage", "gpt-5"),
        ("s-2", "coder", "gpt-5"),
        ("s-3", "coder", "opus"),
    ):
        repeat(session, agent, model)
    repeat("s-4", tool="grep")
    rows = {row.tool: row for row in selector.list_loops(project.pk).items}
    assert rows.keys() == {"search_web", "grep"}
    search = rows["search_web"]
    incidents = Incident.objects.filter(loop__public_id=search.public_id)
    assert (search.sessions, search.incidents, search.status) == (3, incidents.count(), "open")
    assert dict(search.agents)["coder"] == incidents.filter(agent="coder").count()
    assert sum(search.trend) == search.incidents
    assert search.last_seen_at == max(incidents.values_list("last_seen_at", flat=True))
    shared = selector.shared_facts(Loop.objects.get(public_id=search.public_id))
    assert shared["tool"].is_shared
    assert not shared["agent"].is_shared
    assert shared["model"].values[0][0] == "gpt-5"
    assert selector.navigation_counts(project.pk).open == 2
    assert {row.loop_id for row in Incident.objects.filter(session_name="s-1")} == {search.id}, "related ones"


@pytest.fixture
def loop(project):
    """A loop with open and ended incidents."""
    for number, status in enumerate(("open", "open", "open", "ended", "open")):
        make_incident(project, status=status, session_name=f"s-{number}", stays_open=status == "open")
    return Loop.objects.get()


def statuses():
    return [*Incident.objects.order_by("pk").values_list("status", flat=True)]


def status(loop):
    return selector.row_of(loop).status


def test_a_note_is_kept_although_nothing_is_left_to_change(project, loop):
    for note in ("fixed the tool", "root cause: the proxy"):
        loop_triage.done(project.pk, loop.public_id, OPERATOR, note)
    notes = loop.activity.filter(action="done").order_by("pk").values_list("note", flat=True)
    assert [*notes] == ["fixed the tool", "root cause: the proxy"]
    loop_triage.undo(project.pk, loop.public_id, OPERATOR)
    assert status(loop) == "done"


def test_an_action_changes_all_incidents_and_undo_restores_each(project, loop):
    before = statuses()
    loop_triage.done(project.pk, loop.public_id, OPERATOR, "fixed the tool")
    assert statuses() == ["done"] * 3 + ["ended", "done"]
    assert status(loop) == "done"
    assert loop.activity.get(action="done").changed == 4
    loop_triage.done(project.pk, loop.public_id, OPERATOR)  # nothing is left to close
    assert loop.activity.filter(action="done").count() == 1
    loop_triage.undo(project.pk, loop.public_id, OPERATOR)
    assert (statuses(), status(loop)) == (before, "open")
    with pytest.raises(Conflict, match="no change to undo"):
        loop_triage.undo(project.pk, loop.public_id, OPERATOR)
    loop_triage.fine(project.pk, loop.public_id, OPERATOR, "poll")
    assert status(loop) == "fine"
    assert {*Incident.objects.values_list("label_reason", flat=True)} == {"poll"}
    assert {*Incident.objects.values_list("label", flat=True)} == {"false_alarm"}
    incident = make_incident(project, status="open", ended_at=None, loop=loop)
    row = selector.row_of(loop)
    assert (row.status, row.form, row.has_returned) == ("open", "returned", True)
    now = timezone.now()
    incident.session = Session.objects.create(
        project=project, external_id="again", state="looping", started_at=now, last_event_at=now
    )
    incident.last_seen_at = now
    incident.save()
    row = selector.row_of(loop)  # what burns comes first
    assert (row.form, row.looping_now, row.has_returned) == ("looping_now", 1, True)


def test_what_does_not_fit_into_the_request_is_continued_and_can_be_undone_before(project, loop, monkeypatch):
    monkeypatch.setattr(loop_triage, "IN_REQUEST_SECONDS", 0.0)
    before = statuses()
    loop_triage.done(project.pk, loop.public_id, OPERATOR, seconds=0.0)
    assert statuses().count("done") == 1
    assert loop_changes.carry_out_waiting() == 1
    assert statuses().count("done") == 4
    assert loop_changes.carry_out_waiting() == 0
    loop_triage.undo(project.pk, loop.public_id, OPERATOR)
    assert statuses() == before
    loop_triage.done(project.pk, loop.public_id, OPERATOR, seconds=0.0)
    loop_triage.undo(project.pk, loop.public_id, OPERATOR)
    assert loop_changes.carry_out_waiting() == 0, "an undo ends what it reverts"
    assert statuses() == before


def test_undo_leaves_what_someone_changed_afterwards(project, loop):
    ana = make_member(project)
    actor = Actor(ana.get_username(), ana.pk)
    loop_triage.assign(project.pk, loop.public_id, actor, ana.get_username())
    assert (statuses()[:3], status(loop)) == (["open"] * 3, "open"), "it is not closed by that"
    loop_triage.undo(project.pk, loop.public_id, actor)
    assert selector.row_of(Loop.objects.get()).assignee is None
    loop_triage.done(project.pk, loop.public_id, actor)
    first = Incident.objects.earliest("pk")
    change = loop_triage.start_fine(project.pk, loop.public_id, OPERATOR, "poll", "", only=first)
    loop_triage.finish(project.pk, loop.public_id, change, 2.0)
    with pytest.raises(Conflict):
        loop_triage.undo(project.pk, loop.public_id, actor)
    change = LoopActivity.objects.get(action="done")
    loop_triage.undo(project.pk, loop.public_id, OPERATOR)
    assert Incident.objects.get(pk=first.pk).label == ""
    assert statuses() == ["done"] * 3 + ["ended", "done"]


def test_closing_a_loop_that_is_put_off_ends_that_and_undo_restores_it(project, loop):
    loop_triage.later(project.pk, loop.public_id, OPERATOR, until_worse=True, reason="vendor informed")
    assert status(loop) == "later"
    loop_triage.done(project.pk, loop.public_id, OPERATOR)
    assert (status(loop), selector.row_of(loop).later) == ("done", None)
    loop_triage.undo(project.pk, loop.public_id, OPERATOR)
    assert (status(loop), selector.row_of(loop).later.reason) == ("later", "vendor informed")


def test_a_loop_has_the_form_of_what_its_sessions_do(project):
    session = Session.objects.create(project=project, external_id="s-1", state="stopped")
    incident = make_incident(
        project, session=session, status="open", ended_at=None, last_seen_at=timezone.now()
    )
    loop = Loop.objects.get()
    assert selector.row_of(loop).looping_now == 0, "its session was stopped"
    Session.objects.update(state="looping")
    row = selector.row_of(loop)
    assert (row.form, row.looping_now) == ("looping_now", 1)
    Incident.objects.update(last_seen_at=timezone.now() - timedelta(minutes=3))
    assert (selector.row_of(loop).form, selector.row_of(loop).looping_now) == ("new", 0)
    loop_triage.comment(project.pk, loop.public_id, OPERATOR, "seen")
    assert selector.row_of(loop).form == "went_silent"
    Session.objects.update(state="held")
    row = selector.row_of(loop)
    assert (row.form, loop_text.state(row)) == ("held", ("Held", "held")), "it waits"
    for state in ("stopped", "ended"):
        Session.objects.update(state=state)
        row = selector.row_of(loop)
        assert (row.form, loop_text.state(row)) == ("", ("Open", "idle")), "nothing of it continues"
    Incident.objects.filter(pk=incident.pk).update(status="ended", ended_at=timezone.now())
    row = selector.row_of(loop)
    assert (row.status, row.form) == ("done", "ended_by_itself")
    loop_triage.done(project.pk, loop.public_id, OPERATOR)
    assert selector.row_of(loop).form == ""


def test_a_loop_is_assigned_to_members_only(project, loop):
    ana = make_member(project)
    loop_triage.assign(project.pk, loop.public_id, OPERATOR, ana.get_username())
    assert selector.row_of(Loop.objects.get()).assignee == ana.get_username()
    by_owner = list_query(LOOPS, f"owner:{ana.get_username()}")
    assert len(selector.list_loops(project.pk, by_owner).items) == 1
    assert not selector.list_loops(project.pk, list_query(LOOPS, "assigned:no")).items
    stranger = make_member(make_project())
    with pytest.raises(Invalid):
        loop_triage.assign(project.pk, loop.public_id, OPERATOR, stranger.get_username())
    loop_triage.undo(project.pk, loop.public_id, OPERATOR)
    assert selector.row_of(Loop.objects.get()).assignee is None
    with pytest.raises(NotFound):
        loop_triage.comment(make_project().pk, loop.public_id, OPERATOR, "hi")


def test_counts_and_lists_agree_in_every_state(project, loop):
    other = make_incident(project, tool="grep", label="false_alarm", status="ended")
    other.refresh_from_db()
    loop_triage.later(project.pk, other.loop.public_id, OPERATOR, until_worse=True)
    Incident.objects.filter(pk=other.pk).update(last_seen_at=timezone.now() + timedelta(seconds=1))
    for _ in range(2):
        counts = selector.status_counts(project.pk)
        for name in (*selector.STATUSES, "later_but_firing", "all"):
            query = list_query(LOOPS, "" if name == "all" else f"is:{name}")
            assert len(selector.list_loops(project.pk, query).items) == getattr(counts, name), name
        assert (counts.open, counts.later_but_firing) == (
            selector.navigation_counts(project.pk).open, selector.navigation_counts(project.pk).later_but_firing,
        )  # fmt: skip
        loop_triage.done(project.pk, loop.public_id, OPERATOR)


@pytest.mark.django_db(transaction=True)
@pytest.mark.servers
def test_sixteen_workers_open_incidents_of_the_same_loops_at_once():
    """None waits for the transaction of another once a loop exists, and none deadlocks while it is new."""
    project = make_project()
    started = threading.Barrier(16)

    def work(number):
        tools = ["search", "grep"] if number % 2 else ["grep", "search"]
        started.wait(20)
        for turn in range(3):
            names = [f"{tool}{turn}" for tool in tools]
            with transaction.atomic():
                rows = [
                    Incident(
                        project=project, session_name=f"s-{number}", calls_digest="x", kind="repeat", tool=name, count=4, limit=4,
                        decision="warn", first_seq=1, last_seq=4, public_id=f"{number}{name}",
                    )
                    for name in names
                ]  # fmt: skip
                loops.assign(rows)
                Incident.objects.bulk_create(rows)

    workers = [Worker(work, number) for number in range(16)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.result()
    assert (Loop.objects.count(), Incident.objects.count()) == (6, 96)
    with transaction.atomic():
        loop = Loop.objects.select_for_update(no_key=True).get(project_id=project.pk, tool="search0")
        worker = Worker(lambda: make_incident(project, loop=loop))
        worker.start()
        assert worker.result(20).loop_id == loop.pk, "a person's change does not delay detection"


def test_what_people_do_is_audited_with_the_state_before(project, loop):
    loop_triage.later(project.pk, loop.public_id, Actor("ana", 7), until_worse=True, reason="known")
    loop_triage.comment(project.pk, loop.public_id, Actor("ana", 7), "vendor informed")
    actions = AuditEntry.objects.filter(subject=loop.public_id).values_list("action", "actor")
    assert [*actions.order_by("pk")] == [("loop.later", "ana"), ("loop.commented", "ana")]
    assert LoopActivity.objects.get(action="commented").note == "vendor informed"
