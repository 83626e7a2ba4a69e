"""Whatever agents, operators and the clock do, every tile, tab, badge and count of the API says the same.

Actions are drawn at random and done through the API and the services that the console uses; after each few of them, all places
that show a number are read through real requests, on every page from one snapshot of the rows.
"""

import contextlib
import json
import random
import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.utils import timezone

from detection.engine.scopes import PROJECT
from detection.models import Approval, Loop, Session
from detection.models.session_state import SessionState
from detection.services.approvals import decisions
from detection.services.audit import SYSTEM, Actor
from detection.services.errors import ServiceError
from detection.services.incidents import loop_triage
from detection.services.maintenance.hourly_counts import count_calls
from detection.services.policies import overrides
from detection.services.retention import retention
from tests.api.conftest import Api, speaking
from tests.console.scenes import ask, make_world, tabs_for, tabs_of
from tests.support.projects import make_key

pytestmark = pytest.mark.django_db
STEPS, STEPS_PER_CHECK = 40, 8
SESSIONS = [f"run-{number}" for number in range(6)]
BY = Actor("ana")


class Chance:
    """Draws actions; one that the rules of the product reject changes nothing."""

    def __init__(self, project, api, seed):
        self.project, self.api, self.random, self.calls = project, api, random.Random(seed), 0

    def act(self):
        often = (self.repeat, self.alternate, self.loop) * 2
        once = (
            self.work,
            self.mode,
            self.decide,
            self.stop,
            self.resume,
            self.end,
            self.wait,
            self.wake,
        )
        with contextlib.suppress(ServiceError):
            self.random.choice(often + once)()

    def repeat(self):
        session = self.random.choice(SESSIONS)
        for _ in range(self.random.randrange(1, 6)):
            self.calls += 1
            agent, cost = self.random.choice(("triage", "coder")), self.random.choice((0, 0.25, 1.5))
            ask(self.project, session, self.calls, agent=agent, cost_usd=cost)

    def alternate(self):
        """Go round in a cycle, whose calls other detectors find, too."""
        session = self.random.choice(SESSIONS)
        for _ in range(self.random.randrange(4, 9)):
            for tool in ("read_file", "run_tests"):
                self.calls += 1
                ask(self.project, session, self.calls, tool=tool, cost_usd=0.5)

    def work(self):
        self.calls += 1
        ask(self.project, self.random.choice(SESSIONS), self.calls, arguments=f'{{"n":{self.calls}}}')

    def mode(self):
        values = {"mode": self.random.choice(("ask", "block_then_stop", "observe"))}
        overrides.save_override(self.project.pk, PROJECT, values, SYSTEM, "because")

    def decide(self):
        for approval in Approval.objects.filter(state="open").order_by("?")[:1]:
            decisions.decide(
                self.project.pk, approval.public_id, self.random.choice(("skip", "allow_once", "disable")), BY
            )

    def loop(self):
        for loop in Loop.objects.order_by("?")[:1]:
            name = self.random.choice([*loop_triage.ACTIONS])
            more: dict[str, Any] = {
                "later": {"until_worse": True},
            }
            loop_triage.ACTIONS[name](self.project.pk, loop.public_id, BY, **more.get(name, {}))

    def stop(self):
        self.api.post(f"/sessions/{self.random.choice(SESSIONS)}/stop", {"reason": "enough"})

    def resume(self):
        self.api.post(f"/sessions/{self.random.choice(SESSIONS)}/resume", {})

    def end(self):
        self.calls += 1
        event = {"type": "end", "session": self.random.choice(SESSIONS)}
        self.api.post("/events", {"events": [event]})

    def wait(self):
        """Let a session be silent until it is idle, or abandoned."""
        age = timedelta(minutes=self.random.choice((4, 6, 180)))
        Session.objects.filter(external_id=self.random.choice(SESSIONS)).update(
            last_event_at=timezone.now() - age
        )
        retention.end_abandoned()

    def wake(self):
        """Let the time of held calls run out."""
        for approval in Approval.objects.filter(state="open").order_by("pk")[:1]:
            Approval.objects.filter(pk=approval.pk).update(deadline=timezone.now())
        decisions.close_overdue()


def listed(api, path, **filters):
    return api.get(path, limit=500, **filters).json()["items"]


def badges_of(html):
    found = re.findall(r'data-badge="(\w+)"[^>]*>\s*<span data-badge-text>(\d+)</span>', html)
    numbers = {name: {int(count) for other, count in found if other == name} for name, _ in found}
    assert all(len(values) == 1 for values in numbers.values()), numbers  # sidebar and tab bar
    return {name: values.pop() for name, values in numbers.items()}


