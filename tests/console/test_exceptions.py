"""The undo of an exception on the page of its incident: it leaves later settings alone, or says that it cannot."""

from datetime import timedelta

import pytest
from django.utils import timezone

from detection.models import AuditEntry, IncidentActivity, Override
from detection.services.policies import overrides
from tests.console.scenes import text

pytestmark = pytest.mark.django_db
SCOPE = "agent:researcher"


@pytest.fixture
def incident_page(world):
    return f"{world.base}/incidents/{world.incident.public_id}"


def save_exception(world, incident_page, where, **more):
    form = {"action": "fine", "ids": world.incident.loop.public_id, "where": where, "note": "mock"}
    form |= {"run": world.incident.public_id, "next": incident_page, **more}
    saved = world.client.post(f"{world.base}/loops/act", form, follow=True)
    assert "Undo exception" in text(saved)


def save_policy(world, **values):
    form = {f"set_{name}": str(value) for name, value in values.items()} | {"note": "ours"}
    saved = world.client.post(f"{world.base}/policies/settings?scope={SCOPE}", form, follow=True)
    assert "Override saved" in text(saved)


def stored():
    row = Override.objects.filter(agent="researcher").first()
    return row.values if row else None


def test_a_plain_undo_deletes_the_override_that_the_exception_created(world, incident_page):
    save_exception(world, incident_page, "agent")
    assert stored()["max_repeats"] > 4
    assert "Exception undone" in text(world.client.post(f"{incident_page}/exception/undo", follow=True))
    assert stored() is None
    assert AuditEntry.objects.filter(action="incident.exception_undone").count() == 1


def test_settings_that_were_set_since_survive_an_undo(world, incident_page):
    save_exception(world, incident_page, "agent")
    save_policy(world, **stored(), preset="conservative")
    assert "Undo exception" in text(world.client.get(incident_page, follow=True))
    assert "Exception undone" in text(world.client.post(f"{incident_page}/exception/undo", follow=True))
    assert stored() == {"preset": "conservative"}


def test_an_exception_that_was_changed_since_has_a_link_in_place_of_the_undo(world, incident_page):
    save_exception(world, incident_page, "agent")
    save_policy(world, **{**dict.fromkeys(stored(), 3), "preset": "conservative"})
    left = stored()
    shown = world.client.get(incident_page, follow=True)
    assert "Changed since, see Policies" in text(shown)
    assert "Undo exception" not in text(shown)
    assert (
        'href="' + f"{world.base}/policies/settings?scope=agent%3Aresearcher" + '"' in shown.content.decode()
    )
    listed = world.client.get(f"{world.base}/policies")
    assert "no longer in effect: changed since" in text(listed)
    assert "exception/undo" not in listed.content.decode()
    denied = text(world.client.post(f"{incident_page}/exception/undo", follow=True))
    assert "The settings were changed since the exception was saved; change them in Policies." in denied
    assert stored() == left
    assert not AuditEntry.objects.filter(action="incident.exception_undone").exists()
    save_exception(world, incident_page, "agent")
    assert "Exception undone" in text(world.client.post(f"{incident_page}/exception/undo", follow=True))
    assert stored() == left


def test_an_exception_of_a_session_that_was_changed_since_leads_to_the_session(world, incident_page):
    save_exception(world, incident_page, "run")
    world.session.refresh_from_db()
    world.session.policy_values = dict.fromkeys(world.session.policy_values, 2)
    world.session.save()
    shown = world.client.get(incident_page, follow=True)
    assert "Changed since, see its session" in text(shown)
    assert "Undo exception" not in text(shown)
    assert "on the page of the session" in text(
        world.client.post(f"{incident_page}/exception/undo", follow=True)
    )
    world.session.refresh_from_db()
    assert {*world.session.policy_values.values()} == {2}


def test_an_undo_in_the_list_of_exceptions_stays_there(world, incident_page):
    save_exception(world, incident_page, "agent")
    page = f"{world.base}/policies"
    assert f'name="next" value="{page}#fine"' in world.client.get(page).content.decode()
    undone = world.client.post(f"{incident_page}/exception/undo", {"next": page})
    assert undone["Location"] == page
    assert (
        world.client.post(f"{incident_page}/exception/undo", {"next": "//evil.example"})["Location"]
        == incident_page
    )


def test_an_exception_whose_time_is_over_is_listed_as_expired(world, incident_page):
    save_exception(world, incident_page, "agent", expires="1d", note="until the deploy")
    page = f"{world.base}/policies"
    kept = world.client.get(page)
    assert "· expired" not in text(kept)
    # The note of the incident has the time as text, the list an element of its own.
    saved = IncidentActivity.objects.get(action="excepted")
    until = Override.objects.get(agent="researcher").expires_at
    assert saved.note.endswith(f" until {until:%Y-%m-%d %H:%M} UTC")
    assert f"{until:%Y-%m-%d %H:%M}" not in text(kept)
    assert f'until <time datetime="{until:%Y-%m-%dT%H:%M:%S}Z"' in " ".join(kept.content.decode().split())
    past = timezone.now() - timedelta(seconds=1)
    Override.objects.update(expires_at=past)
    saved.before["expires_at"] = past.isoformat()
    saved.save()
    for _ in range(2):
        listed = world.client.get(page)
        assert "until the deploy" in text(listed)
        assert "expired" in text(listed)
        assert "changed since" not in text(listed)
        assert "exception/undo" not in listed.content.decode()
        overrides.expire_due()  # the list is the same before and after
