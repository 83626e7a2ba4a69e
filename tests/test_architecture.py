"""The walks of docs/architecture.md: every function named there exists, and none has grown beyond its bound."""

import re
from importlib import import_module
from pathlib import Path

import pytest
from django.test import Client

from detection.models import Session
from detection.services.events.event_records import EventRecord
from detection.services.sessions.evaluation import evaluate
from tests.api.conftest import Api, speaking
from tests.support.carrying import carrying
from tests.support.projects import make_key, make_member, make_project

PAGE = (Path(__file__).parents[1] / "docs" / "architecture.md").read_text(encoding="utf-8")
WALKS = {
    "Event to live row": 20,
    "Guard call": 14,
    "A request through the gateway": 16,
    "Admin override to effect": 10,
}
MAX_FILES, MAX_SHAPES = 12, 6


def section(title):
    return PAGE.split(f"### {title}\n")[1].split("\n##")[0]


def hops(title):
    return re.findall(r"^\| `([\w.]+)` \|", section(title), re.MULTILINE)


def found(name):
    """The object of a dotted name, and the module that it is in."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            thing = import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            thing = getattr(thing, part)
        return thing, ".".join(parts[:length])
    raise AssertionError(f"no module in {name}")


@pytest.mark.parametrize("name", sorted(set(re.findall(r"`((?:detection|loopguard_site)\.[\w.]+)`", PAGE))))
def test_what_the_page_names_exists(name):
    assert found(name)


@pytest.mark.parametrize("title", WALKS)
def test_a_walk_stays_within_its_bound(title):
    assert 5 < len(hops(title)) <= WALKS[title]


def test_an_event_passes_few_files_in_few_shapes():
    steps = hops("Event to live row")
    files = {found(name)[1] for name in steps}
    assert len(files) <= MAX_FILES
    assert f"{len(steps)} hops in {len(files)} files." in section("Event to live row")
    shapes = re.search(r"Its shapes: (.*?)\.\n", section("Event to live row"), re.DOTALL)
    assert shapes is not None
    assert len(shapes[1].split(",")) <= MAX_SHAPES


def assert_within(title, carriers):
    """Check what carried an event, a session or a verdict against the figures of the page."""
    figures = re.search(r"(\d+) functions in (\d+) files carry", section(title))
    assert figures is not None
    found = len(carriers.functions), len(carriers.files)
    names = "\n".join(f"{file} {name}" for file, name in carriers.functions)
    assert found[0] <= int(figures[1]), f"{found}\n{names}"
    assert found[1] <= int(figures[2]), f"{found}\n{names}"


@pytest.fixture
def project(transactional_db):
    return make_project("walks")


@pytest.fixture
def api(project):
    with speaking() as client:
        yield Api(client, make_key(project))


def test_no_more_functions_carry_an_event_to_the_live_row(project, api):
    browser = Client()
    browser.force_login(make_member(project))

    def walk(number):
        call = {"call_id": f"c-{number}", "tool": "search", "arguments": {"page": number}}
        assert api.post("/events", {"type": "call", "session": "s-1", **call}).json()["accepted"] == 1
        session = Session.objects.get()
        assert evaluate(session.key) == 1
        return browser.get("/p/walks/session/rows").json()["rows"]

    walk(1)
    with carrying() as carriers:
        (row,) = walk(2)
    assert "s-1" in row["html"]
    assert_within("Event to live row", carriers)
    for name in ("api/event_parsing.py event_record", "console/sessions/session_rows.py session_row"):
        assert tuple(f"detection/{name}".split()) in carriers.functions


def test_no_more_functions_carry_a_guard_call(api):
    api.call(arguments={"page": 1})
    api.call(arguments={"page": 2})
    with carrying() as carriers:
        answer = api.call(arguments={"page": 3}).json()
    assert answer["decision"] == "allow"
    assert_within("Guard call", carriers)
    assert ("detection/services/ingestion/guard.py", "_judge") in carriers.functions


class Holder:
    def __init__(self, event):
        self.event = event

    def reads_through_self(self):
        return self.event.tool

    def has_one_and_leaves_it(self):
        return 1

    def hands_on(self):
        return is_given(self.event)


def is_given(event):
    return 1 if event else 0


def is_given_a_list(events):
    return len(events)


def is_given_a_document(document):
    return len(document)


def is_given_names(tool, arguments):
    return tool + arguments


def returns_one():
    return EventRecord(type="call")


TABLE = {"call": lambda event: event.tool}


def loops(events):
    return [is_given_names(*names) for names in [(event.tool, "") for event in events]]


def uses_one_of_around(event):
    def inner():
        return event.tool

    return inner()


def test_what_carries_an_event_is_found_however_it_does():
    event = EventRecord(type="call", tool="search")
    with carrying(folders=(__file__,)) as carriers:
        holder = Holder(event)
        holder.reads_through_self()
        holder.has_one_and_leaves_it()
        holder.hands_on()
        is_given_a_list([event])
        is_given_a_document({"type": "call", "session": "s-1"})
        is_given_names("search", "{}")
        returns_one()
        TABLE["call"](event)
        loops([event])
        uses_one_of_around(event)
    assert sorted(name for _, name in carriers.functions) == [
        "<lambda>", "Holder.__init__", "Holder.hands_on", "Holder.reads_through_self", "is_given",
        "is_given_a_document", "is_given_a_list", "loops", "returns_one",
        "test_what_carries_an_event_is_found_however_it_does", "uses_one_of_around",
        "uses_one_of_around.<locals>.inner",
    ]  # fmt: skip
