"""The navigator of a session's page: a run of any length, windows by address, loops, search, budgets and the session tree."""

import html
import itertools
import re
from typing import Any

import pytest
from django.utils import timezone

from detection.console.sessions import session_map
from detection.engine.scopes import PROJECT
from detection.models import Approval, Event, Incident, Session, call_flags
from detection.selectors import session_runs
from detection.services.approvals import decisions
from detection.services.audit import SYSTEM
from detection.services.events.event_records import EventRecord
from detection.services.ingestion.ingest import ingest
from detection.services.policies import overrides
from detection.services.sessions.evaluation import evaluate
from tests.console.scenes import answer, ask, principal, text
from tests.support.alerts import make_incident
from tests.support.runs import make_long_run

CALLS = 10_000


@pytest.fixture
def long_run(world):
    return make_long_run(world.project, CALLS)


def show(world, query: str = "", session: str = "long"):
    """Return the page."""
    return world.client.get(f"{world.base}/sessions/{session}{query}")


def test_ten_thousand_calls_are_drawn_whole_on_a_small_page(world, long_run):
    for query in ("", "?tab=calls", "?calls=10000", "?calls=200&from=4001"):
        page = show(world, query)
        assert len(page.content) < 250_000, query
    body = show(world).content.decode()
    assert "Calls 9,901 to 10,000 of 10,000" in text(show(world))
    whole = re.search(r'id="run-map".*?</svg>', body, re.DOTALL)
    assert whole
    columns = int(re.search(r'viewBox="0 0 (\d+) 90"', whole[0])[1])
    assert columns == session_map.MAX_COLUMNS
    # The loop is 3 % of the run, in its hue from top to floor, at its place; its calls did not run.
    loops = re.findall(r'<path class="o h\d+" d="M(\d+) 22h(\d+)v40', whole[0])
    assert [(int(x), int(width)) for x, width in loops] == [(192, 14)]
    assert text(show(world)).count("2 h") >= 1  # the pause


def test_a_short_loop_of_a_long_run_is_marked_on_its_map_wide_enough_for_a_click(world, long_run):
    run = Session.objects.get(external_id="long")
    for first in (4_000, 4_015, 9_990):
        make_incident(world.project, session=run, first_seq=first, last_seq=first + 9)
    drawn = show(world).content.decode()
    columns = session_map.MAX_COLUMNS
    marks = [
        (float(x), float(y), float(width))
        for x, y, width in re.findall(
            r'd="M([\d.]+) (\d+)h([\d.]+)"', drawn.partition('class="strip map"')[2]
        )
    ]
    short = [mark for mark in marks if mark[2] < 10]
    assert len(short) == 3
    assert all(width >= columns / 200 and x + width <= columns for x, _, width in short)
    assert short[0][1] != short[1][1]  # side by side they would be one


def test_calls_whose_keys_only_begin_alike_are_not_drawn_as_repeated(world, long_run):
    session = Session.objects.get(external_id="long")
    first, second = Event.objects.filter(session_id=session.pk, type="call").order_by("seq")[:2]
    for one, key in ((first, "abcdef01" * 4), (second, "abcdef02" * 4)):
        Event.objects.filter(session_id=session.pk, seq=one.seq).update(call_key=key)
    cells = session_runs.read_run(session).cells
    assert cells[0].key != cells[1].key
    page = show(world, "?tab=calls&from=1&calls=2").content.decode()
    assert not re.search(r'class="[^"]* k h\d', page.partition("<tbody")[2])


def reported(world, contents, *, guard=False):
    """Report calls that fetch one page, or ask before each, and report a result for all of them."""
    for number, content in enumerate(contents):
        if guard:
            ask(world.project, "fetching", number, tool="fetch", arguments="{}")
        about: dict[str, Any] = {"session": "fetching", "call_id": f"call-{number}"}
        events = [] if guard else [EventRecord(type="call", tool="fetch", arguments="{}", **about)]
        events.append(EventRecord(type="result", content=content, is_error=content == "denied", **about))
        ingest(principal(world.project), events)
        evaluate(Session.objects.get(external_id="fetching").key)
    calls = Event.objects.filter(session__external_id="fetching", type="call")
    return [*calls.order_by("seq").values_list("decision", "flags")]


