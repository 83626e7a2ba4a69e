"""The trace of a session's page, through the page."""

import html
import re

import pytest

from detection.models import Incident, Session
from detection.services.events.event_records import EventRecord
from detection.services.ingestion.ingest import ingest
from detection.services.sessions.evaluation import evaluate
from tests.console.scenes import ask, loop, make_world, principal, text

pytestmark = pytest.mark.django_db


@pytest.fixture
def world():
    return make_world()


def trace_of(world, session, query=""):
    page = world.client.get(f"{world.base}/sessions/{session}{query}")
    assert page.status_code == 200
    return html.unescape(page.content.decode().partition('<ol class="tree"')[2].partition("</section>")[0])


def words(markup):
    return " ".join(re.sub("<.*?>", " ", markup).split())


def report(world, events):
    ingest(principal(world.project), events)
    for session in Session.objects.filter(project=world.project):
        evaluate(session.key)


def test_identical_calls_are_one_open_line_that_says_what_they_brought(world):
    found = trace_of(world, "s-1")
    assert "search_web ×4" in words(found)
    assert re.search(r"<details\s+open", found)
    assert "blocked" in words(found)
    assert len(re.findall(r'data-seq="\d+"', found)) == 4


def test_calls_of_which_none_is_made_twice_are_one_closed_line_until_one_is_selected(world):
    for number in range(8):
        ask(world.project, "healthy", number, tool="read", arguments=f'{{"page": {number}}}')
    found = trace_of(world, "healthy", "?tab=timeline")
    assert "Calls 1 to 8 , nothing repeated, 8 calls" in words(found)
    ask(world.project, "other", 1, tool="read", arguments='{"page": 1}')
    page = world.client.get(f"{world.base}/sessions/healthy")
    assert "Nothing was found in its 8 calls." in text(page)


def test_two_calls_are_not_folded(world):
    for number in range(2):
        ask(world.project, "few", number, tool="read", arguments=f'{{"page": {number}}}')
    assert "<details" not in trace_of(world, "few")


def test_what_the_user_asked_stands_before_the_calls_and_is_escaped(world):
    call = EventRecord(type="call", session="asked", tool="read", call_id="c", arguments="{}")
    report(world, [EventRecord(type="message", session="asked", content="<b>Where</b> is it?"), call])
    page = world.client.get(f"{world.base}/sessions/asked").content.decode()
    assert "&lt;b&gt;Where&lt;/b&gt; is it?</q>" in page
    assert page.index("is it?</q>") < page.index('data-seq="2"')


def test_the_story_is_the_sentence_of_the_newest_loop_and_its_first_call_is_selected(world):
    loop(world.project, "looped", calls=4)
    page = world.client.get(f"{world.base}/sessions/looped")
    incident = Incident.objects.get(session_name="looped")
    assert "search_web was called 4 times" in text(page)
    assert incident.public_id in page.content.decode()
    chosen = re.search(r'data-seq="(\d+)"\s+aria-current="true"', page.content.decode())
    assert int(chosen[1]) == incident.first_seq


def test_a_project_without_contents_says_so(world):
    world.project.stores_payloads = False
    world.project.save()
    ask(world.project, "bare", 1, tool="read")
    assert "Stored without contents" in words(trace_of(world, "bare"))


def test_what_the_model_says_stands_between_its_calls_and_splits_no_repetition(world):
    events = []
    for number in range(4):
        events += [
            EventRecord(type="message", session="talks", role="assistant", content=f"Trying again, {number}"),
            EventRecord(
                type="call", session="talks", call_id=f"c-{number}", tool="look", arguments='{"a": 1}'
            ),
            EventRecord(type="result", session="talks", call_id=f"c-{number}", content="same"),
        ]
    events.append(EventRecord(type="message", session="talks", role="assistant", content="That is all."))
    report(world, events)
    found = words(trace_of(world, "talks"))
    assert "look ×4" in found
    places = [found.index(f"Trying again, {number}") for number in range(4)]
    assert places == sorted(places)
    assert found.index("look ×4") < places[1] < found.index("That is all.")
    assert "No text of the model" not in found


def test_a_trace_without_texts_of_the_model_says_so(world):
    assert "No text from the model: its integration does not send any" in words(trace_of(world, "s-1"))


def test_what_differs_from_the_result_before_stands_first_and_the_whole_beside_it(world):
    for number, status in enumerate(("open", "open", "closed")):
        report(
            world,
            [
                EventRecord(
                    type="call", session="d", call_id=f"c-{number}", tool="look", arguments='{"a": 1}'
                ),
                EventRecord(
                    type="result",
                    session="d",
                    call_id=f"c-{number}",
                    content=f'{{"id": 7, "status": "{status}"}}',
                ),
            ],
        )
    seqs = re.findall(r'data-seq="(\d+)"', trace_of(world, "d"))
    page = world.client.get(f"{world.base}/sessions/d?call={seqs[2]}").content.decode()
    assert re.search(r'<details[^>]*name="result"[^>]*open[^>]*>\s*<summary>Difference from call 2', page)
    shown = words(page.partition("Difference from call 2")[2].partition("Whole")[0])
    assert shown == "status open closed"
    same = world.client.get(f"{world.base}/sessions/d?call={seqs[1]}").content.decode()
    assert "The same as of call 1." in text(world.client.get(f"{world.base}/sessions/d?call={seqs[1]}"))
    assert "Difference from" not in same
