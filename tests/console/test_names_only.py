"""What agents, pages and alerts say of calls that were compared by the names of their tools alone."""

import re

import pytest

from detection.engine.scopes import PROJECT
from detection.models import Approval, Incident
from detection.services.alerting import event_facts, rendering
from detection.services.audit import SYSTEM
from detection.services.events.event_records import EventRecord
from detection.services.policies import overrides
from tests.console.scenes import ask, make_world, result_of, text

CLAIM = re.compile(r"(?i)(?<!nearly )identical (?:arguments|to)|same arguments|the same call")


@pytest.mark.django_db
@pytest.mark.parametrize("values", [{}, {"mode": "ask"}, {"preset": "proxy"}])
def test_no_text_says_that_the_arguments_were_the_same(values):
    world = make_world()
    overrides.save_override(world.project.pk, PROJECT, {"identity": "tool", **values}, SYSTEM)
    results: tuple[EventRecord, ...] = ()
    told = []
    for number in range(6):
        arguments = f'{{"q":"{number * 37} things"}}'
        answer = ask(world.project, "by-name", number, tool="look_up", arguments=arguments, results=results)
        told.append(answer.verdicts[0].message())
        results = (result_of("by-name", number, "0 hits"),) if answer.decision in ("allow", "warn") else ()
        if answer.decision in ("hold", "stop"):
            break
    incident = Incident.objects.filter(session_name="by-name", kind="repeat").get()

    pages = ["sessions/by-name", f"incidents/{incident.public_id}", f"loops/{incident.loop.public_id}"]
    shown = {page: text(world.client.get(f"{world.base}/{page}", follow=True)) for page in pages}
    assert "with any arguments" in shown[pages[1]]
    assert "look_up is called again with any arguments" in shown[pages[2]]
    assert "look_up (any arguments)" in shown[pages[2]]
    call = text(world.client.get(f"{world.base}/session/call?name=by-name&call={incident.last_seq}"))
    alert = rendering.sentence("opened", "system", event_facts.incident_facts(incident))
    assert "with any arguments" in alert
    said = [*told, *shown.values(), call, alert, *Approval.objects.values_list("summary", flat=True)]
    assert any(told)
    assert [found for one in said for found in CLAIM.findall(one)] == []
