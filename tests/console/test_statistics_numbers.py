"""Numbers of the statistics that follow from one another: blocked calls, what blocking saved, and who recovered."""

import csv
import io
import json
import re
from html import unescape

import pytest
from django.db.models import Sum

from detection.engine.scopes import PROJECT
from detection.models import Approval, Incident, Session, SessionTool
from detection.services.approvals import decisions
from detection.services.audit import SYSTEM
from detection.services.maintenance.hourly_counts import count_calls
from detection.services.policies import overrides
from detection.services.sessions import evaluation
from tests.api.conftest import Api, speaking
from tests.console.scenes import ask, loop
from tests.support.agents import OPERATOR
from tests.support.projects import make_key

pytestmark = pytest.mark.django_db


@pytest.fixture
def api(world):
    with speaking() as wsgi_client:
        yield Api(wsgi_client, make_key(world.project))


def page_of(world, query=""):
    count_calls()
    return world.client.get(f"{world.base}/statistics?range=24h{query}").content.decode()


def tile(page, words):
    found = re.search(rf"<b>([^<]*)</b><span>\s*{words}", page)
    return " ".join(found[1].split())


def test_the_tile_the_charts_and_the_table_count_the_same_calls_as_blocked(world, api):
    overrides.save_override(world.project.pk, PROJECT, {"mode": "ask", "attended": True}, SYSTEM, "because")
    loop(world.project, "held", calls=6)
    decisions.decide(world.project.pk, Approval.objects.get(state="open").public_id, "allow_once", OPERATOR)
    page = page_of(world, "&by=tool")
    chart = json.loads(re.search(r'<script id="chart-data" type="application/json">(.*?)</script>', page)[1])
    total = api.get("/statistics").json()["total"]
    blocked = Session.objects.aggregate(Sum("blocked_count"))["blocked_count__sum"]
    assert (
        total["blocked"] == total["loop_calls_blocked"] == blocked > 0
    )  # without the held call, which was allowed
    assert SessionTool.objects.aggregate(Sum("blocked"))["blocked__sum"] == blocked
    assert int(tile(page, "calls blocked")) == sum(chart["blocked"]) == total["blocked"]
    assert (
        sum(row["blocked"] for row in api.get("/statistics", by="hour").json()["items"]) == total["blocked"]
    )


def test_what_blocking_saved_follows_from_the_calls_of_the_loop_alone(world, api):
    loop(world.project, "paid", tool="search_paid", calls=6, cost_usd=0.5)
    saved = api.get("/statistics").json()["total"]["saved_cost_usd_estimate"]
    blocked = Incident.objects.get(session_name="paid").calls_blocked
    assert saved == pytest.approx(0.5 * blocked)
    for number in range(12):
        ask(world.project, "healthy", number, arguments=f'{{"n": {number}}}', cost_usd=0.01)
    assert tile(page_of(world), "saved by blocking") == f"≈ ${saved:.2f}"
    loop(world.project, "free", tool="search_free", calls=6)
    ask(world.project, "paid", 60, tool="search_paid", cost_usd=0.001)
    after = api.get("/statistics").json()["total"]
    assert Incident.objects.get(session_name="paid").calls_blocked == blocked + 1
    assert after["saved_cost_usd_estimate"] >= saved
    by_tool = {
        row["key"]: row["saved_cost_usd_estimate"]
        for row in api.get("/statistics", by="tool").json()["items"]
    }
    assert by_tool["search_free"] is None
    assert by_tool["search_paid"] == after["saved_cost_usd_estimate"]


