"""What-ifs in the console: from the form of a policy to a saved change."""

import re

import pytest
from django.test import Client

from detection.engine.scopes import Scope
from detection.models import Incident, Override, Role, Session, ToolOverride, WhatIf
from detection.services.audit import SYSTEM, Actor
from detection.services.policies import overrides
from detection.services.sessions import actions
from detection.services.what_if import worker
from tests.console.scenes import loop, text
from tests.support.projects import make_member

pytestmark = pytest.mark.django_db


def tried(world, form, client=None, **headers):
    answer = (client or world.client).post(
        f"{world.base}/policies/what-ifs/create", {"days": "7", **form}, **headers
    )
    worker.run_waiting(lambda: False)
    return answer


def test_the_form_of_a_policy_is_tried_shown_and_saved(world):
    form = world.client.get(f"{world.base}/policies/settings?scope=agent:researcher").content.decode()
    assert 'name="scope" value="agent:researcher"' in form
    assert "Try on history" in form
    answer = tried(world, {"scope": "agent:researcher", "set_repeat_enabled": "false", "note": ""})
    row = WhatIf.objects.get()
    assert answer["Location"].endswith(row.public_id)
    shown = world.client.get(answer["Location"])
    words = text(shown)
    assert "What-if for agent researcher" in words
    assert "Detect repeats inherited → off" in words
    assert re.search(r"1 loop no longer found|\d+ loops no longer found", words)
    assert f"incidents/{world.incident.public_id}" in shown.content.decode()
    assert "Agreement with the record 1 of 1 recorded run found again" in words
    url = f"{answer['Location']}/save"
    assert "Give a reason" in text(world.client.post(url, {}, follow=True))
    assert "Change saved" in text(world.client.post(url, {"note": "a mock"}, follow=True))
    assert Override.objects.get(agent="researcher").values == {"repeat_enabled": False}
    again = text(world.client.get(answer["Location"]))
    assert "This matches what is stored now." in again
    assert "A setting of this project was changed" in again


def test_an_incident_that_a_change_finds_at_another_call_names_both_limits(world):
    answer = tried(
        world, {"scope": "session", "session": "s-1", "set_repeat_warn_at": "3", "set_max_repeats": "6"}
    )
    words = text(world.client.get(answer["Location"]))
    assert "4 → 3 warn at call 4 → warn at call 3" in words
    assert "limit 5 → 6" in words


def test_a_loop_that_is_not_one_but_is_still_blocked_by_another_detector_is_named(world):
    overrides.save_override(
        world.project.pk, Scope("agent", agent="researcher"), {"mode": "warn"}, SYSTEM, "a test"
    )
    loop(world.project, "s-2", calls=9, content="denied")
    Incident.objects.filter(session_name="s-2").update(label="false_alarm")
    form = {
        "scope": "agent:researcher",
        "set_repeat_enabled": "false",
        "set_stagnation_ladder": "block_then_stop",
    }
    answer = tried(world, form)
    words = text(world.client.get(answer["Location"]))
    still = "In sessions with a loop that a person called fine, calls would still be blocked: "
    assert f"{still}Stagnation: search_web" in words
    assert "In 1 of the" in words or "another detector acts then" in words
    spared = tried(world, form | {"set_stagnation_enabled": "false"})
    assert still not in text(world.client.get(spared["Location"]))


def test_what_was_changed_since_a_what_if_was_created_is_not_replaced_unseen(world):
    pk, agent, ben = world.project.pk, Scope("agent", agent="researcher"), Actor("ben")
    session = Session.objects.filter(project=world.project).first().external_id
    changes = (
        ({"scope": "agent:researcher", "set_max_repeats": "2"}, lambda value: overrides.save_override(
            pk, agent, {"max_repeats": value, "mode": "warn"}, ben, "theirs")),
        ({"scope": "tool", "pattern": "get_*", "set_max_repeats": "2"}, lambda value: overrides.save_override(
            pk, Scope("tool", pattern="get_*"), actor=ben, values={"max_repeats": value}, note="theirs")),
        ({"scope": "session", "session": session, "set_max_repeats": "2"}, lambda value: actions.set_policy(
            pk, session, {"max_repeats": value}, ben)),
    )  # fmt: skip
    for form, change in changes:
        page = tried(world, form)["Location"]
        change(8)
        shown = world.client.get(page)
        if "session" not in form:
            assert "It was changed after this what-if was created" in text(shown)
        seen = re.search(r'name="version" value="(\w+)"', shown.content.decode())[1]
        change(9)
        refused = world.client.post(f"{page}/save", {"version": seen, "note": "mine <b>"})
        words = text(refused)
        assert (refused.status_code, "changed in the meantime" in words) == (409, True), form
        assert " 9 2 " in words
        assert 'value="mine &lt;b&gt;"' in refused.content.decode() or "session" in form
        again = re.search(r'name="version" value="(\w+)"', refused.content.decode())[1]
        saved = world.client.post(f"{page}/save", {"version": again, "note": "mine"}, follow=True)
        assert "Change saved" in text(saved)
    assert Override.objects.get(agent="researcher").values == {"max_repeats": 2}
    assert ToolOverride.objects.get(pattern="get_*").values == {"max_repeats": 2}
    assert Session.objects.get(external_id=session).policy_values == {"max_repeats": 2}


