"""Lists: filter, range and order are in the address alone; mistakes are explained beside what was typed."""

import csv
import io
import json
import re
from html import unescape
from urllib.parse import urlencode

import pytest
from django.test import Client
from django.utils import timezone

from detection.engine.detectors import detector_for
from detection.engine.scopes import PROJECT
from detection.models import (
    AlertDestination,
    Approval,
    AuditEntry,
    Incident,
    Loop,
    Notification,
    Role,
    SavedView,
    Session,
)
from detection.selectors import pages
from detection.services import audit
from detection.services.approvals import decisions
from detection.services.audit import SYSTEM, Actor
from detection.services.policies import overrides
from detection.web.exports import EXPORTED_LISTS
from tests.console.scenes import ask, loop, make_world, text
from tests.support.alerts import make_incident
from tests.support.projects import make_member, make_project
from tests.support.shared_rows import shared_rows


@pytest.fixture(scope="module")
def shared_world(django_db_setup, django_db_blocker):
    with shared_rows(django_db_blocker):
        world = make_world()
        loop(world.project, "second", tool="bash", agent="coder", calls=9)
        yield world


def shown(world, page="loops/history", **query):
    """The page, without entities."""
    found = world.client.get(f"{world.base}/{page}?{urlencode(query)}")
    assert found.status_code == 200
    return unescape(found.content.decode())


def rows(page):
    """Names of the sessions in the table, in order."""
    return re.findall(
        r'<a class="mono" href="[^"]*/sessions/([^"]+)"', page.partition("<tbody")[2].partition("</tbody>")[0]
    )


def test_the_address_selects_and_the_chips_undo_it(world):
    page = shown(world, q="agent:coder -tool:search_web is:open")
    assert rows(page) == ["second"]
    removed = re.findall(r'class="filter-chip mono"\s+href="([^"]+)"\s+aria-label="Remove ([^"]+)"', page)
    assert [words for _, words in removed] == ["agent:coder", "-tool:search_web", "is:open"]
    assert removed[0][0] == f"{world.base}/loops/history?q=-tool%3Asearch_web+is%3Aopen"
    assert rows(unescape(world.client.get(removed[0][0]).content.decode())) == ["second"]
    assert rows(shown(world, q="grep")) == []
    assert rows(shown(world)) == ["second", "s-1"]  # every run
    assert 'aria-label="Remove is:open"' in shown(world, "loops")  # the default filter


def test_a_tab_replaces_its_own_term_only(world):
    page = shown(world, "loops", q="agent:coder is:open", sort="cost")
    tabs = dict(
        re.findall(
            r'<a\s+href="([^"]+)"\s+id="[\w-]+"\s+(aria-current="true")?\s*>',
            page.partition('aria-label="Status"')[2].partition("</nav>")[0],
        )
    )
    assert [url.partition("?")[2] for url, current in tabs.items() if current] == [
        "q=agent%3Acoder+is%3Aopen&sort=cost"
    ]
    assert f"{world.base}/loops?q=agent%3Acoder+is%3Adone&sort=cost" in tabs
    assert f"{world.base}/loops?q=agent%3Acoder&sort=cost" in tabs


def test_a_mistake_keeps_what_was_typed_and_lists_nothing(world):
    page = shown(world, q="costs:3 <b>")
    assert "“costs” is not a field of incidents. Did you mean “cost”?" in page
    assert 'value="costs:3 <b>"' in page
    assert rows(page) == []
    assert "Last hour" in shown(world, range="soon")
    assert "“soon” is not a time range." in shown(world, range="soon")
    for screen in ("loops/history", "sessions", "loops", "insights", "audit"):
        page = world.client.get(f"{world.base}/{screen}?q=costs:3").content.decode()
        assert "The filter could not be read" in page, screen
        assert 'class="figures"' not in page
        assert 'class="n"' not in page