def test_only_an_agent_that_left_the_loop_after_a_reaction_has_recovered(world, api):
    def end(session):
        assert api.post("/events", {"events": [{"type": "end", "session": session}]}).status_code == 202
        evaluation.evaluate(Session.objects.get(external_id=session).key)

    # Two detectors find the cycle; the last call belongs to one of its two tools only.
    for number in range(13):
        ask(world.project, "cycling", number, tool=("read_file", "run_tests")[number % 2])
    end("cycling")
    # Recorded, not guarded: no reaction, and the agent went on to other work.
    calls = [
        {"type": "call", "session": "seen", "call_id": f"c-{number}", "tool": "grep", "arguments": {"n": max(number, 5)}}
        for number in range(14)
    ]  # fmt: skip
    assert api.post("/events", {"events": calls}).status_code == 202
    end("seen")
    assert set(Incident.objects.filter(session_name="cycling").values_list("recovered", flat=True)) == {False}
    assert Incident.objects.filter(session_name="seen", recovered=True).exists()

    told = api.get("/statistics", by="kind").json()
    assert (told["total"]["recovered"], sum(row["changed"] for row in told["after_reactions"])) == (0, 0)
    assert tile(page_of(world), "recovered") == "0%"

    loop(world.project, "leaves", calls=5)
    for number in range(5):
        ask(world.project, "leaves", 50 + number, tool="read_file", arguments=f'{{"n": {number}}}')
    told = api.get("/statistics", by="kind").json()
    assert (told["total"]["recovered"], sum(row["changed"] for row in told["after_reactions"])) == (1, 1)
    assert sum(row["recovered"] for row in told["items"]) == 1


def test_an_agent_that_was_stopped_in_its_loop_has_not_recovered(world, api):
    def numbers():
        total = api.get("/statistics").json()["total"]
        return [total[name] for name in ("recovered", "not_recovered")]

    def listed(name):
        rows = api.get("/incidents", q=f"recovery:{name}").json()["items"]
        return {row["session"] for row in rows}

    overrides.save_override(world.project.pk, PROJECT, {"mode": "block_then_stop"}, SYSTEM, "because")
    loop(world.project, "warned", calls=4)
    assert numbers() == [0, 0]
    loop(world.project, "stopped", calls=9)
    stopped = Incident.objects.get(session_name="stopped")
    assert (Session.objects.get(external_id="stopped").state, stopped.ended_at) == ("stopped", None)
    assert numbers() == [0, 1]
    assert (listed("recovered"), listed("not_recovered")) == (set(), {"stopped"})
    assert "0 of 1 ended or stopped" in " ".join(page_of(world).split())
    assert api.post("/sessions/stopped/resume", {}).status_code == 200
    assert numbers() == [0, 0]


def test_groups_are_sorted_and_exported_as_listed(world, api):
    for number, (tool, calls) in enumerate((("alpha", 9), ("beta", 5), ("gamma", 7))):
        loop(world.project, f"sorted-{number}", tool=tool, calls=calls)
    ask(world.project, "quiet", 1, tool="zeta")
    tools = ("alpha", "beta", "gamma", "zeta")

    def listed(query):
        page = page_of(world, f"&by=tool{query}")
        found = re.findall(r'<span\s+class="mono"\s*>([^<]+)</span>', page.partition("By tool")[2])
        return page, [tool for tool in found if tool in tools]

    page, shown = listed("&sort=-checks")
    assert shown == ["alpha", "gamma", "beta", "zeta"]
    assert listed("&sort=calls")[1] == ["zeta", "beta", "gamma", "alpha"]
    assert listed("&sort=name")[1] == [*tools]
    # What has no number comes last in both directions.
    assert listed("&sort=-recovery")[1][-1] == listed("&sort=recovery")[1][-1] == "zeta"
    page, shown = listed("&sort=-checks&q=-tool:gamma")
    links = re.findall(r'href="([^"]+/export/statistics[^"]+)"', page)
    table, lines, by_hour, _ = (world.client.get(unescape(url)).getvalue().decode() for url in links)
    rows = [json.loads(line) for line in lines.splitlines()]
    assert [row["key"] for row in rows if row["key"] in tools] == shown == ["alpha", "beta", "zeta"]
    in_table = [*csv.DictReader(io.StringIO(table))]
    assert [(row["key"], int(row["checks"])) for row in in_table] == [(r["key"], r["checks"]) for r in rows]
    hours = [*csv.DictReader(io.StringIO(by_hour))]
    assert sum(int(row["checks"]) for row in hours) == sum(row["checks"] for row in rows)
    assert all(row["key"].endswith(":00:00Z") for row in hours)
    found = api.get("/statistics", by="tool", sort="-checks").json()["items"]
    assert [row["key"] for row in found if row["key"] in tools] == ["alpha", "gamma", "beta", "zeta"]
    assert api.get("/statistics", by="tool", sort="nothing").status_code == 422
    refused = world.client.get(f"{world.base}/export/statistics?q=nofield:1")
    assert refused.status_code == 302
