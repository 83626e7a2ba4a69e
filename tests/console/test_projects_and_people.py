"""Projects, members and invitations, as people use them in the console and agents meet them."""

import re
from datetime import timedelta
from html import unescape

import pytest
from django.contrib.auth import get_user_model
from django.test import Client
from django.utils import timezone

from detection.models import AuditEntry, Erasure, Invitation, Membership, Project, Role, Session
from detection.models.erasures import MAX_ATTEMPTS
from detection.services.keys import principal_cache
from detection.services.retention import erasure
from tests.console.scenes import make_world, text
from tests.support.projects import make_key, make_member, make_project

pytestmark = pytest.mark.django_db
PASSWORD = "correct horse battery"
EVENT = {"type": "call", "session": "s-1", "tool": "t"}


@pytest.fixture(autouse=True)
def _no_cached_keys():
    yield
    principal_cache.clear()


def signed_in(user) -> Client:
    client = Client()
    client.force_login(user)
    return client


def audited(project) -> list[str]:
    return list(AuditEntry.objects.filter(project=project).order_by("pk").values_list("action", flat=True))


def invite(client, base, **form) -> str:
    """The path of a new invitation's link."""
    page = client.post(f"{base}/members", {"action": "invite", "role": "operator", "days": "7", **form})
    assert page.status_code == 200
    return re.search(r"/invitations/lgi_\w+", page.content.decode())[0]


def test_who_creates_a_project_is_its_admin_and_others_do_not_see_it():
    world = make_world()
    answer = world.client.post("/projects", {"name": "Night shift"})
    project = Project.objects.get(name="Night shift")
    assert answer["Location"] == f"/p/{project.slug}/"
    assert Membership.objects.get(project=project, user=world.user).role == Role.ADMIN
    assert world.client.get(f"/p/{project.slug}/settings/project").status_code == 200
    assert audited(project) == ["project.create", "member.add"]
    stranger = signed_in(make_member(make_project()))
    assert "Night shift" not in text(stranger.get("/projects"))
    assert stranger.get(f"/p/{project.slug}/members").status_code == 404
    # A name that exists gets an address of its own, and a wrong one is shown again.
    world.client.post("/projects", {"name": "Night shift"})
    assert Project.objects.filter(name="Night shift").count() == 2
    refused = world.client.post("/projects", {"name": "x" * 121})
    assert refused.status_code == 422
    assert "x" * 121 in refused.content.decode()


def test_a_viewer_of_one_project_creates_none():
    viewer = signed_in(make_member(make_project(), Role.VIEWER))
    assert "can create projects" in text(viewer.get("/projects"))
    assert viewer.post("/projects", {"name": "mine"}).status_code == 403


def test_names_that_were_accepted_under_other_rules_do_not_keep_the_rest_from_being_saved():
    world = make_world()
    Project.objects.filter(pk=world.project.pk).update(redacted_names=["price(usd)"])
    page = world.client.get(f"{world.base}/settings/project").content.decode()
    form = {
        "action": "save", "name": "Renamed", "retention_days": "30", "stores_payloads": "yes",
        "redacted_names": "price(usd)", "version": re.search(r'name="version" value="([^"]+)"', page)[1],
    }  # fmt: skip
    assert world.client.post(f"{world.base}/settings/project", form).status_code == 302
    world.project.refresh_from_db()
    assert (world.project.name, world.project.redacted_names) == ("Renamed", ["price(usd)"])
    assert world.client.post(f"{world.base}/settings/project", form | {"name": "Mine"}).status_code == 409
    added = form | {"redacted_names": "price(usd), foo.*", "version": ""}
    assert "contains ( )" in text(world.client.post(f"{world.base}/settings/project", added))


def test_settings_are_saved_and_a_shorter_retention_asks_first():
    world = make_world()
    Session.objects.filter(pk=world.session.pk).update(last_event_at=timezone.now() - timedelta(days=20))
    form = {
        "action": "save", "name": "Renamed", "retention_days": "14", "stores_payloads": "no",
        "redacted_names": "customerEmail, iban",
    }  # fmt: skip
    asked = world.client.post(f"{world.base}/settings/project", form)
    assert asked.status_code == 422
    assert "This deletes 1 session with their calls. Confirm below." in text(asked)
    assert 'value="Renamed"' in asked.content.decode()
    world.project.refresh_from_db()
    assert world.project.name != "Renamed"
    assert world.client.post(f"{world.base}/settings/project", form | {"deletes": "14"}).status_code == 302
    world.project.refresh_from_db()
    saved = world.project
    assert (saved.name, saved.retention_days, saved.stores_payloads) == ("Renamed", 14, False)
    assert saved.redacted_names == ["customer_email", "iban"]
    entry = AuditEntry.objects.get(action="project.save")
    assert (entry.before["retention_days"], entry.after["retention_days"]) == (30, 14)
    for days in ("6", "3651", "²", ""):
        assert (
            world.client.post(f"{world.base}/settings/project", form | {"retention_days": days}).status_code
            == 422
        )


