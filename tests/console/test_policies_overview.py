"""Policies: presets, the matrix, which value applies, export and import, and where earlier addresses lead."""

import json
import re

import pytest
from django.test import Client

from detection.engine.scopes import PROJECT, Scope
from detection.models import Override, Role, ToolOverride
from detection.services.audit import SYSTEM
from detection.services.policies import overrides
from detection.services.what_if import changes, what_ifs, worker
from tests.console.scenes import text
from tests.support.projects import make_member, make_project

pytestmark = pytest.mark.django_db

MODEL = Scope.of(backend="openai", model="gpt-5")


def save(world, scope, values, **facts):
    overrides.save_override(world.project.pk, scope, values, SYSTEM, "a test", **facts)


def cells(page, setting):
    """The cells of a row of the matrix: (classes, words)."""
    row = re.search(rf'<th scope="row">{setting}</th>(.*?)</tr>', page.content.decode(), re.DOTALL)[1]
    found = re.findall(r"<td(.*?)>(.*?)</td>", row, re.DOTALL)
    return [
        (re.search(r'class="([^"]*)"', tag)[1].split(), re.sub(r"<.*?>", "", words, flags=re.DOTALL).split())
        for tag, words in found
    ]


def test_the_matrix_has_only_what_is_set_and_tints_what_is_weaker(world):
    save(world, PROJECT, {"max_repeats": 3})
    save(world, MODEL, {"max_repeats": 10})
    save(world, Scope("tool", pattern="get_*"), {}, tool_class="poll", ignore_arguments=["page"])
    page = world.client.get(f"{world.base}/policies")
    preset, project, model, tools = cells(page, "Limit for identical calls")
    assert preset[1] == ["4"]
    assert ("weak" in project[0], project[1]) == (False, ["3"])
    assert ("weak" in model[0], model[1][0]) == (True, "10")
    assert tools[1] == ["–"]
    assert "Limit for cycles" not in text(page)[: text(page).index("Suggested")].split("Show", 1)[1]
    assert cells(page, "Tool class")[-1][1][0] == "poll"
    assert cells(page, "Ignore arguments")[-1][1][0] == "page"


def test_the_tester_says_which_value_applies_and_what_it_beats(world):
    save(world, PROJECT, {"max_repeats": 7})
    save(world, MODEL, {"max_repeats": 10})
    save(world, Scope("tool", pattern="get_*"), {"max_repeats": 5})
    ask = f"{world.base}/policies?agent=researcher&model=openai/gpt-5&setting=max_repeats&tool="
    page = world.client.get(f"{ask}search")
    words = text(page)
    assert (
        "Limit for identical calls is 10 from model openai / gpt-5 over 7 of project, 4 of preset standard"
        in words
    )
    preset, project, model, _ = cells(page, "Limit for identical calls")
    assert ("beaten" in preset[0], "beaten" in project[0], "wins" in model[0]) == (True, True, True)
    assert "is 5 from tools get_*" in text(world.client.get(f"{ask}get_order"))
    assert "is 7 from project" in text(
        world.client.get(f"{world.base}/policies?model=other/x&setting=max_repeats")
    )
    assert "Nothing" not in text(world.client.get(f"{world.base}/policies?setting=no_such"))


def test_a_cell_and_the_tester_lead_to_change_here(world):
    save(world, MODEL, {"max_repeats": 10})
    page = world.client.get(f"{world.base}/policies?model=openai/gpt-5&setting=max_repeats").content.decode()
    links = re.findall(r'href="([^"]*policies/change\?setting=max_repeats[^"]*)"', page)
    assert len(links) == 2
    for link in links:
        assert "It is 10" in text(world.client.get(link.replace("&amp;", "&")))


def test_a_preset_says_what_a_replay_found_or_leads_to_one(world):
    save(world, PROJECT, {"max_repeats": 3})
    words = text(world.client.get(f"{world.base}/policies"))
    assert words.count("Try on history") >= 2
    assert "Standard Now Warns at the 3rd identical call; from the 4th: a second chance, block, stop" in words
    change = changes.check(world.project.pk, "project", {"max_repeats": 3, "preset": "observe"})
    what_ifs.create_what_if(world.project.pk, change, SYSTEM)
    worker.run_waiting(lambda: False)
    shown = text(world.client.get(f"{world.base}/policies"))
    assert "Nothing would have changed." in shown or "loop" in shown[shown.index("Observe") :][:200]
    # A change of settings since makes it a replay of something else.
    save(world, PROJECT, {"max_repeats": 5})
    assert "Nothing would have changed." not in text(world.client.get(f"{world.base}/policies"))
    form = world.client.get(f"{world.base}/policies/change?setting=preset&scope=project&value=strict")
    assert '<option value="strict" selected' in form.content.decode()


