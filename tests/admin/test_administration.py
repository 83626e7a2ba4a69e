"""The administration: same validation and audit as the console, and effect on the next verdict."""

import re

import pytest
from django.contrib import admin
from django.test import Client

from detection.engine.scopes import PROJECT, Scope
from detection.models import ApiKey, AuditEntry, Override, Project, ToolOverride
from detection.services.audit import SYSTEM
from detection.services.policies import overrides
from detection.web.forms import GROUPS
from tests.console.scenes import ask, make_world
from tests.support.shared_rows import shared_rows

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def shared_world(django_db_setup, django_db_blocker):
    with shared_rows(django_db_blocker):
        world = make_world()
        world.user.is_staff = world.user.is_superuser = True
        world.user.save()
        yield world


@pytest.fixture
def world(shared_world, db):
    return shared_world.copy()


PAGES = ("override", "tooloverride", "apikey", "project")


@pytest.mark.parametrize("name", PAGES)
def test_every_list_opens_and_searches(world, name):
    assert world.client.get(f"/admin/detection/{name}/").status_code == 200
    assert world.client.get(f"/admin/detection/{name}/?q=s-1").status_code == 200


def test_a_model_override_saved_here_changes_the_next_verdict(world):
    answer = world.client.post(
        "/admin/detection/override/add/",
        {
            "project": world.project.pk,
            "backend": "local",
            "model": "q",
            "set_max_repeats": "3",
            "set_repeat_warn_at": "0",
            "note": "try",
        },
    )
    assert answer.status_code == 302
    assert Override.objects.get(model="q").values == {"max_repeats": 3, "repeat_warn_at": 0}
    decisions = [ask(world.project, "new", n, backend="local", model="q").decision for n in range(3)]
    assert decisions[0] == "allow"
    assert AuditEntry.objects.filter(action="policy.save", actor=world.user.get_username()).exists()


def test_an_agents_override_is_saved_here_and_wins_over_that_of_the_project(world):
    overrides.save_override(world.project.pk, PROJECT, {"max_repeats": 9}, SYSTEM, "slow")
    add = {"project": world.project.pk, "agent": "deploy", "set_max_repeats": "2"}
    assert world.client.post("/admin/detection/override/add/", add).status_code == 302
    decisions = [
        ask(world.project, "new", n, agent="deploy", backend="local", model="q").decision for n in range(2)
    ]
    assert decisions == ["allow", "block"]
    both = world.client.post("/admin/detection/override/add/", {**add, "backend": "openai"})
    assert both.status_code == 200
    assert Override.objects.filter(agent="deploy").count() == 1


def test_an_override_is_changed_in_real_fields(world):
    row = Override.objects.get(model="gpt-5")
    url = f"/admin/detection/override/{row.pk}/change/"
    page = world.client.get(url).content.decode()
    assert re.search(r'name="set_max_repeats"[^>]*value="5"|value="5"[^>]*name="set_max_repeats"', page)
    assert 'name="values"' not in page
    assert world.client.post(url, {"set_max_repeats": "3", "note": "stricter"}).status_code == 302
    row.refresh_from_db()
    assert row.values == {"max_repeats": 3}


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"set_max_repeats": "1"}, "must be between 2 and 1,000"),
        ({"set_mode": "sing"}, "must be one of"),
        ({"set_max_repeats": "90"}, "Give a reason"),
        ({}, "Set at least one value"),
    ],
)
def test_a_value_that_the_engine_rejects_is_rejected_here_with_the_same_message(world, given, words):
    place = {"project": world.project.pk, "backend": "b", "model": "m"}
    answer = world.client.post("/admin/detection/override/add/", {**place, **given})
    assert answer.status_code == 200
    assert words.lower() in answer.content.decode().lower()
    assert not Override.objects.filter(model="m").exists()


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"model": "m"}, "a model needs a backend"),
        ({"agent": "a", "backend": "b"}, "an agent has neither"),
        ({"project": "", "backend": "b"}, "a backend needs a project"),
        ({"backend": "openai", "model": "gpt-5"}, "This scope already has an override."),
    ],
)
def test_invalid_scopes_and_existing_scopes_are_rejected(world, names, words):
    given = {"project": world.project.pk, "set_max_repeats": "3", **names}
    answer = world.client.post("/admin/detection/override/add/", given)
    assert answer.status_code == 200
    assert words in answer.content.decode()
    assert Override.objects.count() == 1


def test_an_override_shows_what_it_inherits(world):
    row = Override.objects.get(model="gpt-5")
    overrides.save_override(world.project.pk, PROJECT, {"ttl_seconds": 77}, SYSTEM)
    page = world.client.get(f"/admin/detection/override/{row.pk}/change/").content.decode()
    assert re.search(
        r'name="set_ttl_seconds"[^>]*placeholder="1 min 17 s"|placeholder="1 min 17 s"[^>]*name="set_ttl_seconds"',
        page,
    )