def test_named_fields_are_redacted_before_they_are_stored():
    world = make_world()
    world.client.post(
        f"{world.base}/settings/project",
        {"action": "save", "name": "x", "retention_days": "30", "stores_payloads": "yes",
         "redacted_names": "customer_email", "redaction_patterns": "EMP-[0-9]{6}\n"},
    )  # fmt: skip
    auth = {"Authorization": f"Bearer {make_key(world.project)}"}
    call = {
        "type": "call",
        "session": "mail",
        "call_id": "c",
        "tool": "send",
        "arguments": {"customerEmail": "a@b.example", "n": 1},
    }
    result = {
        "type": "result",
        "session": "mail",
        "call_id": "c",
        "content": "customer-email: a@b.example sent by EMP-123456",
    }
    sent = Client().post(
        "/api/v1/events", {"events": [call, result]}, content_type="application/json", headers=auth
    )
    assert sent.json()["accepted"] == 2, sent.content
    calls = Client().get("/api/v1/sessions/mail/calls", headers=auth).content.decode()
    assert "a@b.example" not in calls
    assert calls.count("[redacted:field:") >= 2
    assert "sent by [redacted:pattern:" in calls
    form = {"action": "save", "name": "x", "retention_days": "30", "stores_payloads": "yes"}
    for pattern, message in (
        ("(a", "is not a valid RE2 pattern"),
        ("x*", "matches an empty text"),
        ("x" * 201, "more than 200"),
    ):
        answer = world.client.post(
            f"{world.base}/settings/project", form | {"redaction_patterns": f"ok\n{pattern}"}
        )
        assert answer.status_code == 422
        assert message in text(answer)
        assert pattern in answer.content.decode()
    unclosed = world.client.post(f"{world.base}/settings/project", form | {"redaction_patterns": "(a"})
    assert "is not a valid RE2 pattern: missing ): (a." in text(unclosed)
    for names, found in (("email, (unclosed", "'(unclosed' contains (."), ("foo.*", "'foo_*' contains *.")):
        answer = world.client.post(f"{world.base}/settings/project", form | {"redacted_names": names})
        assert answer.status_code == 422
        assert f"{found} Names are compared as a whole; use `redaction_patterns`" in unescape(text(answer))
        assert names in answer.content.decode()


def test_an_archived_project_rejects_agents_and_can_be_read_and_restored():
    world = make_world()
    token = make_key(world.project)
    auth = {"Authorization": f"Bearer {token}"}

    def sent(path, body):
        return Client().post(f"/api/v1{path}", body, content_type="application/json", headers=auth)

    world.client.post(f"{world.base}/settings/project", {"action": "archive"})
    principal_cache.clear()  # in a process of its own this takes effect within a second
    for path, body in (
        ("/events", EVENT),
        ("/guard", {"session": "s-1", "calls": [{"tool": "t"}]}),
        (
            "/hooks/claude-code",
            {"hook_event_name": "PreToolUse", "session_id": "s", "tool_name": "Bash", "tool_input": {}},
        ),
        ("/imports", {"type": "user"}),
    ):
        refused = sent(path, body)
        assert (refused.status_code, refused.json()["code"]) == (403, "project_archived"), path
    assert Client().get("/api/v1/sessions", headers=auth).status_code == 200
    page = world.client.get(f"{world.base}/loops/history?q=")
    assert page.status_code == 200
    assert "Events and calls for this project are rejected" in text(page)
    world.client.post(f"{world.base}/connect/sample")
    upload = world.client.post(f"{world.base}/connect/imports", {"kind": "trace"})
    assert upload.status_code in (409, 422)
    assert Session.objects.filter(project=world.project).count() == 1
    restored = Client().patch(
        "/api/v1/project", {"is_archived": False}, content_type="application/json", headers=auth
    )
    assert restored.json()["archived_at"] is None
    principal_cache.clear()
    assert sent("/events", EVENT).status_code == 202
    assert [one for one in audited(world.project) if one.startswith("project.")] == [
        "project.archive",
        "project.restore",
    ]


def test_an_invitation_makes_an_account_once_and_only_in_its_project():
    world, other = make_world(), make_world()
    link = invite(world.client, world.base, recipient="Ben")
    token = link.rpartition("/")[2]
    assert not Invitation.objects.filter(digest__contains=token).exists()
    assert token not in world.client.get(f"{world.base}/members").content.decode()
    person = Client()
    assert "Your role: Operator" in text(person.get(link))
    weak = person.post(link, {"username": "ben", "password": "password"})
    assert weak.status_code == 422
    assert 'value="ben"' in weak.content.decode()
    taken = person.post(link, {"username": world.user.get_username(), "password": PASSWORD})
    assert "This username is taken" in text(taken)
    joined = person.post(link, {"username": "ben", "password": PASSWORD})
    assert joined["Location"] == f"/p/{world.project.slug}/"
    ben = get_user_model().objects.get(username="ben")
    assert (ben.is_staff, ben.is_superuser) == (False, False)
    assert list(ben.memberships.values_list("project", "role")) == [(world.project.pk, "operator")]
    assert person.get(f"{world.base}/sessions").status_code == 200
    assert person.get(f"{other.base}/sessions").status_code == 404
    assert person.post(f"{world.base}/keys", {"name": "k"}).status_code == 403
    # The link is used up, for people with an account as well.
    assert Client().get(link).status_code == 404
    assert other.client.post(link).status_code == 404
    assert audited(world.project)[-2:] == ["invitation.create", "invitation.accept"]
    assert Client().login(username="ben", password=PASSWORD)