def test_an_untouched_project_says_that_nothing_differs(world):
    empty = make_project("untouched")
    client = Client()
    client.force_login(make_member(empty, Role.VIEWER))
    words = text(client.get(f"/p/{empty.slug}/policies"))
    assert "Nothing differs: every value comes from the preset standard." in words
    assert "No label of the last 90 days counts towards a suggestion yet." in words
    assert "No exceptions." in words


def test_what_is_exported_is_imported_elsewhere(world):
    save(world, MODEL, {"max_repeats": 10, "graduated_rungs": ["warn", "stop"]})
    save(world, Scope("tool", pattern="get_*"), {"max_repeats": 5}, tool_class="poll", exempt=False)
    exported = world.client.get(f"{world.base}/policies/export")
    assert "attachment" in exported["Content-Disposition"]
    document = exported.json()
    other = make_project("elsewhere")
    client = Client()
    client.force_login(make_member(other, Role.ADMIN))
    place = f"/p/{other.slug}/policies/import"
    refused = client.post(place, {"document": json.dumps(document)})
    assert (refused.status_code, "Give a reason" in text(refused)) == (422, True)
    assert "loopguard.policies.v1" in refused.content.decode()
    assert not Override.objects.filter(project=other).exists()
    done = client.post(place, {"document": json.dumps(document), "note": "as there"}, follow=True)
    assert "imported. Takes effect on the next call." in text(done)
    assert client.get(f"/p/{other.slug}/policies/export").json() == document
    assert ToolOverride.objects.get(project=other).tool_class == "poll"


@pytest.mark.parametrize(
    "document",
    [
        "",
        "[]",
        "{}",
        '{"format": "other", "scopes": []}',
        '{"format": "loopguard.policies.v1", "scopes": [{"scope": "server", "values": {}}]}',
        '{"format": "loopguard.policies.v1", "scopes": [{"scope": "agent:a", "values": {"no_such": 1}}]}',
        '{"format": "loopguard.policies.v1", "scopes": [{"scope": "agent:a", "values": {}, "exempt": true}]}',
        '{"format": "loopguard.policies.v1", "scopes": [{"scope": "tool:a", "values": {}, "tool_class": "x"}]}',
        '{"format": "loopguard.policies.v1", "scopes": [{"scope": "tool:a", "values": {}, "exempt": "yes"}]}',
        '{"format": "loopguard.policies.v1", "scopes": [{"scope": "agent:ok", "values": {"max_repeats": 2}}, 7]}',
    ],
)
def test_a_document_that_is_wrong_changes_nothing(world, document):
    before = [*Override.objects.order_by("pk").values("pk", "values")]
    answer = world.client.post(f"{world.base}/policies/import", {"document": document, "note": "x"})
    assert (answer.status_code, "Nothing was imported:" in text(answer)) == (422, True)
    assert [*Override.objects.order_by("pk").values("pk", "values")] == before


def test_a_preset_is_compared_with_what_applies_at_a_scope(world):
    save(world, MODEL, {"max_repeats": 3})
    words = text(world.client.get(f"{world.base}/policies/settings?scope={MODEL}&preset=lenient"))
    assert "Limit for identical calls 3 5 Weaker" in words


def test_earlier_addresses_lead_for_good_to_where_their_content_is(world):
    base, name = (
        world.base,
        what_ifs.create_what_if(
            world.project.pk, changes.check(world.project.pk, "project", {}), SYSTEM
        ).public_id,
    )
    for earlier, now in (
        ("policies?scope=agent:a", "policies/settings?scope=agent:a"),
        ("policies?agent=a", "policies/settings?agent=a"),
        ("policies/tool-rule?pattern=get_*", "policies/tools?pattern=get_*"),
        ("policies/tool-rule", "policies/tools?new="),
        ("policies/what-if", "policies/what-ifs"),
        (f"policies/what-if/{name}", f"policies/what-ifs/{name}"),
        ("policies/suggestions?state=accepted", "policies?state=accepted#suggestions"),
        ("policies/exceptions", "policies#fine"),
        ("message-templates", "policies/messages"),
    ):
        answer = world.client.get(f"{base}/{earlier}")
        assert (answer.status_code, answer["Location"]) == (301, f"{base}/{now}"), earlier