def test_the_deletion_of_an_override_is_tried_beside_its_button(world):
    page = world.client.get(f"{world.base}/policies/settings?scope=model:openai/gpt-5").content.decode()
    form = page[page.index("Delete this override?") :]
    assert "Try deletion on history" in form
    fields = dict(re.findall(r'<input type="hidden" name="(scope|version)" value="([^"]*)"', form))
    tried(world, {**fields, "note": ""})
    assert WhatIf.objects.get().change == {"scope": "model:openai/gpt-5", "values": {}}


def test_a_tool_rule_and_the_settings_of_a_session_are_tried_and_saved(world):
    rule = {
        "scope": "tool",
        "pattern": "search_*",
        "tool_class": "poll",
        "ignore_arguments": "a\nb",
        "exempt": "",
    }
    url = tried(world, rule)["Location"]
    world.client.post(f"{url}/save", {"note": "polls"})
    saved = ToolOverride.objects.get(pattern="search_*")
    assert (saved.tool_class, saved.ignore_arguments) == ("poll", ["a", "b"])
    operator = Client()
    operator.force_login(make_member(world.project, Role.OPERATOR))
    url = tried(world, {"scope": "session", "session": "s-1", "set_enabled": "false"}, operator)["Location"]
    assert "What-if for session s-1" in text(operator.get(url))
    operator.post(f"{url}/save")
    assert Session.objects.get(external_id="s-1").policy_values == {"enabled": False}
    url = tried(world, {"scope": "project", "set_enabled": "false"}, operator)["Location"]
    assert operator.post(f"{url}/save", {"note": "x"}).status_code == 403


def test_beside_the_form_a_script_gets_the_part_alone_and_errors_in_it(world):
    part = tried(world, {"scope": "project", "set_max_repeats": "2"}, headers={"HX-Request": "true"})
    assert "<html" not in part.content.decode()
    row = WhatIf.objects.get()
    followed = world.client.get(
        f"{world.base}/policies/what-ifs/{row.public_id}?beside", headers={"HX-Request": "true"}
    )
    assert "every 2s" not in followed.content.decode()
    wrong = tried(world, {"scope": "project", "set_max_repeats": "1"}, headers={"HX-Request": "true"})
    assert "max_repeats" in text(wrong)
    assert "Not started" in text(wrong)
    world.project.stores_payloads = False
    world.project.save()
    assert "stores no payloads" in text(world.client.get(f"{world.base}/policies/settings"))
    assert "stores no payloads" in text(world.client.get(f"{world.base}/policies/what-ifs"))


def test_what_is_lost_comes_first_and_each_day_has_both_policies(world):
    loop(world.project, "s-2", calls=9)
    answer = tried(world, {"scope": "project", "set_enabled": "false"})
    page = world.client.get(answer["Location"])
    words = text(page)
    first = words.index("You would no longer block or stop 1 loop")
    assert first < words.index("no longer found") < words.index("How far to trust it")
    svg = re.search(
        r'<svg class="plot" role="img" aria-label="(Loops blocked[^"]*)">(.*?)</svg>',
        page.content.decode(),
        re.DOTALL,
    )
    assert re.search(r"now and changed\. \d\d \w{3}: 1, then 0$", svg[1])
    assert svg[2].count("<rect") == 2 * 8
    assert "Loops blocked or stopped, by day" in words
    assert "now 1 with the change 0" in words