def test_the_rows_of_a_partly_wrong_filter_are_those_of_the_rest_and_no_action_applies_to_all(world):
    page = shown(world, q="agent:coder costs:3 -is:resolved cost:cheap")
    assert rows(page) == ["second"]
    assert "“costs” is not a field of incidents." in page
    assert "The rows match the rest of the filter." in page
    assert 'value="agent:coder costs:3 -is:resolved cost:cheap"' in page
    assert "Remove agent:coder" in page
    assert "that match</label>" not in page
    form = {"matching": "yes", "filter": "q=agent%3Acoder+costs%3A3", "up_to": "99999", "action": "done"}
    said = world.client.post(f"{world.base}/loops/act", form, follow=True).content.decode()
    assert "The filter is not valid. Correct it before acting on all matching rows." in said
    assert not Incident.objects.filter(status="done").exists()
    assert rows(shown(world, q='agent:coder "open')) == []
    # A value of a row is added to what was typed.
    moved = world.client.get(f"{world.base}/loops/history?q=agent:coder+costs:3&term=tool:bash")["Location"]
    assert moved == f"{world.base}/loops/history?q=agent%3Acoder+costs%3A3+tool%3Abash"
    insights = world.client.get(f"{world.base}/insights?q=agent:coder+costs:3").content.decode()
    assert "The filter could not be read" in insights
    assert "rest of the filter" not in insights


def test_a_typed_range_is_read_in_the_readers_zone_and_kept_as_instants(world):
    world.client.cookies["loopguard-zone"] = "Europe%2FBerlin"
    url = f"{world.base}/loops/history?q=is%3Aopen+bash&from=2026-01-01T00:00&to=2099-06-30T12:00"
    moved = world.client.get(url)["Location"]
    assert (
        moved
        == f"{world.base}/loops/history?q=is%3Aopen+bash&range=2025-12-31T23%3A00Z%2F2099-06-30T10%3A00Z"
    )
    page = unescape(world.client.get(moved).content.decode())
    assert rows(page) == ["second"]
    assert "1 Jan 2026 – 30 Jun 2099, 12:00" in page
    assert 'title="1 Jan 2026, 00:00 – 30 Jun 2099, 12:00, Europe/Berlin"' in page
    last_week = re.search(r'href="([^"]+)"\s*>Last week, \d+[ A-Za-z]*–[ ]?\d+ [A-Z][a-z]+<', page)[1]
    week = r"\d+ \w{3} \d{4}, 00:00"
    listed = unescape(world.client.get(last_week).content.decode())
    assert re.search(rf'title="{week} – {week}, Europe/Berlin">', listed)
    assert re.search(r'title="\d+ \w{3} \d{4}, \d\d:\d\d – now, Europe/Berlin">', shown(world, range="7d"))
    assert "Times in Europe/Berlin" in page
    assert 'value="2026-01-01T00:00"' in page
    assert rows(shown(world, range="2026-01-01/2026-01-02")) == []
    kept = shown(world, **{"from": "2026-01-02T00:00", "to": "2026-01-01T00:00"})
    assert (
        kept.count("The start of a time range must be before its end.") == 2
    )  # in the picker and in the list
    assert "2026-01-02T00:00 – 2026-01-01T00:00" in kept
    assert 'value="2026-01-02T00:00"' in kept
    world.client.cookies["loopguard-zone"] = "../../etc/passwd"
    assert "Times in UTC" in shown(world)


def test_each_value_in_a_row_adds_its_term_to_the_filter(world):
    overrides.save_override(world.project.pk, PROJECT, {"mode": "ask"}, SYSTEM, "for the test")
    loop(world.project, "held", tool="rm -rf, twice", agent='the "coder"', calls=6)
    destination = AlertDestination.objects.create(project=world.project, name="on call, day", kind="webhook")
    Notification.objects.create(
        project=world.project, destination=destination, route_name="all: loud", due_at=timezone.now()
    )
    for name in ("sessions", "loops", "loops/history", "held", "audit", "alerts"):
        check_terms(world, name)


def check_terms(world, name, kept="-zebra"):
    typed = {"tab": "sent"} if name == "alerts" else {}
    page = shown(world, name, q=kept, range="7d", **typed)
    form = page.partition('id="filter-form"')[2].partition("</form>")[0]
    sent = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', form)) | {"q": kept}
    in_rows = re.compile(r'form="filter-form"\s+name="term"\s+value="(.*?)"\s+title="Show only')
    terms = {*in_rows.findall(page)}
    assert len(terms) >= 3, name
    for term in terms:
        moved = world.client.get(f"{world.base}/{name}", sent | {"term": term})["Location"]
        listed = unescape(world.client.get(moved).content.decode())
        for one in (kept, term):
            assert f'aria-label="Remove {one}"' in listed, name
        assert term in in_rows.findall(listed), name
        assert "range=7d" in moved, name
    ignored = world.client.get(f"{world.base}/{name}", sent | {"term": 'agent:"'}, follow=True)
    assert f'value="{kept}"' in unescape(ignored.content.decode())