def check(world, api):
    """Compare every place that shows one of the numbers."""
    sessions = {state: len(listed(api, "/sessions", state=state)) for state in SessionState.values}
    statuses = ("open", "ended", "done")
    incidents = {status: len(listed(api, "/incidents", status=status)) for status in statuses}
    waiting = [one for one in listed(api, "/approvals", state="open") if one["decider"] == "person"]
    loop_statuses = ("open", "later", "later_but_firing", "fine", "done")
    loops = {status: len(listed(api, "/loops", status=status)) for status in loop_statuses}
    # What is recorded only asks for nothing, so the navigation does not count it.
    asking = {one["loop_id"] for one in listed(api, "/incidents", status="open", q="recorded:no")}
    badges = {
        "loops": len(asking - {one["id"] for one in listed(api, "/loops", status="later")}),
        "later_loops": loops["later_but_firing"],
        "now": api.get("/session-counts").json()["looping_now"],
        "approvals": len(waiting),
    }

    assert len(listed(api, "/sessions")) == sum(sessions.values())
    counts = api.get("/session-counts").json()
    assert {name: counts[name] for name in sessions} == sessions
    live = world.client.get(f"{world.base}/sessions").content.decode()
    figures = world.client.get(f"{world.base}/session/tabs").content.decode()
    assert tabs_of(live) == tabs_of(figures) == tabs_for(sessions)

    page = world.client.get(f"{world.base}/loops/history").content.decode()
    rows = page.partition("<tbody")[2].partition("</tbody>")[0].count("<tr>")
    assert rows == sum(incidents.values()) == len(listed(api, "/incidents"))
    for status, number in incidents.items():
        of_it = world.client.get(f"{world.base}/loops/history?q=is:{status}").content.decode()
        assert of_it.partition("<tbody")[2].partition("</tbody>")[0].count("<tr>") == number
    check_loops(world, api)

    tabs = tabs_of(world.client.get(f"{world.base}/loops").content.decode())
    rare = {"later_but_firing"}  # shown only while there is something in it
    assert {name: tabs.get(name, 0 if name in rare else None) for name in loop_statuses} == loops
    assert tabs["all"] == len(listed(api, "/loops")) == sum(loops.values()) - loops["later_but_firing"]

    approvals = world.client.get(f"{world.base}/held").content.decode()
    assert len(set(re.findall(r'id="(apr_\w+)"', approvals))) == len(waiting)
    shown = world.client.get(f"{world.base}/attention").json()
    assert {name: one["count"] for name, one in shown["badges"].items()} == badges
    assert sum(one["count"] for one in shown["held"]) == len(waiting)
    groups = listed(api, "/approvals/groups")
    assert sorted(one["approvals"] for one in groups) == sorted(one["count"] for one in shown["held"])
    for html in (live, page, approvals):
        assert badges_of(html) == {name: badges[name] for name in ("now", "loops")}
        title = re.search(r"<title>\s*(?:\((\d+)\))?", html)
        assert int(title[1] or 0) == badges["approvals"]


def check_loops(world, api):
    """Compare the figures, the bars and the buttons of each loop's page with what the API lists of it."""
    for one in listed(api, "/loops"):
        html = world.client.get(f"{world.base}/loops/{one['id']}").content.decode()
        runs = listed(api, "/incidents", q=f"loop:{one['id']}")
        assert len(runs) == one["incidents"]
        figures = dict(re.findall(r"<dt>([\w, ]+)</dt>\s*<dd>\s*(?:<a[^>]*>)?([^<\s]+)", html))
        assert int(figures["Runs"]) == len(runs)
        assert int(figures["Calls blocked"]) == sum(run["calls_blocked"] for run in runs)
        cost = sum(run["cost_usd"] for run in runs if run["label"] != "false_alarm")
        assert (money_of(figures["Cost"]) if figures["Cost"] != "–" else 0) == cost
        bars = re.findall(r"<title>\s*([\d,]+) (?:looping now|held|stopped|continued)\s*</title>", html)
        assert sum(map(int, bars)) == len(runs)
        state = one["later"] is not None or one["status"] == "later"
        assert ("Done<kbd>d</kbd>" in re.sub(r"\s+", "", html)) == (one["status"] in ("open", "later")), state
        if one["form"] == "looping_now":
            assert f"{one['looping_now']} looping now" in html