def test_the_settings_of_an_override_come_first_and_no_reason_is_filled_in(world):
    overrides.save_override(world.project.pk, PROJECT, {"cycle_min_laps": 2}, SYSTEM, "short cycles only")
    row = Override.objects.get(backend="", project=world.project)
    page = world.client.get(f"/admin/detection/override/{row.pk}/change/").content.decode()
    assert "In effect: 2, set here. Without it: 3, from preset standard." in page
    assert "In effect: 4, from preset standard." in page
    assert "Reason of the last change: short cycles only" in page
    assert not re.search(r'<input[^>]*name="note"[^>]*value="', page)
    fieldsets = dict(admin.site.get_model_admin(Override).get_fieldsets(None, row))
    assert [*fieldsets][:2] == [None, "Set here"]
    assert fieldsets["Set here"] == {"fields": ["set_cycle_min_laps"]}
    assert "set_cycle_min_laps" not in fieldsets[GROUPS["cycle"]]["fields"]
    assert [title for title, more in fieldsets.items() if more.get("classes")] == [*GROUPS.values()]


def test_every_wrong_setting_is_shown_at_once(world):
    row = Override.objects.get(model="gpt-5")
    given = {"set_max_repeats": "1", "set_mode": "sing", "set_ttl_seconds": "60"}
    page = world.client.post(f"/admin/detection/override/{row.pk}/change/", given).content.decode()
    assert "Must be between 2 and 1,000." in page
    assert "Must be one of break" in page
    row.refresh_from_db()
    assert row.values == {"max_repeats": 5}


def test_deleting_an_override_goes_through_the_service(world):
    row = Override.objects.get(model="gpt-5")
    version = world.project.policy_version
    url = f"/admin/detection/override/{row.pk}/delete/"
    assert 'name="note"' in world.client.get(url).content.decode()
    world.client.post(url, {"post": "yes"})
    world.project.refresh_from_db()
    assert not Override.objects.filter(pk=row.pk).exists()
    assert world.project.policy_version > version


def test_deleting_a_strict_override_needs_a_reason(world):
    overrides.save_override(world.project.pk, PROJECT, {"max_repeats": 2}, SYSTEM)
    overrides.save_override(
        world.project.pk, Scope("tool", pattern="crm_*"), values={"max_repeats": 2}, actor=SYSTEM
    )
    for row in (
        Override.objects.get(backend="", project=world.project),
        ToolOverride.objects.get(pattern="crm_*"),
    ):
        url = f"/admin/detection/{row._meta.model_name}/{row.pk}/delete/"
        refused = world.client.post(url, {"post": "yes"}, follow=True)
        assert "This weakens detection" in refused.content.decode()
        assert type(row).objects.filter(pk=row.pk).exists()
        done = world.client.post(url, {"post": "yes", "note": "not needed"}, follow=True)
        assert "deleted successfully" in done.content.decode()
        assert not type(row).objects.filter(pk=row.pk).exists()
        assert AuditEntry.objects.latest("pk").after["note"] == "not needed"


def test_a_rule_that_weakens_detection_needs_a_reason(world):
    given = {
        "project": world.project.pk, "pattern": "crm_*", "exempt": "on", "ignore_arguments": "[]", "volatile_result_fields": "[]",
    }  # fmt: skip
    refused = world.client.post("/admin/detection/tooloverride/add/", given)
    assert "This weakens detection (Exempt). Give a reason." in refused.content.decode()
    assert not ToolOverride.objects.filter(pattern="crm_*").exists()
    world.client.post("/admin/detection/tooloverride/add/", {**given, "note": "a mock"})
    stored = ToolOverride.objects.get(pattern="crm_*")
    url = f"/admin/detection/tooloverride/{stored.pk}/change/"
    stricter = {"ignore_arguments": "[]", "volatile_result_fields": "[]", "set_max_repeats": "9", "note": ""}
    assert (
        "weakens detection (Limit for identical calls)" in world.client.post(url, stricter).content.decode()
    )
    assert world.client.post(url, {**stricter, "set_max_repeats": "3"}).status_code == 302
    stored.refresh_from_db()
    assert (stored.exempt, stored.values) == (False, {"max_repeats": 3})


def test_a_tool_rule_is_saved_with_its_settings(world):
    world.client.post(
        "/admin/detection/tooloverride/add/",
        {
            "project": world.project.pk,
            "pattern": "crm_*",
            "tool_class": "poll",
            "ignore_arguments": '["request_id"]',
            "volatile_result_fields": "[]",
            "set_max_repeats": "8",
            "note": "asks for a state",
        },
    )
    rule = ToolOverride.objects.get(pattern="crm_*")
    assert (rule.tool_class, rule.ignore_arguments, rule.values) == (
        "poll",
        ["request_id"],
        {"max_repeats": 8},
    )


def test_a_keys_token_is_shown_on_the_next_page_and_nowhere_else(world):
    answer = world.client.post(
        "/admin/detection/apikey/add/",
        {
            "project": world.project.pk,
            "name": "by admin",
            "scopes": ["guard"],
            "expires_at_0": "",
            "expires_at_1": "",
        },
        follow=True,
    )
    token = re.search(r"lg_[0-9a-z]{10}_[0-9a-f]{72}", answer.content.decode())
    assert token is not None
    assert token[0] not in world.client.get("/admin/detection/apikey/").content.decode()
    key = ApiKey.objects.get(name="by admin")
    world.client.post("/admin/detection/apikey/", {"action": "revoke", "_selected_action": [key.pk]})
    key.refresh_from_db()
    assert key.revoked_at is not None


