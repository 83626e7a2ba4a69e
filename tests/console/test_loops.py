"""Loops in the console: the list, a loop's page, what people do with it, and undo."""

import json
import re
from datetime import timedelta
from html import unescape
from zoneinfo import ZoneInfo

import pytest
from django.test import Client
from django.utils import timezone

from detection.models import AlertSilence, Incident, Loop, Membership, Role, Session
from tests.console.scenes import ask, loop, make_world, text
from tests.support.projects import make_member, make_project
from tests.support.shared_rows import shared_rows

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def shared_world(django_db_setup, django_db_blocker):
    with shared_rows(django_db_blocker):
        world = make_world()
        for number, agent in enumerate(("coder", "coder", "triage")):
            loop(world.project, f"more-{number}", agent=agent, arguments=f'{{"q":"{number}"}}')
        yield world


def act(world, action, **more):
    data = {"ids": Loop.objects.get().public_id, "action": action, **more}
    return text(world.client.post(f"{world.base}/loops/act", data, follow=True))


def test_the_list_says_in_one_row_what_happens_how_often_and_to_whom(world):
    shown = text(world.client.get(f"{world.base}/loops"))
    number = Incident.objects.count()
    assert "search_web is called again with identical arguments" in shown
    for words in (f" {number} ", "researcher", "coder", "gpt-5", "Open 1", "Loops 1 open loops"):
        assert words in shown, words
    assert "No matching loops" in text(world.client.get(f"{world.base}/loops?q=agent:nobody"))
    assert "search_web" in text(world.client.get(f"{world.base}/loops?q=agent:triage"))
    empty = make_project()
    client = Client()
    client.force_login(make_member(empty))
    assert "all its runs become one row, like this" in text(client.get(f"/p/{empty.slug}/loops"))


def test_its_page_says_what_the_incidents_share_and_leads_to_each_of_them(world):
    page = world.client.get(f"{world.base}/loops/{Loop.objects.get().public_id}")
    shown, number = text(page), Incident.objects.count()
    assert f"All {number} share tool search_web and model gpt-5." in shown
    assert "Check the tool and the model first: agents differ." in shown
    # Each with its share, which leads to the runs.
    assert len(re.findall(r'Arguments {"q":"(?:reset|\d)"} 25\s?%', unescape(shown))) == 3
    loops = re.findall(r"\?q=loop%3A\w+\+calls_digest%3A(\w+)", page.content.decode())
    assert {*loops} < {*Incident.objects.values_list("calls_digest", flat=True)}
    assert len(loops) == 3
    assert f'href="?run={world.incident.public_id}#evidence"' in page.content.decode()
    listed = world.client.get(f"{world.base}/loops/history?q=loop:{Loop.objects.get().public_id}")
    assert listed.content.decode().partition("<tbody")[2].partition("</tbody>")[0].count("<tr>") == number
    stranger = Client()
    stranger.force_login(make_member(make_project()))
    assert stranger.get(page.request["PATH_INFO"]).status_code == 404


def test_the_chart_of_runs_says_of_each_what_the_table_says(world):
    run = world.incident
    address = f"{world.base}/loops/{run.loop.public_id}"
    now = timezone.now()
    others = {"ended_at": now, "last_seen_at": now - timedelta(hours=1)}
    Incident.objects.exclude(pk=run.pk).update(**others)
    of_run = Incident.objects.filter(pk=run.pk)
    of_minutes, of_days = r">\d+ \w{3} \d\d:\d\d UTC</time>", r">\d+ \w{3}</time>"
    for age, ticks in ((timedelta(hours=2), of_minutes), (timedelta(days=20), of_days)):
        Incident.objects.update(opened_at=now - age)
        shown = world.client.get(address).content.decode()
        assert len(re.findall(ticks, shown[shown.index('class="ticks"') :].partition("</figure>")[0])) == 3, (
            age
        )
    stopped = {
        "stopped_by_kind": "person", "stopped_by": "ana", "stopped_at": now - timedelta(minutes=1),
        "refused_since_stop": 1, "has_run_last": False,
    }  # fmt: skip
    for state, ended, words, said in (
        ("looping", None, "1 looping now", "Looping now"),
        ("held", None, "1 held", "Held"),
        ("stopped", None, "1 stopped", "Stopped"),
        ("ended", now, "1 stopped", "Stopped"),
    ):
        of_run.update(ended_at=ended, last_seen_at=now)
        told = stopped if words == "1 stopped" else {}
        Session.objects.filter(pk=run.session_id).update(state=state, ended_at=ended, **told)
        page = world.client.get(address).content.decode()
        assert f"<title>{words}</title>" in page, state
        table = page[page.index('id="runs"') :].partition("</table>")[0]
        assert said in re.sub(r"<[^>]+>", "", table), state
    shown = text(world.client.get(f"{world.base}/sessions/{run.session_name}"))
    assert "Stopped by ana" in shown
    assert "its call was blocked, and then it ended" in shown