def test_a_loop_is_one_row_that_names_its_other_detectors(world):
    settings = {"mode": "warn", "outcome_max_results": 3}
    overrides.save_override(world.project.pk, PROJECT, settings, SYSTEM, "for the test")
    loop(world.project, "run", calls=10, content="same")
    row = Incident.objects.get(session_name="run")
    others = ", ".join(detector_for(kind).label for kind in row.kinds[1:])
    assert others
    assert f"also found by {others}" in re.sub(r"\s+", " ", shown(world))
    for kind in row.kinds:
        assert "run" in rows(shown(world, q=f"found_by:{kind}"))
    assert rows(shown(world, q=f"detector:{row.kinds[1]} session:run")) == []
    file = world.client.get(f"{world.base}/export/incidents?q=session:run&format=jsonl").getvalue()
    assert [json.loads(line)["found_by"] for line in file.splitlines()] == [row.kinds]


def test_loops_without_open_ones_say_so_and_lead_to_the_others(world):
    Incident.objects.update(status="ended", ended_at=timezone.now())
    page = re.sub(r"\s+", " ", shown(world, "loops"))
    assert "No open loops" in page
    assert "2 in other tabs." in page
    assert rows(shown(world)) == ["second", "s-1"]
    assert "No matching incidents" in re.sub(r"\s+", " ", shown(world, q="is:open agent:nobody"))


def test_headers_sort_and_a_second_click_reverses(world):
    assert rows(shown(world, sort="count")) == ["s-1", "second"]
    page = shown(world, sort="-count")
    assert rows(page) == ["second", "s-1"]
    assert re.search(r'aria-sort="descending"\s*>\s*<a href="[^"]+sort=count">Count', page)
    assert re.search(r'>\s*<a href="[^"]+sort=session">Session', page)
    assert rows(shown(world, sort="nonsense")) == ["second", "s-1"]


def test_a_reaction_is_a_value_with_any_outcome(world):
    overrides.save_override(world.project.pk, PROJECT, {"mode": "ask"}, SYSTEM, "for the test")
    loop(world.project, "held", calls=5)  # nobody has decided, so the reaction has no outcome yet
    page = shown(world, q="reaction:ask")
    assert rows(page) == ["held"]
    assert rows(shown(world, q="reaction:ask_went_on,ask_changed,ask_ended,ask_asked")) == []
    assert "held" not in rows(shown(world, q="-reaction:ask"))
    world.incident.evidence = {"reactions": {"delay": {"went_on": 1}}}
    world.incident.save()
    assert rows(shown(world, q="reaction:delay")) == rows(shown(world, q="reaction:delay_went_on")) == ["s-1"]
    fields = world.client.get(f"{world.base}/filter-values/incidents").json()["fields"]
    values = next(field["values"] for field in fields if field["name"] == "reaction")
    assert next(value for value, _ in values if value.startswith("ask")) == "ask"


def test_completions_stay_in_the_project(world):
    loop(make_project(), "theirs", tool="their_tool")
    values = f"{world.base}/filter-values/incidents"
    assert world.client.get(f"{values}?field=tool&text=S").json() == {"values": ["search_web", "bash"]}
    assert world.client.get(f"{values}?field=tool&text=their").json() == {"values": []}
    assert {field["name"] for field in world.client.get(values).json()["fields"]} >= {"agent", "cost", "is"}
    assert world.client.get(f"{values}?field=secret").status_code == 404
    assert world.client.get(f"{world.base}/filter-values/users").status_code == 404


def test_an_export_has_exactly_the_listed_rows_of_all_pages_in_their_order(world):
    loop(make_project(), "theirs", tool="bash")
    for number in range(60):
        loop(world.project, f"run-{number:02}", tool="=bash()", agent="coder", calls=4)
    page = shown(world, q="agent:coder -session:second", sort="session", range="24h")
    links = re.findall(r'href="([^"]+/export/incidents[^"]+)"', page)
    assert len(rows(page)) == 50
    table, lines = (b"".join(world.client.get(url).streaming_content).decode() for url in links)
    listed = [row["session"] for row in csv.DictReader(io.StringIO(table))]
    assert listed == [json.loads(line)["session"] for line in lines.splitlines()]
    assert listed == [f"run-{number:02}" for number in range(60)]
    assert "'=bash()" in table
    for name in EXPORTED_LISTS:
        files = {}
        for kind in ("csv", "jsonl"):
            answer = world.client.get(f"{world.base}/export/{name}?q=&format={kind}")
            files[kind] = b"".join(answer.streaming_content).decode()
            assert "theirs" not in files[kind], name
        columns = next(csv.reader(io.StringIO(files["csv"])))
        for line in files["jsonl"].splitlines()[:1]:
            assert columns == [one for one in json.loads(line) if one != "links"], name
        nothing = world.client.get(f"{world.base}/export/{name}?q=&range=1971-01-01/1971-01-02&format=csv")
        assert [*csv.reader(io.StringIO(nothing.getvalue().decode()))] == [columns], name
    refused = world.client.get(f"{world.base}/export/incidents?q=nofield:1")
    assert refused.status_code == 302
    assert "“nofield” is not a field" in unescape(
        world.client.get(f"{world.base}/loops/history").content.decode()
    )
    assert world.client.get(f"{world.base}/export/users").status_code == 404


