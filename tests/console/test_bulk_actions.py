"""Actions on all incidents that match a filter: as of when the list was seen, with undo for exactly what was done."""

import re

import pytest

from detection.models import Incident
from tests.console.scenes import make_world, text
from tests.support.alerts import make_incident

pytestmark = pytest.mark.django_db


def labels():
    return dict(Incident.objects.order_by("pk").values_list("loop_id", "label"))


def test_all_that_match_become_not_a_loop_and_are_restored_by_undo():
    world = make_world()
    Incident.objects.all().delete()
    for number in range(60):
        make_incident(world.project, kind="cycle", loop_id=f"c-{number}", tool="bash", status="open")
    make_incident(world.project, kind="repeat", loop_id="other", tool="bash", status="open")
    address = f"{world.base}/incidents?q=kind:cycle"
    page = world.client.get(address)
    assert "all 60 that match" in text(page)
    up_to = re.search(r'name="up_to" value="(\d+)"', page.content.decode())[1]
    make_incident(world.project, kind="cycle", loop_id="late", tool="bash", status="open")
    form = {
        "matching": "yes",
        "filter": "q=kind:cycle",
        "up_to": up_to,
        "action": "label:false_alarm",
        "next": address,
    }
    done = world.client.post(f"{world.base}/incidents/act", form, follow=True)
    assert "60 incidents labelled." in text(done)
    wanted = {f"c-{number}": "false_alarm" for number in range(60)} | {"other": "", "late": ""}
    assert labels() == wanted
    undo = re.search(r'name="ids" value="(batch:[^"]+)"', done.content.decode())[1]
    again = world.client.post(
        f"{world.base}/incidents/act", {"action": "undo", "ids": undo, "next": address}, follow=True
    )
    assert "60 incidents restored." in text(again)
    assert set(labels().values()) == {""}
    stranger = world.client.post(
        f"{world.base}/incidents/act", {"action": "undo", "ids": "batch:none"}, follow=True
    )
    assert "No incident was selected." in text(stranger)