def test_reported_calls_show_their_results_where_the_guard_would_have_blocked(world):
    rows = reported(world, ["denied"] * 10 + ["one", "one", "two"])
    assert {"block", "stop"} <= {decision for decision, _ in rows}
    assert ["!" in flags for _, flags in rows] == [True] * 10 + [False] * 3
    assert ["^" in flags for _, flags in rows[10:]] == [True, False, True]
    body = html.unescape(show(world, session="fetching").content.decode())
    assert "would be blocked" in body
    assert "10 errors" in body
    assert "blocked call" not in body
    assert "The calls ran, whatever the marks above say." in body
    table = show(world, "?tab=calls", session="fetching").content.decode().partition("<tbody")[2]
    assert "would be blocked" in table
    assert "not run" not in table
    incident = Incident.objects.get(session_name="fetching", kind="repeat")
    page = world.client.get(f"{world.base}/incidents/{incident.public_id}", follow=True).content.decode()
    evidence = (
        page.partition('<table class="evidence')[2].partition("<tbody data-rows>")[2].partition("</tbody>")[0]
    )
    assert evidence.count(">error<") == 1
    same = evidence.count(">same<") + sum(map(int, re.findall(r">same, (\d+) times<", evidence)))
    assert same == len(incident.evidence["calls"]) - 3
    assert "not run" not in evidence


def test_a_held_call_that_was_allowed_shows_its_result(world):
    overrides.save_override(world.project.pk, PROJECT, {"mode": "ask"}, SYSTEM, "people decide")
    numbers = itertools.count()
    while ask(world.project, "asking", number := next(numbers), tool="fetch").decision != "hold":
        answer(world.project, "asking", number, "denied", is_error=True)
    decisions.decide(world.project.pk, Approval.objects.get(state="open").public_id, "allow_once", SYSTEM)
    incident = Incident.objects.get(session_name="asking")
    page = text(world.client.get(f"{world.base}/incidents/{incident.public_id}", follow=True))
    assert re.search(r"held (at|from) the \d+\w\w call, then allowed \.", page)
    assert "allowed later" in page
    assert "not run" not in page.replace("hollow: did not run", "")  # until it runs, its cell is hollow
    answer(world.project, "asking", number, "denied", is_error=True)
    session = Session.objects.get(external_id="asking")
    flags = Event.objects.filter(session_id=session.pk, type="call").order_by("seq").last().flags
    assert "!" in flags
    assert session.strip[-1][2] == flags


def test_a_blocked_call_that_its_host_refused_has_no_result(world):
    rows = reported(world, ["denied"] * 3 + ["Permission denied by user"] * 6, guard=True)
    blocked = [flags for decision, flags in rows if decision in ("block", "stop")]
    assert len(blocked) >= 4
    assert {*blocked} <= {"?b", "?s"}
    session = Session.objects.get(external_id="fetching")
    assert [cell[2] for cell in session.strip] == [flags for _, flags in rows]
    table = text(show(world, "?tab=calls", session="fetching"))
    assert "would be blocked" not in table


def test_a_blocked_call_that_ran_all_the_same_says_so(world):
    rows = reported(world, ["nothing in the list"] * 6, guard=True)
    ran = [flags for decision, flags in rows if decision in ("block", "stop")]
    assert len(ran) >= 2
    assert all(call_flags.ran_refused(flags) and not call_flags.has_not_run(flags) for flags in ran), rows
    session = Session.objects.get(external_id="fetching")
    assert [cell[2] for cell in session.strip] == [flags for _, flags in rows]
    table = text(show(world, "?tab=calls", session="fetching"))
    assert "blocked, but ran" in table
    listed = world.client.get(f"{world.base}/sessions").content.decode()
    assert f"{len(ran)} refused calls that ran" in listed
    incident = Incident.objects.get(session_name="fetching", kind="repeat")
    page = text(world.client.get(f"{world.base}/incidents/{incident.public_id}", follow=True))
    assert page.count(", but ran") == len(ran)
    assert f"{len(ran)} refused calls that ran" in page
    session_page = text(show(world, session="fetching"))
    assert not re.search(r"would (?:be|have been) (?:blocked|stopped)", table + session_page + page)
    assert not re.search(r"(?<!did )not run", table + session_page)


def test_the_message_instead_of_a_result_is_no_known_result(world):
    for number in range(8):
        verdict = ask(world.project, "obeys", number, tool="fetch").verdicts[0]
        ran = verdict.decision in ("allow", "warn")
        answer(world.project, "obeys", number, "the same page" if ran else verdict.verdict.message)
    incident = Incident.objects.get(session_name="obeys", kind="repeat")
    page = text(world.client.get(f"{world.base}/incidents/{incident.public_id}", follow=True))
    assert "all 4 known results were the same" in page
    assert "but ran" not in page


def test_a_window_is_named_by_the_number_of_its_first_call(world, long_run):
    assert "Calls 4,001 to 4,100 of 10,000" in text(show(world, "?from=4001"))
    assert "Calls 9,951 to 10,000" in text(show(world, "?from=99999&calls=50"))
    assert "Calls 1 to 10,000" in text(show(world, "?calls=99999"))
    assert "Calls 9,901 to 10,000" in text(show(world, "?from=x&calls=-3&call=1e9"))
    # Addresses of earlier versions.
    assert "Calls 401 to 500" in text(show(world, "?before=1001"))
    assert "Calls 451 to 550" in text(show(world, "?call=1001"))