def test_people_who_are_no_staff_stay_outside_without_a_loop_of_redirects(world):
    other = make_world()
    answer = other.client.get("/admin/", follow=True)
    assert answer.redirect_chain[-1][0].startswith(f"/p/{other.project.slug}")


def test_staff_see_only_what_they_administer(world):
    other = make_world()
    other.user.is_staff = True
    other.user.save()
    from django.contrib.auth.models import Permission

    other.user.user_permissions.set(Permission.objects.filter(content_type__app_label="detection"))
    client = Client()
    client.force_login(other.user)
    page = client.get("/admin/detection/incident/").content.decode()
    assert other.incident.public_id in page
    assert world.incident.public_id not in page
    assert client.get(f"/admin/detection/incident/{world.incident.pk}/change/").status_code == 302


@pytest.mark.promise("SEC-35")
def test_lists_never_count_a_whole_table():
    admin.autodiscover()
    for page in admin.site._registry.values():
        if page.model._meta.app_label == "detection":
            assert not page.show_full_result_count, page
            assert page.paginator.__name__ == "BoundedPaginator", page


def test_the_creator_of_a_project_is_its_admin_and_the_last_admin_stays(world):
    empty = {"memberships-TOTAL_FORMS": "0", "memberships-INITIAL_FORMS": "0"}
    values = {"name": "Made here", "slug": "made-here", "retention_days": "30", "redacted_names": "userEmail"}
    values |= {"spike_action": "reject", "spike_limit": "500", "pack_after_days": "3"}
    page = world.client.post("/admin/detection/project/add/", values | empty)
    assert "must be 0 (never), or between 7 and 3,650" in page.content.decode()
    values["pack_after_days"] = "30"
    assert world.client.post("/admin/detection/project/add/", values | empty).status_code == 302
    project = Project.objects.get(slug="made-here")
    assert project.redacted_names == ["user_email"]
    assert (project.spike_action, project.spike_limit, project.pack_after_days) == ("reject", 500, 30)
    admin = project.memberships.get()
    assert (admin.user, admin.role) == (world.user, "admin")
    row = {"id": str(admin.pk), "project": str(project.pk), "user": str(world.user.pk), "role": "viewer"}
    rows = {"memberships-TOTAL_FORMS": "1", "memberships-INITIAL_FORMS": "1"}
    rows |= {f"memberships-0-{name}": value for name, value in row.items()}
    url = f"/admin/detection/project/{project.pk}/change/"
    for change in ({}, {"memberships-0-role": "admin", "memberships-0-DELETE": "on"}):
        page = world.client.post(url, values | rows | change)
        assert "The project needs an admin." in page.content.decode()
    assert project.memberships.get().role == "admin"


def version_in(page):
    return re.search(r'name="version" value="(\w*)"', page.content.decode())[1]


def test_the_second_editor_sees_what_is_stored_and_replaces_it_only_knowingly(world):
    pk = world.project.pk
    row = overrides.save_override(pk, PROJECT, {"max_repeats": 9}, SYSTEM, "slow")
    address = f"/admin/detection/override/{row.pk}/change/"
    form = {"set_max_repeats": "7", "version": version_in(world.client.get(address))}
    overrides.save_override(pk, PROJECT, {"max_repeats": 8, "mode": "warn"}, SYSTEM, "theirs")
    refused = world.client.post(address, form)
    words = refused.content.decode()
    assert "This was changed in the meantime" in words
    assert "Stored now: 8. Yours: 7." in words
    assert "Stored now: warn. Yours: nothing." in words
    row.refresh_from_db()
    assert row.values == {"max_repeats": 8, "mode": "warn"}
    assert world.client.post(address, {**form, "version": version_in(refused)}).status_code == 302
    row.refresh_from_db()
    assert row.values == {"max_repeats": 7}
    stale = world.client.get(address.replace("change", "delete"))
    overrides.save_override(pk, PROJECT, {"max_repeats": 6}, SYSTEM)
    world.client.post(address.replace("change", "delete"), {"post": "yes", "version": version_in(stale)})
    assert Override.objects.get(pk=row.pk).values == {"max_repeats": 6}
    # A project in the same way.
    address = f"/admin/detection/project/{pk}/change/"
    shown = world.client.get(address)
    form = {**shown.context["adminform"].form.initial, "name": "Mine", "version": version_in(shown)}
    form |= {"memberships-TOTAL_FORMS": 0, "memberships-INITIAL_FORMS": 0}
    Project.objects.filter(pk=pk).update(name="Theirs")
    refused = world.client.post(
        address, {name: value for name, value in form.items() if value not in (None, [])}
    )
    assert "Stored now: Theirs. Yours: Mine." in refused.content.decode()
    world.project.refresh_from_db()
    assert world.project.name == "Theirs"
