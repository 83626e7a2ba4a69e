"""Records are looked at and not touched: approvals, the judge's calls, alerts, the audit; each within its projects."""

import html
import re

import pytest
from django.contrib import admin
from django.contrib.auth.models import Permission
from django.test import Client

from detection.models import AuditEntry, Incident
from tests.admin.records import make_records, shared_records

pytestmark = pytest.mark.django_db
RECORDS = (
    "alertdestination", "alertroute", "notification", "approval", "judgecall", "auditentry", "incident", "session",
    "gatewaybackend", "modelprice",
)  # fmt: skip
HOSTILE = '"><script>alert(1)</script>'


@pytest.fixture(scope="module")
def shared(django_db_setup, django_db_blocker):
    with shared_records(django_db_blocker) as records:
        yield records


@pytest.fixture
def records(shared, db):
    world, rows = shared
    return world.copy(), rows


def text_of(client, path):
    answer = client.get(path)
    assert answer.status_code == 200, path
    return answer.content.decode()


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_listed_found_and_shown(records, name):
    world, rows = records
    page = text_of(world.client, f"/admin/detection/{name}/")
    assert f"/admin/detection/{name}/{rows[name].pk}/change/" in page
    own = (getattr(rows[name], field, "") for field in ("public_id", "external_id", "action"))
    words = next(filter(None, own), "judge-1")
    found = text_of(world.client, f"/admin/detection/{name}/?q={words}")
    assert f"/admin/detection/{name}/{rows[name].pk}/change/" in found
    nothing = text_of(world.client, f"/admin/detection/{name}/?q=nobody-knows-this")
    assert f"/admin/detection/{name}/{rows[name].pk}/change/" not in nothing
    text_of(world.client, f"/admin/detection/{name}/{rows[name].pk}/change/")


@pytest.mark.promise("SEC-35")
@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_neither_added_nor_changed_nor_deleted(records, name):
    world, rows = records
    row = rows[name]
    before = type(row).objects.filter(pk=row.pk).values().get()
    place = f"/admin/detection/{name}/"
    for path in ("add/", f"{row.pk}/change/", f"{row.pk}/delete/"):
        assert world.client.post(place + path, {"post": "yes", "name": "x"}).status_code == 403, path
    world.client.post(
        place, {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"}, follow=True
    )
    assert type(row).objects.filter(pk=row.pk).values().get() == before


def test_only_settings_projects_people_and_keys_are_changed_here(records):
    world, rows = records
    changed = {"override", "tooloverride", "project", "apikey"}
    pages = [page for page in admin.site._registry.values() if page.model._meta.app_label == "detection"]
    assert {page.model._meta.model_name for page in pages} == changed | set(RECORDS)
    for page in pages:
        if page.model._meta.model_name not in changed:
            assert [*page.actions] == [], page
    world.client.post(
        "/admin/detection/incident/", {"action": "resolve", "_selected_action": [rows["incident"].pk]}
    )
    assert Incident.objects.get(pk=rows["incident"].pk).status == rows["incident"].status


@pytest.mark.parametrize("name", ["incident", "session", "notification"])
def test_a_record_leads_to_its_page_in_the_console(records, name):
    world, _ = records
    links = re.findall(r'href="(/p/[^"]*)">open', text_of(world.client, f"/admin/detection/{name}/"))
    assert links
    for link in links:
        assert world.client.get(html.unescape(link), follow=True).status_code == 200, link


def test_the_secrets_of_a_destination_are_on_no_page(records):
    world, rows = records
    hook = rows["alertdestination"]
    pages = [text_of(world.client, f"/admin/detection/{name}/{rows[name].pk}/change/") for name in RECORDS]
    pages += [text_of(world.client, f"/admin/detection/{name}/") for name in RECORDS]
    for page in pages:
        assert hook.address not in page
        assert hook.signing_secrets[0] not in page


def test_a_message_is_shown_with_its_attempts(records):
    world, rows = records
    attempt = rows["notification"].attempts.get()
    page = text_of(world.client, f"/admin/detection/notification/{rows['notification'].pk}/change/")
    assert str(attempt.status) in page
    assert f"/p/{world.project.slug}/alerts/notifications/" in text_of(
        world.client, "/admin/detection/notification/"
    )


def test_the_audit_is_filtered_by_area_and_searched_by_who_and_what(records):
    world, _ = records
    place = "/admin/detection/auditentry/"
    entry = AuditEntry.objects.filter(action="destination.create").first()
    link = f"{place}{entry.pk}/change/"
    assert link in text_of(world.client, f"{place}?area=destination")
    assert link not in text_of(world.client, f"{place}?area=key")
    assert link in text_of(world.client, f"{place}?area=nonsense")
    assert link in text_of(world.client, f"{place}?q={entry.actor}")
    assert link in text_of(world.client, f"{place}?q=destination.cr")
    assert link not in text_of(world.client, f"{place}?q=key.")
    shown = text_of(world.client, link)
    assert entry.action in shown
    assert "signing_secret_count" in shown


def test_every_area_of_the_audit_can_be_chosen(records):
    from detection.admin.records import AREAS

    assert {
        action.partition(".")[0] for action in AuditEntry.objects.values_list("action", flat=True)
    } <= set(AREAS)


def test_staff_see_the_records_of_their_projects_only_and_no_other_projects_name(records, receiver):
    _, foreign = records
    world, rows = make_records(receiver)
    world.user.is_staff = True
    world.user.save()
    world.user.user_permissions.set(Permission.objects.filter(content_type__app_label="detection"))
    client = Client()
    client.force_login(world.user)
    for name in RECORDS:
        place = f"/admin/detection/{name}/"
        page = text_of(client, place)
        assert f"/{rows[name].pk}/change/" in page, name
        assert f"{place}{foreign[name].pk}/change/" not in page, name
        assert foreign["incident"].project.name not in page, name
        assert client.get(f"{place}{foreign[name].pk}/change/").status_code == 302, name
        by_project = client.get(f"{place}?project__id__exact={foreign['incident'].project_id}")
        assert f"{place}{foreign[name].pk}/change/" not in by_project.content.decode(), name


@pytest.mark.promise("SEC-11")
def test_hostile_names_stay_text(receiver):
    world, rows = make_records(receiver, session=HOSTILE, tool=HOSTILE, agent=HOSTILE)
    world.user.is_staff = world.user.is_superuser = True
    world.user.save()
    for name in RECORDS:
        for path in ("", f"{rows[name].pk}/change/"):
            assert "<script>alert(1)" not in text_of(world.client, f"/admin/detection/{name}/{path}")
    assert "&lt;script&gt;alert(1)" in text_of(world.client, "/admin/detection/approval/")
