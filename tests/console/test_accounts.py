"""The Account page: password, email address, where one is signed in, and links that reset a password."""

import re
import time
from io import StringIO

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Group, Permission
from django.core.management import CommandError, call_command
from django.test import Client

from detection.models import AuditEntry, SignIn
from detection.services.accounts import sign_ins
from tests.support.projects import make_member, make_project
from tests.support.smtp_server import receiving_mail

pytestmark = pytest.mark.django_db
NEW = "a quite different one"
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:143.0) Gecko/20100101 Firefox/143.0"


@pytest.fixture
def ana():
    return make_member(make_project(), username="ana")


def browser(password="right horse", username="ana", **headers):
    """A browser in which a person has signed in."""
    client = Client(HTTP_USER_AGENT=FIREFOX, **headers)
    assert client.post("/sign-in", {"username": username, "password": password}).status_code == 302
    client.get("/account")
    return client


def is_signed_in(client):
    return client.get("/account").status_code == 200


def change(client, old="right horse", new=NEW, again=NEW):
    form = {"action": "password", "old_password": old, "new_password1": new, "new_password2": again}
    return client.post("/account", form)


def test_a_new_password_ends_the_other_sign_ins_and_no_other_persons(ana):
    make_member(make_project(), username="ben")
    here, there, ben = browser(), browser(), browser(username="ben")
    assert change(here).status_code == 302
    assert [is_signed_in(client) for client in (here, there, ben)] == [True, False, True]
    assert Client().post("/sign-in", {"username": "ana", "password": "right horse"}).status_code == 422
    assert is_signed_in(browser(NEW))
    assert AuditEntry.objects.filter(action="account.password_change", actor="ana").count() == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [({"old": "wrong"}, b"The current password is wrong."), ({"again": "another"}, b"match"),
     ({"new": "password", "again": "password"}, b"too common"), ({"new": "x", "again": "x"}, b"too short")],
)  # fmt: skip
def test_a_password_that_is_not_accepted_changes_nothing(given, says, ana):
    client = browser()
    answer = change(client, **given)
    assert answer.status_code == 422
    assert says in answer.content
    assert is_signed_in(browser())


def test_guessing_the_present_password_is_slowed_like_a_sign_in(ana):
    client = browser()
    for _ in range(6):
        change(client, old="wrong")
    assert b"Too many attempts" in change(client).content
    assert get_user_model().objects.get().check_password("right horse")


def test_sign_ins_are_listed_and_end_one_by_one_and_all_others_at_once(ana):
    here, there, third = (browser(REMOTE_ADDR=f"192.0.2.{number}") for number in (1, 2, 3))
    page = here.get("/account").content.decode()
    assert page.count("Firefox on Linux</b>") == 3
    assert page.count("this browser") == 1
    assert "192.0.2.2" in page
    assert not any(row.session_id in page for row in SignIn.objects.all()), "the keys are secrets"
    row = SignIn.objects.get(address="192.0.2.2")
    here.post("/account", {"action": "end", "sign_in": row.public_id})
    assert [is_signed_in(client) for client in (here, there, third)] == [True, False, True]
    here.post("/account", {"action": "end_others"})
    assert [is_signed_in(client) for client in (here, there, third)] == [True, False, False]
    assert SignIn.objects.count() == 1


def test_nobody_ends_the_sign_in_of_somebody_else(ana):
    make_member(make_project(), username="ben")
    mine, theirs = browser(), browser(username="ben")
    row = SignIn.objects.get(user__username="ben")
    assert mine.post("/account", {"action": "end", "sign_in": row.public_id}).status_code == 404
    assert is_signed_in(theirs)


def test_signing_out_removes_the_sign_in_from_the_list(ana):
    browser().post("/sign-out")
    assert not SignIn.objects.exists()


def test_a_sign_in_that_could_not_be_noted_is_noted_by_the_next_request(ana):
    client = Client()
    client.force_login(ana)
    key = client.session.session_key
    sign_ins.note_seen(key, ana.pk, FIREFOX, "no address")
    assert not SignIn.objects.exists()
    sign_ins.note_seen(key, ana.pk, FIREFOX, None)
    assert SignIn.objects.get().session_id == key


def path_of(text):
    return re.search(r"https?://[^/\s]+(/reset-password/\S+)", text)[1]


def open_link(path):
    """Follow a link as a browser does; return the browser and the address of the form."""
    client = Client()
    answer = client.get(path)
    return client, answer.headers.get("Location", path)


def set_new(client, form_at, password=NEW):
    return client.post(form_at, {"new_password1": password, "new_password2": password})


@pytest.mark.promise("SEC-32")
def test_a_link_of_the_command_sets_a_password_once_and_ends_all_sign_ins(ana):
    signed_in, out = browser(), StringIO()
    call_command("reset_password", "ana", stdout=out, stderr=StringIO())
    client, form_at = open_link(path_of(out.getvalue()))
    assert "set-password" in form_at, "the token has left the address"
    assert set_new(client, form_at, "short").status_code == 422
    assert set_new(client, form_at).status_code == 302
    assert not is_signed_in(signed_in)
    assert is_signed_in(browser(NEW))
    again, form_at = open_link(path_of(out.getvalue()))
    assert set_new(again, form_at, "a third password").status_code == 404
    actions = AuditEntry.objects.filter(subject="ana").values_list("action", "actor")
    assert set(actions) >= {("account.reset_link", "command line"), ("account.password_reset", "ana")}