def test_a_spent_budget_is_a_banner_and_no_loop(world, long_run):
    page = show(world, "?from=5001&calls=50")
    assert "5,000, limit 1,000" in text(page)
    assert "1 loop" in text(page)
    assert 'class="bracket"' in page.content.decode()


def test_the_next_loop_is_one_link_away(world, long_run):
    body = show(world, "?from=1").content.decode()
    link = re.search(r'id="run-next"\s+href="([^"]+)"', body)[1].replace("&amp;", "&")
    page = show(world, link.partition("#")[0])
    assert "Loop 1 of 1" in text(page)
    assert "Calls 3,991 to 4,490" in text(page)
    assert 'id="run-next"' not in page.content.decode()


def test_a_search_finds_arguments_and_results_and_continues_where_it_stopped(world, long_run, monkeypatch):
    page = show(world, "?q=NEEDLE")
    assert "Hit 1 of 1" in text(page)
    assert "Calls 7,727 to 7,826" in text(page)
    assert "the <mark>Needle</mark>" in page.content.decode()
    assert "tick hit" in page.content.decode()
    assert "10 hits" in text(show(world, "?q=module-976.py&from=1"))
    assert "No call contains “100%”" in text(show(world, "?q=100%25"))
    monkeypatch.setattr(session_runs, "SEARCH_SECONDS", 0.0)
    page = show(world, "?q=needle")
    assert "Searched up to call 500. Continue" in text(page)
    assert "Hit 1 of 1" in text(show(world, "?q=needle&after=15000"))


def test_sessions_that_started_one_another_are_a_tree(world):
    now = timezone.now()
    for name, parent in (
        ("root", "root/child/leaf"),
        ("root/child", "root"),
        ("root/child/leaf", "root/child"),
        ("other", "gone"),
    ):
        Session.objects.create(
            project=world.project, external_id=name, parent_external_id=parent, started_at=now, ended_at=now
        )
    page = text(show(world, session="root/child"))
    assert "Session tree" in page
    assert "leaf" in page
    assert "started by gone" in text(show(world, session="other"))
    assert "Session tree" not in text(show(world, session="s-1"))


def test_a_session_of_many_loops_lists_the_newest_and_leads_to_all(world, long_run):
    for number in range(12):
        first = 12_001 + 100 * number
        make_incident(
            world.project, session=long_run, session_name="long", kind="repeat", tool=f"tool-{number}", count=4,
            limit=4, first_seq=first, last_seq=first + 10, calls_digest=f"many-{number}",
        )  # fmt: skip
    page = show(world).content.decode()
    listed = re.search(r'id="session-loops".*?</table>', page, re.DOTALL)[0]
    assert re.findall(r"tool-(\d+)", listed) == [str(number) for number in range(11, 1, -1)]
    link = html.unescape(re.search(r'href="([^"]+)">All loops of this session', page)[1])
    counted = world.client.get(link)
    assert "tool-0" not in listed
    assert "tool-0" in text(counted)
    assert "All incidents" not in text(show(world, session="s-1"))


def test_sessions_that_name_each_other_as_parents_have_no_missing_parent(world):
    for session, parent in (("mine", "mine"), ("left", "right"), ("right", "left")):
        call = EventRecord(
            type="call", session=session, tool="fetch", arguments="{}", call_id="1", parent_session=parent
        )
        ingest(principal(world.project), [call])
    for session in ("mine", "left"):
        assert "no stored events" not in text(show(world, session=session))


def test_stopping_a_session_that_only_reports_says_that_its_calls_still_run(world):
    reported(world, ["denied"])
    assert "a stop cannot be enforced" in text(show(world, session="fetching"))
    ask(world.project, "asking", 1)
    assert "No further call runs, and the run ends before its next call." in text(
        show(world, session="asking")
    )


def test_loops_that_follow_each_other_share_a_line_of_the_map():
    for calls in (7, 50, 330, 10_000):
        seqs = range(calls)
        for first in range(1, calls - 2, max(1, calls // 60)):
            middle, last = first + (calls - first) // 2, calls - 1
            loops = [
                session_map.MappedLoop(start, end, "", "")
                for start, end in ((first, middle - 1), (middle, last))
            ]
            lines = session_map._loops(loops, seqs, min(calls, session_map.MAX_COLUMNS))
            heights = {re.match(r"M[\d.]+ (\d+)h", line.path)[1] for line in lines}
            is_short = (
                min(middle - first, calls - middle) * 120 < calls
            )  # its mark and the gap after it need more
            assert len(heights) == 1 or is_short, (calls, first)