def test_a_loop_is_put_off_assigned_commented_and_closed_with_undo(world):
    assert "1 loop put off." in act(world, "later")
    Incident.objects.update(last_seen_at=AlertSilence.objects.get().starts_at)
    assert "Later, but firing" not in text(world.client.get(f"{world.base}/loops?q=is:later"))
    loop(world.project, "again", calls=4)
    shown = text(world.client.get(f"{world.base}/loops?q=is:later_but_firing"))
    assert "Later, but firing 1" in shown
    assert "Later, 1 since" in shown
    assert "Still firing" in text(world.client.get(f"{world.base}/loops/{Loop.objects.get().public_id}"))
    assert "1 loop restored." in act(world, "undo")
    act(world, "later:7d")
    until = AlertSilence.objects.latest("pk").ends_at
    noted = text(world.client.get(f"{world.base}/loops/{Loop.objects.get().public_id}"))
    assert f"until {until:%Y-%m-%d %H:%M} UTC" in noted
    act(world, "undo")
    assert "1 loop assigned." in act(world, "assign:me")
    act(world, "comment", note="vendor informed")
    shown = act(world, "done")
    assert not Incident.objects.exclude(status="done").exists()
    assert "1 loop closed." in shown
    act(world, "undo")
    page = text(world.client.get(f"{world.base}/loops/{Loop.objects.get().public_id}"))
    for words in ("Open", world.user.get_username(), "vendor informed", "undid: done"):
        assert words in page, words
    row, leaving = Loop.objects.get(), make_member(world.project, Role.OPERATOR)
    act(world, "assign", assignee=leaving.get_username())
    world.client.post(f"{world.base}/members", {"action": "remove", "member": leaving.pk})
    page = text(world.client.get(f"{world.base}/loops/{row.public_id}"))
    assert f"{leaving.get_username()} left the project" in page
    assert f"loop.unassigned {row.public_id}" in text(world.client.get(f"{world.base}/audit"))
    left = make_member(world.project, Role.OPERATOR)
    act(world, "assign", assignee=left.get_username())
    act(world, "assign:me")
    world.client.post(f"{world.base}/members", {"action": "remove", "member": left.pk})
    act(world, "undo")
    row.refresh_from_db()
    assert row.assignee is None  # not the one who left
    viewer = Client()
    viewer.force_login(make_member(world.project, Role.VIEWER))
    assert viewer.post(f"{world.base}/loops/act", {"action": "done"}).status_code == 403


def test_a_loop_whose_incidents_are_all_labelled_is_not_a_loop_everywhere(world):
    address = f"{world.base}/loops/{Loop.objects.get().public_id}"
    for run in Incident.objects.values_list("public_id", flat=True):
        assert "Fine 0" in text(world.client.get(f"{world.base}/loops?q="))
        act(world, "fine", run=run, where="run", reason="poll")
    listed = text(world.client.get(f"{world.base}/loops?q=is:fine"))
    assert "Fine 1" in listed
    assert "search_web is called again" in listed
    page = text(world.client.get(address))
    assert "Reopen" in page
    assert "done-button" not in world.client.get(address).content.decode()
    file = world.client.get(f"{world.base}/export/loops?q=&format=jsonl").getvalue()
    (row,) = map(json.loads, file.splitlines())
    assert (row["status"], row["label"]) == ("fine", "false_alarm")
    act(world, "reopen")
    assert not Incident.objects.exclude(label="").exists()
    assert "Fine 0" in text(world.client.get(f"{world.base}/loops?q="))


