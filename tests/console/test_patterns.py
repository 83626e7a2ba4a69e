"""Patterns in the console: the list, a pattern's page, what people do with it, and undo."""

import json
import re
from html import unescape

import pytest
from django.test import Client

from detection.models import AlertSilence, Incident, Pattern, Role
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
    data = {"ids": Pattern.objects.get().public_id, "action": action, **more}
    return text(world.client.post(f"{world.base}/patterns/act", data, follow=True))


def test_the_list_says_in_one_row_what_happens_how_often_and_to_whom(world):
    shown = text(world.client.get(f"{world.base}/patterns"))
    number = Incident.objects.count()
    assert "search_web is called again with identical arguments" in shown
    for words in (f" {number} 4 ", "researcher", "coder", "gpt-5", "Open 1", "Patterns 1 open"):
        assert words in shown, words
    assert "No matching patterns" in text(world.client.get(f"{world.base}/patterns?q=agent:nobody"))
    assert "search_web" in text(world.client.get(f"{world.base}/patterns?q=agent:triage"))
    empty = make_project()
    client = Client()
    client.force_login(make_member(empty))
    assert "all its incidents become one row, like this" in text(client.get(f"/p/{empty.slug}/patterns"))


def test_its_page_says_what_the_incidents_share_and_leads_to_each_of_them(world):
    page = world.client.get(f"{world.base}/patterns/{Pattern.objects.get().public_id}")
    shown, number = text(page), Incident.objects.count()
    assert f"All {number} share tool search_web and model gpt-5." in shown
    assert "Check the tool and the model first: agents differ." in shown
    # Each with its number, which leads to the incidents.
    arguments = unescape(re.search(r"Arguments 4 different (.*?) Session", shown)[1])
    assert re.fullmatch(r'({"q":"(reset|\d)"} 1 \(25\s?%\) ){3}and 1 more', arguments)
    loops = re.findall(r"\?q=pattern%3A\w+\+loop%3A(\w+)", page.content.decode())
    assert {*loops} < {*Incident.objects.values_list("loop_id", flat=True)}
    assert len(loops) == 3
    assert f'href="{world.base}/incidents/{world.incident.public_id}"' in page.content.decode()
    all_ = world.client.get(f"{world.base}/incidents?q=pattern:{Pattern.objects.get().public_id}")
    assert f"All {number}" in text(all_)
    assert Pattern.objects.get().public_id in text(
        world.client.get(f"{world.base}/incidents/{world.incident.public_id}")
    )
    stranger = Client()
    stranger.force_login(make_member(make_project()))
    assert stranger.get(page.request["PATH_INFO"]).status_code == 404


def test_a_pattern_is_muted_assigned_commented_and_resolved_with_undo(world):
    assert "1 pattern muted." in act(world, "mute")
    Incident.objects.update(last_seen_at=AlertSilence.objects.get().starts_at)
    assert "Muted but firing" not in text(world.client.get(f"{world.base}/patterns?q=is:muted"))
    loop(world.project, "again", calls=4)
    shown = text(world.client.get(f"{world.base}/patterns?q=is:muted_but_firing"))
    assert "Muted but firing 1" in shown
    assert "since muted" in shown
    assert "Still firing" in text(
        world.client.get(f"{world.base}/patterns/{Pattern.objects.get().public_id}")
    )
    assert "1 pattern restored." in act(world, "undo")
    act(world, "mute:8h")
    until = AlertSilence.objects.latest("pk").ends_at
    noted = text(world.client.get(f"{world.base}/patterns/{Pattern.objects.get().public_id}"))
    assert f"until {until:%Y-%m-%d %H:%M} UTC" in noted
    act(world, "undo")
    assert "1 pattern assigned." in act(world, "assign:me")
    act(world, "comment", note="vendor informed")
    shown = act(world, "resolve")
    assert not Incident.objects.exclude(status="resolved").exists()
    assert "1 pattern resolved." in shown
    act(world, "undo")
    page = text(world.client.get(f"{world.base}/patterns/{Pattern.objects.get().public_id}"))
    for words in ("Open", world.user.get_username(), "vendor informed", "undid: resolved"):
        assert words in page, words
    pattern, leaving = Pattern.objects.get(), make_member(world.project, Role.OPERATOR)
    act(world, "assign", assignee=leaving.get_username())
    world.client.post(f"{world.base}/members", {"action": "remove", "member": leaving.pk})
    page = text(world.client.get(f"{world.base}/patterns/{pattern.public_id}"))
    assert f"{leaving.get_username()} left the project" in page
    assert f"pattern.unassigned {pattern.public_id}" in text(world.client.get(f"{world.base}/audit"))
    left = make_member(world.project, Role.OPERATOR)
    act(world, "assign", assignee=left.get_username())
    act(world, "assign:me")
    world.client.post(f"{world.base}/members", {"action": "remove", "member": left.pk})
    act(world, "undo")
    pattern.refresh_from_db()
    assert pattern.assignee is None  # not the one who left
    viewer = Client()
    viewer.force_login(make_member(world.project, Role.VIEWER))
    assert viewer.post(f"{world.base}/patterns/act", {"action": "resolve"}).status_code == 403


def test_a_pattern_whose_incidents_are_all_labelled_is_not_a_loop_everywhere(world):
    address = f"{world.base}/patterns/{Pattern.objects.get().public_id}"
    ids = [*Incident.objects.values_list("public_id", flat=True)]
    form = {"action": "label:false_alarm", "ids": ids}
    world.client.post(f"{world.base}/incidents/act", form | {"ids": ids[:1]})
    assert "Not a loop 0" in text(world.client.get(f"{world.base}/patterns?q="))
    world.client.post(f"{world.base}/incidents/act", form)
    listed = text(world.client.get(f"{world.base}/patterns?q=is:not_a_loop"))
    assert "Not a loop 1" in listed
    assert "search_web is called again" in listed
    page = text(world.client.get(address))
    assert "Remove label" in page
    assert "resolve-button" not in world.client.get(address).content.decode()
    file = world.client.get(f"{world.base}/export/patterns?q=&format=jsonl").getvalue()
    (row,) = map(json.loads, file.splitlines())
    assert (row["state"], row["label"]) == ("not_a_loop", "false_alarm")
    act(world, "label", label="")
    assert not Incident.objects.exclude(label="").exists()
    assert "Not a loop 0" in text(world.client.get(f"{world.base}/patterns?q="))


def test_a_pattern_of_a_cycle_shares_its_tools_whichever_detectors_found_it(world):
    for session in ("first-cycle", "second-cycle"):
        for number in range(16):
            ask(world.project, session, number, tool=("list_files", "read_file")[number % 2], arguments="{}")
    pattern = Pattern.objects.get(kind="cycle")
    one_tool = Incident.objects.filter(pattern=pattern).first()
    one_tool.pk, one_tool.public_id, one_tool.kind, one_tool.tool = None, "inc_other", "outcome", "read_file"
    one_tool.loop_id = "another"
    one_tool.save()
    shown = text(world.client.get(f"{world.base}/patterns/{pattern.public_id}"))
    number = Incident.objects.filter(pattern=pattern).count()
    assert number > 2
    assert f"All {number} share tool list_files → read_file" in shown
    assert f"Tool all {number} list_files → read_file" in shown