def test_a_cost_that_nobody_reported_is_empty_in_files_as_it_is_in_lists(world):
    paid = loop(world.project, "paid", tool="grep", agent="payer", cost_usd=0.5)
    make_incident(world.project, session_name="shared", calls_in_loop=5, counted_calls=0)
    Session.objects.filter(external_id="paid").update(cost_usd=2, token_count=900)
    for name, column, known in (
        ("incidents", "session", {"paid": float(paid.cost_usd), "shared": 0.0}),
        ("loops", "tool", {"grep": float(paid.cost_usd)}),
        ("sessions", "session", {"paid": 2.0}),
    ):
        lines, table = (
            world.client.get(f"{world.base}/export/{name}?q=&format={kind}").getvalue().decode()
            for kind in ("jsonl", "csv")
        )
        costs = {one[column]: one["cost_usd"] for one in map(json.loads, lines.splitlines())}
        assert {of: cost for of, cost in costs.items() if cost is not None} == known, name
        assert None in costs.values(), name
        cells = {row[column]: row["cost_usd"] for row in csv.DictReader(io.StringIO(table))}
        assert cells == {of: "" if cost is None else str(cost) for of, cost in costs.items()}, name
    assert [one["tokens"] for one in map(json.loads, lines.splitlines())].count(None) == len(costs) - 1


@pytest.mark.parametrize(
    ("page", "column", "field"),
    [
        ("held", "agent", "agent"),
        ("held", "decision", "decision"),
        ("audit", "actor", "actor"),
        ("audit", "action", "action"),
        ("audit", "subject", "subject"),
        ("loops", "tool", "tool"),
        ("loops", "owner", "assignee"),
    ],
)
def test_the_header_of_a_column_sorts_all_pages_by_it(world, monkeypatch, page, column, field):
    monkeypatch.setattr(pages, "CHUNK_ROWS", 2)
    overrides.save_override(world.project.pk, PROJECT, {"mode": "ask"}, SYSTEM, "for the test")
    for number, agent in enumerate(("coder", "writer", "", "coder", "tester")):
        held = loop(world.project, f"held-{number}", tool=f"tool-{number % 3}", agent=agent, calls=6)
        audit.record(Actor(agent or "ben"), f"test.{number % 2}", str(held), project_id=world.project.pk)
    decisions.decide(world.project.pk, Approval.objects.latest("pk").public_id, "skip", Actor("ben"))
    Loop.objects.filter(tool="tool-1").update(assignee=world.user)
    records = {"held": "approvals"}.get(page, page)
    for wanted in (column, f"-{column}"):
        shown_page = shown(world, page, q="", sort=wanted)
        opposite = f"-{column}" if wanted == column else column
        assert re.search(rf'aria-sort="(a|de)scending"\s*>\s*<a href="[^"]*sort={opposite}"', shown_page)
        file = world.client.get(f"{world.base}/export/{records}?q=&sort={wanted}&format=jsonl").getvalue()
        values = [json.loads(line)[field] or "" for line in file.splitlines()]
        assert values == sorted(values, reverse=wanted != column)
        assert len({*values}) > 1
        assert len(values) == len({json.loads(line)["id"] for line in file.splitlines()})


