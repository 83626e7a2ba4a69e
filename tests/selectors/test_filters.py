"""Filters as SQL: every field of every list, orders with their cursors, and completions."""

from datetime import UTC
from typing import Any

import pytest
from django.utils import timezone

from detection.filtering.language import FilterError
from detection.filtering.time_ranges import parse_range
from detection.models import Incident, Session, SessionTool
from detection.selectors.filters import complete, given_terms, like_pattern, list_query
from detection.selectors.incidents import list_incidents
from detection.selectors.lists import INCIDENTS, LISTS, SESSIONS
from detection.selectors.pages import BadCursor
from tests.support.projects import make_project

RANGE = parse_range("7d", timezone.now(), UTC)
_VALUES = {
    "text": ["x", '""', "a*b", "*", '"100%_\\\\"', "x,y*"],
    "number": ["3", ">3", ">=3", "<3", "<=3", "1..3", "-1", "999999999999"],
    "time": ["2026-11-01", ">2026-11-01", ">=2026-11-01", "<2026-11-01T08:00", "<=2026-11-01", "2026-11-01..2026-11-07", ">-24h"],
}  # fmt: skip


@pytest.mark.servers
def test_the_database_reads_every_field_with_every_operator(project):
    for spec in LISTS.values():
        for field in spec.fields:
            for value in _VALUES.get(field.type) or [choice.value for choice in field.choices]:
                for text in (f"{field.name}:{value}", f"-{field.name}:{value}"):
                    rows = spec.model._default_manager.filter(
                        list_query(spec, text, range=RANGE).condition(), project_id=project.pk
                    )
                    assert list(rows) == [], text
        words = list_query(spec, 'some -words "100%"').condition()
        assert list(spec.model._default_manager.filter(words, project_id=project.pk)) == []


def test_numbers_and_times_select_what_they_say(project, incident):
    for count in (3, 5, 9):
        incident(count=count)
    old = incident(count=20)
    Incident.objects.filter(pk=old.pk).update(opened_at="2026-11-01T23:30Z", last_seen_at="2026-11-02T01:00Z")

    def counts(text):
        return sorted(row.count for row in list_incidents(project.pk, list_query(INCIDENTS, text)).items)

    assert counts("count:>4") == [5, 9, 20]
    assert counts("count:3..5") == [3, 5]
    assert counts("-count:>=9") == [3, 5]
    assert counts("count:3,20") == [3, 20]
    assert (
        counts("opened:2026-11-01") == counts("opened:<=2026-11-01") == counts("opened:<2026-11-02") == [20]
    )
    assert counts("opened:2026-10-01..2026-11-01") == counts("-opened:>2026-11-01") == [20]
    assert counts("seen:>-24h") == counts("opened:>2026-11-01") == [3, 5, 9]
    assert counts("opened:>=2026-11-01T23:30Z") == [3, 5, 9, 20]


@pytest.mark.parametrize(
    ("text", "detail"),
    [
        ("costs:3", "`costs` is not a field of incidents. Did you mean `cost`? Fields: `active`, `agent`,"),
        ("detector:cycles", "`cycles` is not a value of `detector`. Values: `repeat`, `cycle`,"),
        ("http://x", "`http` is not a field of incidents. Fields: "),
        ("is:broken", "`broken` is not a value of `is`. Values: `open`, `ended`,"),
        ("cost:much", "`much` is not a number. Use `cost:3`, `cost:>3` or `cost:1..3`."),
        ("count:0.5", "`count` is a whole number, not 0.5."),
        ("cost:2..1", "The start of `cost:2..1` must not be after its end."),
        ("-count:5,9..3", "The start of `count:9..3` must not be after its end."),
        (
            "opened:2026-11-02..2026-11-01",
            "The start of `opened:2026-11-02..2026-11-01` must not be after its",
        ),
        ("seen:-1h..-2h", "The start of `seen:-1h..-2h` must not be after its end."),
        ("tool:>a", "`tool` cannot be compared with `>`. Use `tool:value`."),
        ("opened:soon", "`soon` is not a time. Use a date (`2026-11-01`)"),
    ],
)
def test_a_term_that_cannot_be_applied_is_explained(text, detail):
    with pytest.raises(FilterError) as caught:
        list_query(INCIDENTS, text)
    assert caught.value.detail.startswith(detail)


def test_every_order_walks_over_all_rows_once(project, incident):
    made = {
        incident(count=n % 3, cost_usd=n % 4, tool=f"tool {n % 2}", calls_blocked=n).public_id
        for n in range(11)
    }
    for key in INCIDENTS.sorts:
        for sort in (key.name, f"-{key.name}"):
            query, cursor = list_query(INCIDENTS, sort=sort), ""
            seen: list[Any] = []
            while cursor is not None:
                page = list_incidents(project.pk, query, cursor, 4)
                seen += page.items
                cursor = page.next_cursor
            assert {row.public_id for row in seen} == made
            assert len(seen) == len(made)
            values = [getattr(row, key.column) for row in seen]
            assert values == sorted(values, reverse=sort.startswith("-")), sort
    first = list_incidents(project.pk, list_query(INCIDENTS, sort="cost"), "", 4)
    for sort in ("-cost", "count", ""):
        with pytest.raises(BadCursor):
            list_incidents(project.pk, list_query(INCIDENTS, sort=sort), first.next_cursor, 4)


def test_completions_are_of_the_project_and_begin_with_the_text_first(project, incident):
    for tool in ("grep", "web_grep", "bash"):
        incident(tool=tool)
    incident(project=make_project(), tool="grep_of_others")
    rows = Incident.objects.filter(project=project)
    assert complete(INCIDENTS, rows, "tool", "GR") == ["grep", "web_grep"]
    assert complete(INCIDENTS, rows, "tool", "") == ["bash", "grep", "web_grep"]
    session = Session.objects.create(project=project, external_id="s", last_tool="bash")
    SessionTool.objects.create(session=session, tool="grep", calls=1)
    assert complete(SESSIONS, Session.objects.filter(project=project), "tool", "") == ["bash", "grep"]
    assert complete(INCIDENTS, rows, "is", "") == complete(INCIDENTS, rows, "loop", "") == []


def test_typed_parameters_are_exact():
    found = given_terms({"tool": "a*b", "agent": "", "demo": False, "session": 'x "y"'})
    assert [str(one) for one in found] == ['tool:"a*b"', "demo:no", 'session:"x \\"y\\""']
    assert like_pattern("100%_**x\\*") == "100\\%\\_%%x\\\\%"


def test_sessions_are_found_by_the_detectors_of_their_incidents(project, session, incident):
    rows = {name: session(name) for name in ("both", "cycle", "none")}
    for name, kind in (("both", "cycle"), ("both", "repeat"), ("cycle", "cycle"), ("cycle", "cycle")):
        incident(session=rows[name], kind=kind)

    def names(text):
        found = list_query(SESSIONS, text).condition()
        return sorted(
            Session.objects.filter(found, project_id=project.pk).values_list("external_id", flat=True)
        )

    assert names("detector:cycle") == ["both", "cycle"]
    assert names("detector:cycle -detector:repeat") == ["cycle"]
    assert names("detector:repeat,cycle") == ["both", "cycle"]
    assert names("-detector:repeat,cycle") == ["none"]