def check_recovery(world, api):
    """Compare who recovered, in total, in each group and in the metrics, with the lists of these incidents."""
    listed_now = {
        name: len(listed(api, "/incidents", q=f"recovery:{name}")) for name in ("recovered", "not_recovered")
    }
    for by in ("kind", "tool", "model", "backend", "day"):
        found = api.get("/statistics", by=by).json()
        for name, count in listed_now.items():
            assert found["total"][name] == sum(row[name] for row in found["items"]) == count, (by, name)
    page = world.client.get(f"{world.base}/insights?board=protection").content.decode()
    figure = page.partition(">Recovered after a reaction</dt>")[2].partition("</dd>")[0]
    link = re.search(r'href="([^"]+)"\s+title="(\d+) incidents?"', figure)
    assert (int(link[2]) if link else 0) == listed_now["recovered"]
    assert link is None or "recovery%3Arecovered" in link[1]
    metrics = world.client.get("/metrics").content.decode()
    of_kinds = re.findall(r'loopguard_incidents_by_recovery\{[^}]*recovered="(\w+)"\} ([\d.]+)', metrics)
    for name, flag in (("recovered", "true"), ("not_recovered", "false")):
        assert sum(float(number) for one, number in of_kinds if one == flag) == listed_now[name]


def money_of(text):
    return float(text.replace("$", "").replace(",", ""))


def check_money(world, api):
    """Compare every sum of what loops cost with the rows of the list that it leads to."""
    page = {
        part: world.client.get(f"{world.base}/{part}").content.decode()
        for part in ("loops?q=", "insights", "insights?by=tool", "insights?by=model", "insights?by=detector")
    }

    def listed_at(url):
        query = unescape(url).partition("?")[2]
        file = world.client.get(f"{world.base}/export/incidents?{query}&format=jsonl").getvalue()
        return sum(json.loads(line)["cost_usd"] or 0 for line in file.splitlines())

    rows = listed(api, "/incidents")
    spent = sum(row["cost_usd"] for row in rows if row["label"] != "false_alarm")
    figure = page["insights"].partition(">Cost of loops</dt>")[2].partition("</dd>")[0]
    link = re.search(r'<a\s+href="([^"]+)"[^>]*>([^<]+)</a>', figure)
    if link:
        assert (money_of(link[2]) if link[2] != "–" else 0) == listed_at(link[1]) == spent
    else:
        assert not [row for row in rows if row["label"] != "false_alarm"]
    for part, html in page.items():
        links = re.findall(
            r'<a\s+class="link"\s+href="([^"]*/loops/history\?[^"]*)"[^>]*>(\$[\d.,]+)</a>',
            html.partition("Group by")[2] or html,
        )
        assert all(money_of(shown) == listed_at(url) for url, shown in links), (part, links)
        assert sum(money_of(shown) for _, shown in links) == spent, part
    assert sum(row["cost_usd"] for row in listed(api, "/loops")) == spent
    for by in ("kind", "tool", "model", "backend", "day"):
        found = api.get("/statistics", by=by).json()
        assert found["total"]["loop_cost_usd"] == sum(row["loop_cost_usd"] for row in found["items"]) == spent
    metrics = world.client.get("/metrics").content.decode()
    of_tools = re.findall(r"loopguard_loop_cost_usd_by_tool\{[^}]*\} ([\d.]+)", metrics)
    assert sum(map(float, of_tools)) == spent
    # Held calls that were allowed count nowhere, whether they were counted before the answer or after it.
    count_calls()
    blocked = api.get("/statistics").json()["total"]["blocked"]
    assert blocked == sum(row["blocked"] for row in listed(api, "/sessions"))
    # No call counts twice: together, the incidents count at most what the sessions cost.
    assert sum(row["cost_usd"] for row in rows) <= sum(row["cost_usd"] for row in listed(api, "/sessions"))


def test_every_tile_tab_badge_and_count_agrees_whatever_happens():
    world = make_world()
    seed = random.randrange(1 << 30)  # pytest-randomly repeats it
    with speaking() as wsgi_client:
        api = Api(wsgi_client, make_key(world.project))
        chance, seen = Chance(world.project, api, seed), set()
        for step in range(STEPS):
            chance.act()
            seen |= {*Session.objects.values_list("state", flat=True)}
            if step % STEPS_PER_CHECK == 0:
                check(world, api)
            if step == STEPS // 2:
                check_money(world, api)
                check_recovery(world, api)
        check(world, api)
        check_money(world, api)
        check_recovery(world, api)
    assert len(seen) >= 2, seen  # the draw reached different states