def test_a_signed_in_person_joins_with_one_click_and_members_do_not_use_an_invitation_up():
    world, other = make_world(), make_world()
    link = invite(world.client, world.base, role="viewer")
    assert world.client.post(link).status_code == 409
    assert Client().get("/sign-in", {"next": link}).status_code == 200
    assert other.client.post(link).status_code == 302
    assert other.client.get(f"{world.base}/sessions").status_code == 200
    assert other.client.post(f"{world.base}/session/act").status_code == 403


@pytest.mark.promise("SEC-32")
def test_revoked_expired_and_made_up_invitations_look_the_same():
    world = make_world()
    links = [invite(world.client, world.base) for _ in range(2)]
    revoked, expired = Invitation.objects.order_by("pk")
    world.client.post(f"{world.base}/members", {"action": "revoke", "invitation": revoked.public_id})
    Invitation.objects.filter(pk=expired.pk).update(expires_at=timezone.now())
    pages = [Client().get(link) for link in (*links, "/invitations/lgi_nothing")]
    assert [page.status_code for page in pages] == [404] * 3
    assert len({page.content for page in pages}) == 1
    assert get_user_model().objects.count() == 1
    # Another project's admin cannot revoke one.
    other = make_world()
    refused = other.client.post(
        f"{other.base}/members", {"action": "revoke", "invitation": expired.public_id}
    )
    assert refused.status_code == 404


def test_roles_change_at_once_and_the_last_admin_stays():
    world = make_world()
    members = f"{world.base}/members"
    alone = world.client.post(members, {"action": "leave"})
    assert (alone.status_code, "The project needs an admin" in text(alone)) == (409, True)
    demoted = world.client.post(members, {"action": "role", "member": world.user.pk, "role": "viewer"})
    assert demoted.status_code == 409
    second = make_member(world.project, Role.VIEWER)
    person = signed_in(second)
    for action in ("role", "remove", "invite", "revoke"):
        assert person.post(members, {"action": action, "member": world.user.pk}).status_code == 403
    world.client.post(members, {"action": "role", "member": second.pk, "role": "admin"})
    assert person.post(members, {"action": "remove", "member": world.user.pk}).status_code == 302
    assert world.client.get(members).status_code == 404
    assert person.post(members, {"action": "leave"}).status_code == 409
    third = make_member(world.project, Role.VIEWER)
    assert signed_in(third).post(members, {"action": "leave"}).status_code == 302
    stranger = make_member(make_project())
    assert person.post(members, {"action": "remove", "member": stranger.pk}).status_code == 404
    changes = [one for one in audited(world.project) if one.startswith("member.")]
    assert changes == ["member.role", "member.remove", "member.leave"]


def test_an_admin_sees_what_an_erasure_removes_before_it_is_requested():
    world = make_world()
    base, name = f"/p/{world.project.slug}", world.incident.session_name
    assert "No erasures yet" in text(world.client.get(f"{base}/erasures"))
    assert "Nothing is stored" in text(world.client.get(f"{base}/erasures", {"name": "unknown"}))
    session = Session.objects.get(project=world.project, external_id=name)
    found = text(world.client.get(f"{base}/erasures", {"of": "session", "name": name}))
    assert f"1 session, {session.call_count} calls, 1 run of loops" in found
    for wrong in ({}, {"confirm": "2"}, {"retry": "ers_none"}):
        refused = world.client.post(f"{base}/erasures", {"of": "session", "name": name, **wrong})
        assert refused.status_code == 422
        assert "type the number of sessions, 1, to confirm" in text(refused)
    assert not Erasure.objects.exists()
    world.client.post(f"{base}/erasures", {"of": "session", "name": name, "confirm": "1"})
    Erasure.objects.update(attempts=MAX_ATTEMPTS, error="QueryCanceled (SQLSTATE 57014).")
    assert erasure.run_waiting(lambda: False) == 0
    page = text(world.client.get(f"{base}/erasures"))
    assert "Failed" in page
    assert "QueryCanceled" in page
    retry = Erasure.objects.get().public_id
    world.client.post(f"{base}/erasures", {"of": "session", "name": name, "retry": retry})
    erasure.run_waiting(lambda: False)
    assert not Session.objects.filter(pk=session.pk).exists()
    page = text(world.client.get(f"{base}/erasures"))
    assert "Erased" in page
    assert name not in page
    assert (
        world.client.post(f"{base}/erasures", {"of": "session", "name": name, "confirm": "0"}).status_code
        == 404
    )
    operator = signed_in(make_member(world.project, Role.OPERATOR))
    assert operator.get(f"{base}/erasures").status_code == 403