@pytest.mark.promise("SEC-32")
def test_a_link_expires_and_a_sign_in_makes_it_invalid(ana, settings):
    out = StringIO()
    call_command("reset_password", "ana", stdout=out, stderr=StringIO())
    path = path_of(out.getvalue())
    settings.PASSWORD_RESET_TIMEOUT = -1
    assert open_link(path)[0].get(path).status_code == 404
    settings.PASSWORD_RESET_TIMEOUT = 3600
    assert open_link(path)[0].get(path).status_code == 302
    browser()
    assert open_link(path)[0].get(path).status_code == 404


def test_links_are_for_accounts_that_exist_and_are_enabled(ana):
    with pytest.raises(CommandError, match="There is no account `eve`"):
        call_command("reset_password", "eve")
    get_user_model().objects.update(is_active=False)
    with pytest.raises(CommandError, match="disabled"):
        call_command("reset_password", "ana")


def test_an_administrator_creates_links_but_staff_none_for_superusers(ana, client):
    get_user_model().objects.create_superuser("root", password="x")
    client.force_login(get_user_model().objects.get(username="root"))
    form = {"action": "create_reset_links", "_selected_action": [ana.pk]}
    page = client.post("/admin/auth/user/", form, follow=True).content.decode()
    assert set_new(*open_link(path_of(page))).status_code == 302


@pytest.mark.promise("SEC-06")
def test_staff_change_accounts_but_give_no_rights_and_leave_superusers_alone(ana, client):
    users = get_user_model().objects
    root = users.create_superuser("root", password="x")
    staff = users.create_user("staff", is_staff=True)
    names = [
        f"{right}_{model}" for right in ("view", "add", "change", "delete") for model in ("user", "group")
    ]
    group = Group.objects.create(name="people")
    group.permissions.set(Permission.objects.filter(codename__in=names))
    staff.groups.add(group)
    other = users.create_user("other", is_staff=True, is_active=False)
    other.user_permissions.add(Permission.objects.get(codename="change_override"))
    signed_in = browser()
    client.force_login(staff)
    form = {
        "username": "ana",
        "email": "ana@example.org",
        "is_active": "on",
        "is_superuser": "on",
        "groups": [group.pk],
        "user_permissions": [1],
    }
    form |= {"date_joined_0": "2026-01-01", "date_joined_1": "00:00:00"}
    assert client.post(f"/admin/auth/user/{ana.pk}/change/", form).status_code == 302
    ana.refresh_from_db()
    assert (ana.email, ana.is_superuser) == ("ana@example.org", False)
    assert not ana.get_all_permissions()
    saved = AuditEntry.objects.get(action="account.save", actor="staff", subject="ana")
    assert "Email address" in saved.after["fields"]
    assert is_signed_in(signed_in)
    new = {"password1": NEW, "password2": NEW, "usable_password": "true"}
    assert client.post(f"/admin/auth/user/{ana.pk}/password/", new).status_code == 302
    assert not SignIn.objects.filter(user=ana).exists()
    assert is_signed_in(browser(NEW))
    assert AuditEntry.objects.filter(action="account.save", after={"fields": ["password"]}).count() == 1
    more = Permission.objects.get(codename="change_override").pk
    for kind, pk in (("user", root.pk), ("user", other.pk), ("group", group.pk)):
        at = f"/admin/auth/{kind}/{pk}"
        assert client.get(f"{at}/change/").status_code == 200, "to look at"
        for path in ("change", "password", "delete") if kind == "user" else ("change", "delete"):
            given = {**form, **new, "post": "yes", "name": "people", "permissions": [more]}
            assert client.post(f"{at}/{path}/", given).status_code == 403, (at, path)
    assert client.post("/admin/auth/group/add/", {"name": "mine", "permissions": [more]}).status_code == 403
    form = {"action": "create_reset_links", "_selected_action": [root.pk, other.pk]}
    page = client.post("/admin/auth/user/", form, follow=True).content.decode()
    assert page.count("this account has more permissions than yours") == 2
    form |= {"action": "delete_selected", "post": "yes"}
    client.post("/admin/auth/user/", form)
    client.post("/admin/auth/group/", form | {"_selected_action": [group.pk]})
    assert users.filter(username__in=("root", "other")).count() == 2
    assert set(group.permissions.values_list("codename", flat=True)) == set(names)


@pytest.mark.django_db(transaction=True)
def test_with_a_mail_server_a_forgotten_password_is_reset_by_mail_whether_or_not_one_exists(ana, settings):
    get_user_model().objects.update(email="ana@example.org")
    page = Client().get("/forgotten-password")
    assert b"Ask an administrator" in page.content
    with receiving_mail() as server:
        settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
        settings.EMAIL_HOST, settings.EMAIL_PORT = "127.0.0.1", server.port
        settings.DEFAULT_FROM_EMAIL = "loopguard@example.org"
        answers = [
            Client().post("/forgotten-password", {"email": email}, follow=True).content.partition(b"<form")[0]
            for email in ("nobody@example.org", "ana@example.org")
        ]
        assert answers[0] == answers[1]
        until = time.monotonic() + 30
        while not server.messages and time.monotonic() < until:
            time.sleep(0.05)
        (mail,) = server.messages
        assert mail["To"] == "ana@example.org"
        assert set_new(*open_link(path_of(mail.get_content()))).status_code == 302
    assert is_signed_in(browser(NEW))


def test_the_email_address_needs_the_password(ana):
    client = browser()
    form = {"action": "email", "email": "ana@example.org"}
    assert client.post("/account", form | {"email_password": "wrong"}).status_code == 422
    assert (
        client.post("/account", form | {"email_password": "right horse", "email": "ana"}).status_code == 422
    )
    assert client.post("/account", form | {"email_password": "right horse"}).status_code == 302
    assert get_user_model().objects.get().email == "ana@example.org"
