"""The page of settings: a tile for each part, with its present state."""

from django.utils import timezone

from detection.models import ApiKey, Erasure, Membership, Project, QuarantinedEvent, Role, Session
from tests.console.scenes import text


def test_each_tile_says_its_present_state(world):
    page = text(world.client.get(f"{world.base}/settings"))
    key_count = ApiKey.objects.filter(project=world.project, revoked_at=None).count()
    assert f"Keys {key_count} key" in page
    session = Session.objects.filter(project=world.project).first()
    QuarantinedEvent.objects.create(project=world.project, session=session, seq=1, type="call", error="x")
    Erasure.objects.create(
        project=world.project, of="session", name="gone", name_digest="0" * 32, requested_by="a"
    )
    page = text(world.client.get(f"{world.base}/settings"))
    assert "Ingest Requests, 1 quarantined event" in page
    assert "Erasure 1 erasure in progress" in page
    Erasure.objects.update(finished_at=timezone.now(), name="")
    assert "; 1 receipt" in text(world.client.get(f"{world.base}/settings"))


def test_other_projects_do_not_count(world):
    other_project = Project.objects.create(slug="other", name="Other")
    before = text(world.client.get(f"{world.base}/settings"))
    Erasure.objects.create(
        project=other_project, of="session", name="gone", name_digest="0" * 32, requested_by="a"
    )
    assert text(world.client.get(f"{world.base}/settings")) == before


def test_a_tile_that_only_admins_may_open_is_theirs(world):
    assert "Erasure" in text(world.client.get(f"{world.base}/settings"))
    Membership.objects.filter(user=world.user, project=world.project).update(role=Role.VIEWER)
    assert "Erasure" not in text(world.client.get(f"{world.base}/settings"))
