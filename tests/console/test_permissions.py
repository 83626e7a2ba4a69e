"""Roles and tenants, from the table of addresses: a new address fails here until its rights are written down."""

import pytest
from django.test import Client
from django.urls import reverse

from detection.console.urls import urlpatterns
from detection.models import AlertDestination, AlertRoute, Notification, Role
from tests.console.scenes import loop_of, make_world, what_if_of
from tests.support.projects import make_member, make_project

pytestmark = pytest.mark.django_db

READ, OPERATE, ADMINISTER = Role.VIEWER, Role.OPERATOR, Role.ADMIN
RIGHTS = {
    # name: (who may get it, who may post to it)
    "project": (READ, None),
    "attention": (READ, None),
    "live": (READ, None),
    "sessions": (READ, None),
    "now": (READ, None),
    "settings": (READ, None),
    "live_rows": (READ, None),
    "session_tabs": (READ, None),
    "change_sessions": (None, OPERATE),
    "remove_demo": (None, ADMINISTER),
    "session_by_name": (READ, None),
    "session_call": (READ, None),
    "session_act": (None, OPERATE),
    "session": (READ, None),
    "loops": (READ, None),
    "loops_act": (None, OPERATE),
    "loops_read": (None, READ),
    "loops_fine": (None, OPERATE),
    "loop_history": (READ, None),
    "loop_fine": (READ, None),
    "loop": (READ, None),
    "patterns": (READ, None),
    "pattern": (READ, None),
    "incidents": (READ, None),
    "incident": (READ, None),
    "undo_exception": (None, ADMINISTER),
    "policies": (READ, None),
    "policy_settings": (READ, ADMINISTER),
    "export_policies": (READ, None),
    "import_policies": (None, ADMINISTER),
    "change_setting": (READ, OPERATE),
    "verify_setting": (READ, None),
    "tool_rules": (READ, ADMINISTER),
    "earlier_tool_rule": (READ, None),
    "earlier_what_ifs": (READ, None),
    "earlier_what_if": (READ, None),
    "earlier_suggestions": (READ, None),
    "earlier_exceptions": (READ, None),
    "earlier_message_templates": (READ, None),
    "policy_history": (READ, ADMINISTER),
    "what_ifs": (READ, None),
    "create_what_if": (None, OPERATE),
    "what_if": (READ, None),
    "cancel_what_if": (None, OPERATE),
    "save_what_if": (None, OPERATE),
    "suggestions_act": (None, ADMINISTER),
    "try_suggestion": (None, OPERATE),
    "approvals": (READ, None),
    "held": (READ, None),
    "decide_approval": (None, OPERATE),
    "decide_group": (None, OPERATE),
    "undo_answer": (None, OPERATE),
    "label_ruling": (None, OPERATE),
    "delete_remembered": (None, OPERATE),
    "message_templates": (READ, ADMINISTER),
    "alerts": (READ, None),
    "alerts_act": (READ, OPERATE),
    "new_alert_route": (ADMINISTER, ADMINISTER),
    "alert_route": (ADMINISTER, ADMINISTER),
    "notification": (READ, None),
    "insights": (READ, None),
    "reports": (READ, ADMINISTER),
    "statistics": (READ, None),
    "connect": (READ, ADMINISTER),
    "connect_attempts": (READ, None),
    "connect_guide": (READ, ADMINISTER),
    "connect_base_url": (READ, ADMINISTER),
    "send_sample": (None, OPERATE),
    "imports": (READ, OPERATE),
    "import": (READ, None),
    "cancel_import": (None, OPERATE),
    "gateway": (READ, None),
    "gateway_act": (None, ADMINISTER),
    "gateway_traffic": (READ, None),
    "prices": (READ, None),
    "save_price": (None, ADMINISTER),
    "delete_price": (None, ADMINISTER),
    "keys": (READ, ADMINISTER),
    "revoke_key": (None, ADMINISTER),
    "tag_key": (None, ADMINISTER),
    "agents": (READ, OPERATE),
    "contained": (READ, None),
    "project_settings": (READ, ADMINISTER),
    "containments": (READ, OPERATE),
    "erasures": (ADMINISTER, ADMINISTER),
    "members": (READ, READ),  # to leave; what else it does has tests of its own
    "ingest": (READ, None),
    "system": (READ, None),
    "quarantine": (READ, OPERATE),
    "filter_values": (READ, None),
    "search": (READ, None),
    "palette": (READ, None),
    "act_on_view": (None, OPERATE),
    "audit": (READ, None),
    "export_list": (READ, None),
}
WITHOUT_PROJECT = {
    "home",
    "sign_in",
    "sign_out",
    "preferences",
    "account",
    "second_factor",
    "sign_in_code",
    "forgotten_password",
    "reset_password",
    "client_wheel",
    "projects",
    "invitation",
    "report",
    None,
}
NAMES = [pattern.name for pattern in urlpatterns if pattern.name in RIGHTS]
ORDER = list(Role.values)