def test_views_are_shared_in_the_project_renamed_replaced_and_deleted(world):
    act, back = f"{world.base}/views/act", f"{world.base}/loops/history?q=agent%3Acoder"
    stored = unescape(
        re.search(r'name="query" value="([^"]*)"', shown(world, q="agent:coder", sort="-cost"))[1]
    )
    form = {"action": "save", "list": "incidents", "name": " Costly  coder ", "query": stored, "next": back}
    assert world.client.post(act, form)["Location"] == back
    member = Client()
    member.force_login(make_member(world.project, Role.VIEWER))
    seen = unescape(member.get(f"{world.base}/loops/history?q=agent:coder&sort=-cost").content.decode())
    link = re.search(r'<a\s+href="([^"]+)"\s+aria-current="true"\s*>Costly coder</a>', seen)[1]
    assert rows(unescape(member.get(link).content.decode())) == ["second"]
    assert "Save this view" not in seen
    assert "Costly coder" not in shown(world, "sessions")
    world.client.post(act, form | {"query": "q=agent%3Aresearcher"})
    view = SavedView.objects.get()
    assert view.query == "q=agent%3Aresearcher"
    for wrong in ({"query": "q=nofield%3A1"}, {"name": " "}, {"list": "users"}):
        world.client.post(act, form | wrong)
    assert SavedView.objects.count() == 1
    stranger = make_world()
    one = {"id": view.public_id, "name": "theirs", "next": "//evil.example"}
    for action in ("rename", "delete"):
        stranger.client.post(f"{stranger.base}/views/act", one | {"action": action})
    assert SavedView.objects.get().name == "Costly coder"
    world.client.post(act, one | {"action": "rename", "name": "Research"})
    assert SavedView.objects.get().name == "Research"
    assert world.client.post(act, one | {"action": "delete"})["Location"] == world.base + "/"
    assert not SavedView.objects.exists()
    actions = AuditEntry.objects.filter(subject__startswith="incidents: ").order_by("pk")
    assert [entry.action for entry in actions] == ["view.save", "view.save", "view.rename", "view.delete"]


def test_approvals_are_filtered_below_those_that_wait(world):
    overrides.save_override(world.project.pk, PROJECT, {"mode": "ask"}, SYSTEM, "for the test")
    loop(world.project, "held-1", tool="deploy", agent="ops", calls=6)
    loop(world.project, "held-2", tool="restart", agent="ops", calls=6)
    for query, listed in (({}, 2), ({"q": "tool:deploy is:open"}, 1), ({"q": "is:decided"}, 0)):
        page = shown(world, "held", **query)
        assert page.count('class="panel pad stack approval"') == 2  # never hidden
        assert page.partition('id="approval-rows"')[2].count("<tr>") - 1 == listed, query
    assert "No matching approvals" in shown(world, "held", q="is:decided")


def test_the_audit_begins_with_what_people_did_and_shows_the_rest_on_request(world):
    audit.record(SYSTEM, "project.create", "project", project_id=world.project.pk)
    audit.record(Actor("ana"), "policy.save", "agent:coder", project_id=world.project.pk)

    def page(url, *, has_system):
        shown = world.client.get(url).content.decode()
        assert "agent:coder" in shown
        assert ("project.create" in shown) is has_system
        return shown

    def link(shown, words):
        return unescape(re.search(rf'href="([^"]+)">{words}', shown)[1])

    people = page(f"{world.base}/audit", has_system=False)
    everything = page(link(people, "All authors"), has_system=True)
    page(link(everything, r"Only people and\s+keys"), has_system=False)
    only_policies = page(f"{world.base}/audit?q=action:policy.*", has_system=False)
    assert "action:policy.*" in page(link(only_policies, r"Only people and\s+keys"), has_system=False)


@pytest.mark.parametrize("name", ["sessions", "loops", "loops/history", "held", "audit", "alerts?tab=sent"])
@pytest.mark.parametrize("ends", ["range=7x", "from=2026-01-02T00:00&to=2026-01-01T00:00"])
def test_a_range_that_cannot_be_read_is_not_taken_for_an_empty_list(world, name, ends):
    shown = world.client.get(f"{world.base}/{name}{'&' if '?' in name else '?'}q=&{ends}").content.decode()
    assert "The time range could not be read" in shown
    assert not re.search(r"No (loops so far|xx so far|sessions|approvals yet|changes|notifications)<", shown)


def test_incidents_of_a_shell_are_told_apart_by_their_programs(world):
    for number in range(8):
        ask(
            world.project,
            "deploying",
            number,
            tool="Bash",
            arguments='{"command": "kubectl rollout status api"}',
        )
    listed = text(world.client.get(f"{world.base}/loops/history?q=session:deploying"))
    assert "Repeated call: Bash (kubectl rollout)" in listed
    incident = Incident.objects.get(session_name="deploying", kind="repeat")
    assert "Repeated call: Bash (kubectl rollout)" in text(
        world.client.get(f"{world.base}/incidents/{incident.public_id}", follow=True)
    )
