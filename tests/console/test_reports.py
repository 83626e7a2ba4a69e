"""Reports behind a link: open to whoever has it, for thirty days, until it is revoked, without arguments and results."""

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from detection.models import AuditEntry, Incident, Project, Report, Session
from tests.console.scenes import loop, make_world
from tests.support.projects import make_member, make_project

pytestmark = pytest.mark.django_db


@pytest.fixture
def world():
    world = make_world()
    loop(
        world.project, "paid", tool="search_paid", agent="<b>one</b>", calls=6, cost_usd=0.5,
        arguments='{"secret": "hunter2"}',
    )  # fmt: skip
    yesterday = timezone.now() - timedelta(days=1)
    Incident.objects.update(opened_at=yesterday, last_seen_at=yesterday)
    Session.objects.update(last_event_at=yesterday)
    return world


@pytest.fixture
def link(world):
    answer = world.client.post(f"{world.base}/insights/reports")
    return re.search(r'href="http://testserver(/reports/[^"]+)"', answer.content.decode())[1]


def words_of(html):
    return " ".join(re.sub("<[^>]*>", " ", html).split())


def test_a_report_needs_no_account_and_has_no_arguments(world, link):
    answer = Client().get(link)
    assert answer.status_code == 200
    page = answer.content.decode()
    assert "Loops cost $3.00 in these 7 days." in words_of(page)
    assert len(re.findall(r"<dt", page)) == 4
    assert "search_paid" in page.partition("Most expensive loops")[2]
    assert "search_paid</span>" in page.partition("What to do")[2].partition("Most expensive")[0]
    assert "hunter2" not in page
    assert "<b>one</b>" not in page
    assert answer["X-Robots-Tag"] == "noindex"
    assert "no-store" in answer["Cache-Control"]
    leads_to = re.findall(r'href="(/p/[^"]+)"', page)
    assert leads_to
    for url in leads_to:
        assert Client().get(url.replace("&amp;", "&")).status_code == 302, url  # to sign in
        assert world.client.get(url.replace("&amp;", "&")).status_code == 200, url


def test_the_token_is_stored_as_a_digest_only(world, link):
    token = link.rpartition("/")[2]
    report = Report.objects.get()
    assert token not in str(report.__dict__)
    assert not AuditEntry.objects.filter(after__icontains=token).exists()
    assert token not in world.client.get(f"{world.base}/insights/reports").content.decode()
    for other in (f"{token[:-1]}{'a' if token[-1] != 'a' else 'b'}", token[:14], "lgr_", "x" * 300):
        assert Client().get(f"/reports/{other}").status_code == 404, other


def test_a_link_ends_after_thirty_days_when_it_is_revoked_and_with_its_project(world, link):
    report = Report.objects.get()
    assert report.expires_at - report.created_at < timedelta(days=30, seconds=1)
    Report.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert Client().get(link).status_code == 404
    Report.objects.update(expires_at=timezone.now() + timedelta(days=1))
    Project.objects.update(archived_at=timezone.now())
    assert Client().get(link).status_code == 404
    Project.objects.update(archived_at=None)
    assert Client().get(link).status_code == 200
    revoke = {"action": "revoke", "id": report.public_id}
    assert world.client.post(f"{world.base}/insights/reports", revoke).status_code == 302
    assert Client().get(link).status_code == 404
    assert "No links yet" in world.client.get(f"{world.base}/insights/reports").content.decode()
    actions = AuditEntry.objects.filter(action__startswith="report.").values_list("action", flat=True)
    assert sorted(actions) == ["report.create", "report.revoke"]


def test_only_admins_create_and_revoke_links_of_their_own_project(world, link):
    viewer, report = Client(), Report.objects.get()
    viewer.force_login(make_member(world.project, "viewer"))
    page = viewer.get(f"{world.base}/insights/reports")
    assert (page.status_code, "Revoke" in page.content.decode()) == (200, False)
    assert viewer.post(f"{world.base}/insights/reports").status_code == 403
    other, admin = make_project("other"), Client()
    admin.force_login(make_member(other, "admin"))
    admin.post("/p/other/insights/reports", {"action": "revoke", "id": report.public_id})
    assert Client().get(link).status_code == 200


def test_what_was_called_fine_since_is_in_no_report(world, link):
    Incident.objects.update(label="false_alarm")
    page = words_of(Client().get(link).content.decode())
    assert "0 loops began in these 7 days; no cost of them is known." in page
    assert "Fix" not in page


def test_a_link_lasts_as_long_as_the_secret_key_under_which_it_was_made(world, link, settings):
    settings.SECRET_KEY, settings.SECRET_KEY_FALLBACKS = (
        "another key of many characters, and more",
        [settings.SECRET_KEY],
    )
    assert Client().get(link).status_code == 200
    settings.SECRET_KEY_FALLBACKS = []
    assert Client().get(link).status_code == 404
