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
    return world.client.get(f"{world.base}/insights?board=protection&range=24h{query}").content.decode()


def figure(page, words):
    """The number, the change and the note of a figure."""
    found = page.partition(f">{words}</dt>")[2].partition("</dd>")[0]
    return " ".join(re.sub("<[^>]*>", " ", found).split())


def test_the_figure_the_chart_and_the_table_count_the_same_calls_as_blocked(world, api):
    overrides.save_override(world.project.pk, PROJECT, {"mode": "ask", "attended": True}, SYSTEM, "because")
    loop(world.project, "held", calls=6)
    decisions.decide(world.project.pk, Approval.objects.get(state="open").public_id, "allow_once", OPERATOR)
    page = page_of(world, "&by=tool")
    bars = re.findall(
        r'<a href="[^"]+" aria-label="[^":]+(?::\d\d)?: ([\d,]+)', page.partition('class="plot"')[2]
    )
    total = api.get("/statistics").json()["total"]
    blocked = Session.objects.aggregate(Sum("blocked_count"))["blocked_count__sum"]
    assert (
        total["blocked"] == total["loop_calls_blocked"] == blocked > 0
    )  # without the held call, which was allowed
    assert SessionTool.objects.aggregate(Sum("blocked"))["blocked__sum"] == blocked
    assert int(figure(page, "Calls blocked in loops")) == sum(map(int, bars)) == total["blocked"]
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
    assert figure(page_of(world), "Saved by blocking, about").startswith(f"${saved:.2f} of $")
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
    assert figure(page_of(world), "Recovered after a reaction").startswith("0 %")

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
    assert figure(page_of(world), "Recovered after a reaction") == "0 % 0 of 1"
    assert api.post("/sessions/stopped/resume", {}).status_code == 200
    assert numbers() == [0, 0]


def test_groups_are_sorted_and_exported_as_listed(world, api):
    for number, (tool, calls) in enumerate((("alpha", 9), ("beta", 5), ("gamma", 7))):
        loop(world.project, f"sorted-{number}", tool=tool, calls=calls)
    ask(world.project, "quiet", 1, tool="zeta")
    tools = ("alpha", "beta", "gamma", "zeta")

    def listed(query):
        page = page_of(world, f"&by=tool{query}")
        found = re.findall(
            r"<span>([^<]+)</span></bdi>", page.partition("Group by")[2].partition("</table>")[0]
        )
        return page, [tool for tool in found if tool in tools]

    page, shown = listed("")
    assert shown == ["alpha", "gamma", "beta", "zeta"]  # most blocked calls first
    assert listed("&sort=blocked")[1] == ["zeta", "beta", "gamma", "alpha"]
    assert listed("&sort=name")[1] == [*tools]
    for query in ("&q=-tool:gamma", "&sort=name&q=-tool:gamma"):
        page, shown = listed(query)
        links = re.findall(r'href="([^"]+/export/statistics[^"]+)"', page)
        table, lines = (world.client.get(unescape(url)).getvalue().decode() for url in links)
        rows = [json.loads(line) for line in lines.splitlines()]
        assert [row["key"] for row in rows if row["key"] in tools] == shown == ["alpha", "beta", "zeta"]
        in_table = [*csv.DictReader(io.StringIO(table))]
        assert [(row["key"], int(row["checks"])) for row in in_table] == [
            (row["key"], row["checks"]) for row in rows
        ]
    page = page_of(world, "&by=agent")
    url = re.search(r'href="([^"]+/export/statistics[^"]+format=jsonl)"', page)[1]
    table = world.client.get(unescape(url).replace("=jsonl", "=csv"))
    assert "loopguard-statistics-by-agent-" in table["Content-Disposition"]
    (cells,) = csv.DictReader(io.StringIO(table.getvalue().decode()))
    assert all(len(value.partition(".")[2]) <= 6 for value in cells.values()), cells
    (row,) = map(json.loads, world.client.get(unescape(url)).getvalue().decode().splitlines())
    (rate,) = api.get("/rates", by="agent", demo=True).json()["items"]
    for name in ("sessions", "calls", "loops_per_1000_calls"):
        assert row[name] == rate[name] > 0
    interval = rate["loops_interval"]
    assert [row["loops_per_1000_calls_low"], row["loops_per_1000_calls_high"]] == [*interval.values()]
    found = api.get("/statistics", by="tool", sort="-checks").json()["items"]
    assert [row["key"] for row in found if row["key"] in tools] == ["alpha", "gamma", "beta", "zeta"]
    assert api.get("/statistics", by="tool", sort="nothing").status_code == 422
    refused = world.client.get(f"{world.base}/export/statistics?q=nofield:1")
    assert refused.status_code == 302