def alert_route(world):
    return AlertRoute.objects.get_or_create(project=world.project, name="all")[0].public_id


def message(world):
    place = {"kind": "webhook", "address": "https://hook.example/", "shown_address": "https://hook.example/…"}
    hook, _ = AlertDestination.objects.get_or_create(project=world.project, name="hook", defaults=place)
    due = {"due_at": world.incident.opened_at}
    return Notification.objects.get_or_create(project=world.project, destination=hook, defaults=due)[
        0
    ].public_id


def addresses(world):
    """The address of each name."""
    a_what_if = what_if_of(world, "session").public_id
    more = {
        "filter_values": ["incidents"],
        "export_list": ["incidents"],
        "session": [world.session.external_id],
        "incident": [world.incident.public_id],
        "loop": [loop_of(world.incident).public_id],
        "loop_fine": [loop_of(world.incident).public_id],
        "pattern": [loop_of(world.incident).public_id],
        "undo_exception": [world.incident.public_id],
        "connect_guide": ["codex"],
        "import": [world.an_import.public_id],
        "cancel_import": [world.an_import.public_id],
        "connect_base_url": ["openai"],
        "alert_route": [alert_route(world)],
        "notification": [message(world)],
        "what_if": [a_what_if],
        "earlier_what_if": [a_what_if],
        "cancel_what_if": [a_what_if],
        "save_what_if": [a_what_if],
    }
    found = {
        name: reverse(f"console:{name}", args=[world.project.slug, *more.get(name, [])]) for name in NAMES
    }
    for name in ("session_by_name", "session_call"):
        found[name] += f"?name={world.session.external_id}&call=1"
    return found


def test_the_rights_of_every_address_are_written_down():
    assert {pattern.name for pattern in urlpatterns} - WITHOUT_PROJECT == set(RIGHTS)


def test_nothing_is_visible_without_signing_in(world):
    stranger = Client()
    for name, url in addresses(world).items():
        for answer in (stranger.get(url), stranger.post(url)):
            assert answer.status_code in (302, 401, 405), name
            if answer.status_code == 302:
                assert answer["Location"].startswith("/sign-in"), name


@pytest.mark.promise("SEC-05")
def test_another_projects_pages_do_not_exist(world):
    other = Client()
    other.force_login(make_member(make_project(), Role.ADMIN))
    for name, url in addresses(world).items():
        for answer in (other.get(url), other.post(url)):
            assert answer.status_code in (404, 405), name
            assert world.session.external_id.encode() not in answer.content, name


@pytest.mark.promise("SEC-06", "SEC-32")
@pytest.mark.parametrize("role", ORDER)
def test_each_role_may_do_what_it_is_for_and_no_more(world, role):
    member = Client()
    member.force_login(make_member(world.project, role))
    for name, url in addresses(world).items():
        may_get, may_post = RIGHTS[name]
        got = member.get(url)
        is_seen = ORDER.index(role) >= ORDER.index(may_get or may_post)
        assert (got.status_code in (200, 301, 302)) == is_seen, (name, got.status_code)
        if may_get is None and is_seen:
            # The address of a form that was rejected leads to the page of the form.
            assert got.status_code == 302
            page = member.get(url, follow=True)
            assert (page.status_code, page.request["PATH_INFO"]) != (200, url), name
            assert page.status_code == 200, name
        posted = member.post(url)
        if may_post is None:
            assert posted.status_code == 405, name
            assert b"Method not allowed" in posted.content
            assert posted.headers["Allow"] == "GET, HEAD"
        else:
            assert (posted.status_code == 403) == (ORDER.index(role) < ORDER.index(may_post)), (
                name,
                posted.status_code,
            )


def test_a_session_and_an_incident_of_another_project_are_not_found_by_name(world):
    mine = make_world()
    assert mine.client.get(f"{mine.base}/sessions/not-mine").status_code == 404
    assert (
        mine.client.get(f"{mine.base}/incidents/{world.incident.public_id}", follow=True).status_code == 404
    )
    theirs = world.incident.loop.public_id
    mine.client.post(f"{mine.base}/loops/act", {"action": "done", "ids": theirs})
    assert mine.client.get(f"{mine.base}/loops/{theirs}/fine").status_code == 404
    world.incident.refresh_from_db()
    assert world.incident.status == "open"


def test_the_servers_settings_are_for_superusers(world):
    assert (
        world.client.post(
            f"{world.base}/policies/settings?scope=server", {"set_max_repeats": "3"}
        ).status_code
        == 403
    )


@pytest.mark.promise("SEC-08")
def test_a_form_from_elsewhere_changes_nothing(world):
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(world.user)
    answer = strict.post(f"{world.base}/session/act", {"name": world.session.external_id, "action": "stop"})
    assert answer.status_code == 403
    world.session.refresh_from_db()
    assert not world.session.is_stopped_by_person