def test_a_loop_of_a_cycle_shares_its_tools_whichever_detectors_found_it(world):
    for session in ("first-cycle", "second-cycle"):
        for number in range(16):
            ask(world.project, session, number, tool=("list_files", "read_file")[number % 2], arguments="{}")
    row = Loop.objects.get(kind="cycle")
    one_tool = Incident.objects.filter(loop=row).first()
    one_tool.pk, one_tool.public_id, one_tool.kind, one_tool.tool = None, "inc_other", "outcome", "read_file"
    one_tool.calls_digest = "another"
    one_tool.save()
    shown = text(world.client.get(f"{world.base}/loops/{row.public_id}"))
    number = Incident.objects.filter(loop=row).count()
    assert number > 2
    assert f"All {number} share tool list_files → read_file" in shown
    assert re.search(r"Tool list_files → read_file 100\s?%", shown)


def test_a_run_and_a_call_are_chosen_by_the_address_and_neighbours_follow(world):
    row = Loop.objects.get()
    page = f"{world.base}/loops/{row.public_id}"
    newest, *_, oldest = Incident.objects.order_by("-last_seen_at", "-pk")
    first = world.client.get(f"{page}?run={newest.public_id}").content.decode()
    assert f'href="?run={newest.public_id}' not in first.partition('data-key="]"')[0].rpartition("<a")[2]
    assert 'data-key="["' not in first
    names = [newest.public_id]
    while follows := re.search(r'href="\?run=(\w+)#evidence" data-key="]"', first):
        names.append(follows[1])
        first = world.client.get(f"{page}?run={follows[1]}").content.decode()
    assert names == [*Incident.objects.order_by("-last_seen_at", "-pk").values_list("public_id", flat=True)]
    assert names[-1] == oldest.public_id
    seq = newest.evidence["calls"][-1]["seq"]
    chosen = world.client.get(f"{page}?run={newest.public_id}&call={seq}").content.decode()
    assert f'<tr id="call-{seq}" aria-current="true"' in chosen
    assert world.client.get(f"{page}?run=inc_none").status_code == 404
    assert world.client.get(f"{page}?call=nonsense").status_code == 200
    moved = world.client.get(f"{world.base}/incidents/{newest.public_id}?call={seq}")
    assert (moved.status_code, moved["Location"]) == (301, f"{page}?run={newest.public_id}&call={seq}")
    listed = world.client.get(f"{world.base}/incidents?q=agent%3Acoder&range=7d")
    assert (listed.status_code, listed["Location"]) == (
        301,
        f"{world.base}/loops/history?q=agent%3Acoder&range=7d",
    )


def test_identical_calls_are_folded_until_one_of_them_is_chosen(world):
    run = loop(world.project, "long", calls=12, tool="get_order", model="gpt-5-mini")
    page = f"{world.base}/loops/{run.loop.public_id}"
    folded = world.client.get(page).content.decode()
    (seq, number) = re.search(r'call=(\d+)#call-\d+"\s*>(\d+) more calls', folded).groups()
    assert int(number) >= 3
    unfolded = world.client.get(f"{page}?call={seq}").content.decode()
    rows = "<tr id="
    assert unfolded.count(rows) == folded.count(rows) + int(number) - 1
    changed = loop(world.project, "changing", calls=4, tool="list_rows", arguments='{"page":1}')
    assert "more calls" not in text(world.client.get(f"{world.base}/loops/{changed.loop.public_id}"))


def test_a_loop_is_put_off_until_tomorrow_or_a_day_of_the_persons_zone(world):
    world.client.cookies["loopguard-zone"] = "Europe%2FBerlin"
    act(world, "later:tomorrow")
    until = AlertSilence.objects.latest("pk").ends_at.astimezone(ZoneInfo("Europe/Berlin"))
    day = timezone.now().astimezone(ZoneInfo("Europe/Berlin")).date() + timedelta(days=1)
    assert (until.date(), until.hour, until.minute) == (day, 9, 0)
    act(world, "later:date", until_date=str(day + timedelta(days=3)))
    until = AlertSilence.objects.latest("pk").ends_at.astimezone(ZoneInfo("Europe/Berlin"))
    assert until.date() == day + timedelta(days=3)
    number = AlertSilence.objects.count()
    for wrong in (
        {"action": "later:date"},
        {"action": "later:date", "until_date": "soon"},
        {"action": "later:9x"},
    ):
        assert (
            "put off"
            not in act(world, wrong.pop("action"), **wrong)
            .partition("Put off")[0]
            .partition("loop put off")[1]
        )
    assert AlertSilence.objects.count() == number


def test_an_operator_accepts_runs_and_only_an_administrator_saves_exceptions(world):
    row = Loop.objects.get()
    client = Client()
    client.force_login(make_member(world.project, Role.OPERATOR))
    asked = client.get(f"{world.base}/loops/{row.public_id}/fine").content.decode()
    assert re.findall(r'name="where"\s+value="(\w*)"', asked) == ["run", ""]
    form = {"ids": row.public_id, "action": "fine", "reason": "poll"}
    assert client.post(f"{world.base}/loops/act", {**form, "where": "tool"}).status_code == 403
    assert client.post(f"{world.base}/loops/act", {**form, "where": ""}).status_code == 302
    assert {*Incident.objects.values_list("label", flat=True)} == {"false_alarm"}
    viewer = Client()
    viewer.force_login(make_member(world.project, Role.VIEWER))
    seen = viewer.get(f"{world.base}/loops/{row.public_id}/fine")
    assert "You can look but not act" in text(seen)
    assert viewer.post(f"{world.base}/loops/act", form).status_code == 403


def test_each_choice_says_what_it_would_lose(world):
    for number in range(3):
        loop(world.project, f"other-{number}", tool=f"tool_{number}", agent="researcher", cost_usd=0.5)
    run = Incident.objects.filter(session_name="s-1").get()
    asked = unescape(
        text(world.client.get(f"{world.base}/loops/{run.loop.public_id}/fine?run={run.public_id}"))
    )
    choices = dict(
        re.findall(
            r"(Only this run|These calls|Everything of this agent|Everywhere)(.*?)"
            r"(?=Only|These|Everything|Everywhere|Reason)",
            asked,
        )
    )
    assert "No other loop of the last 7 days would be lost" in choices["These calls"]
    assert (
        "You would lose at most 3 other loops of the last 7 days, which cost $"
        in choices["Everything of this agent"]
    )
    assert "You would lose at most 3 other loops" in choices["Everywhere"]


def test_addresses_from_when_loops_were_patterns_lead_to_them(world):
    row = Loop.objects.get(kind="repeat", tool="search_web")
    for earlier, address in (("", "?q=is:open&sort=-cost"), (f"/{row.public_id}", "")):
        answer = world.client.get(f"{world.base}/patterns{earlier}{address}")
        assert (answer.status_code, answer["Location"]) == (302, f"{world.base}/loops{earlier}{address}")
    assert world.client.get(f"{world.base}/patterns/{row.public_id}", follow=True).status_code == 200


def test_what_is_new_since_the_last_visit_is_listed_until_it_is_marked_as_read(world):
    def page():
        return text(world.client.get(f"{world.base}/now"))

    def come_back(minutes):
        Membership.objects.update(seen_at=timezone.now() - timedelta(minutes=minutes))

    world.client.get(f"{world.base}/now")
    assert "Since your last visit" not in page(), "a first visit has none before it"
    come_back(9)
    assert "Since your last visit" not in page(), "still the same visit"
    come_back(11)
    assert "Since your last visit" in page()
    assert Membership.objects.get(user=world.user).last_visit_at < timezone.now() - timedelta(minutes=10)
    come_back(11)
    for headers in ({"HX-Request": "true"}, {"Sec-Fetch-Dest": "empty"}):
        before = Membership.objects.get(user=world.user)
        world.client.get(f"{world.base}/now", headers=headers)
        assert Membership.objects.get(user=world.user).seen_at == before.seen_at, "a script opens no page"
    assert "Mark as read" in page()
    world.client.post(f"{world.base}/loops/read")
    assert "Nothing has changed." in page()
    loop(world.project, "later-on", tool="another_tool", calls=4)
    assert "another_tool" in page().partition("Since your last visit")[2]


def test_a_fine_loop_shows_its_exception_and_one_that_returned_that_it_is_not_covered(world):
    run = world.incident
    form = {"action": "fine", "ids": run.loop.public_id, "where": "tool", "reason": "other", "expires": ""}
    world.client.post(f"{world.base}/loops/act", form)
    page = unescape(text(world.client.get(f"{world.base}/loops/{run.loop.public_id}")))
    assert re.search(r"Exception Tool search_web: Raise the limit to \d+ repeated calls", page), page[:3000]
    assert "which the exception does not cover" not in page
    loop(world.project, "again-elsewhere", tool=run.tool, calls=60)
    page = unescape(text(world.client.get(f"{world.base}/loops/{run.loop.public_id}")))
    assert "1 run is open again, which the exception does not cover" in page
