"""The second factor: set up, signing in with codes, recovery codes, and projects that require it."""

import re
import threading
import time
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import Client
from django_otp.oath import totp
from django_otp.plugins.otp_static.models import StaticToken
from django_otp.plugins.otp_totp.models import TOTPDevice

from detection.console.accounts import sign_in
from detection.models import AuditEntry
from tests.support.projects import make_member, make_project

pytestmark = pytest.mark.django_db
PAGE = "/account/second-factor"
PASSWORD = {"password": "right horse"}


@pytest.fixture
def project():
    return make_project()


@pytest.fixture
def ana(project):
    return make_member(project, username="ana")


def browser():
    client = Client()
    client.post("/sign-in", {"username": "ana", **PASSWORD})
    return client


def code(step=0):
    """The code that the app shows, or will show `step` clock steps from now."""
    return f"{totp(TOTPDevice.objects.get().bin_key, drift=step):06}"


def enrol(client):
    """Set the second factor up; return the recovery codes."""
    assert client.post(PAGE, {"action": "begin", **PASSWORD}).status_code == 302
    page = client.post(PAGE, {"action": "confirm", "code": code()})
    return re.findall(r"[a-z2-7]{4}(?:-[a-z2-7]{4}){3}", page.content.decode())


def sign_in_with(given):
    """Sign in with the password and then a code; return the browser and the last response."""
    client = browser()
    return client, client.post("/sign-in/code", {"code": given})


def is_signed_in(client):
    return client.get("/account").status_code == 200


@pytest.mark.promise("SEC-21")
def test_signing_in_asks_for_a_code_that_works_once(ana):
    enrol(browser())
    client = browser()
    assert not is_signed_in(client)
    assert client.post("/sign-in/code", {"code": "000000"}).status_code == 422
    given = code(1)
    assert client.post("/sign-in/code", {"code": f"{given[:3]} {given[3:]}"}).status_code == 302
    assert is_signed_in(client)
    again, answer = sign_in_with(given)
    assert answer.status_code == 422
    assert not is_signed_in(again)


def test_setting_up_shows_a_qr_code_and_a_text_key_and_needs_the_password_and_a_code(ana):
    client = browser()
    assert client.post(PAGE, {"action": "begin", "password": "wrong"}).status_code == 422
    assert not TOTPDevice.objects.exists()
    client.post(PAGE, {"action": "begin", **PASSWORD})
    page = client.get(PAGE)
    assert 'src="data:image/svg+xml' in page.content.decode()
    assert re.search(r"([A-Z2-7]{4} ){7}[A-Z2-7]{4}", page.content.decode())
    assert client.post(PAGE, {"action": "confirm", "code": "000000"}).status_code == 422
    assert browser().get("/account").status_code == 200, "not enabled yet"


def test_recovery_codes_work_once_and_only_their_digests_are_stored(ana):
    codes = enrol(browser())
    assert len(codes) == 10
    stored = set(StaticToken.objects.values_list("token", flat=True))
    assert not stored & {code for one in codes for code in (one, one.replace("-", ""), one[:16])}
    client, answer = sign_in_with(codes[0].upper())
    assert answer.status_code == 302
    assert sign_in_with(codes[0])[1].status_code == 422
    assert AuditEntry.objects.get(action="account.recovery_code_use").after == {"left": 9}
    page = client.post(PAGE, {"action": "codes", **PASSWORD})
    assert page.status_code == 200
    assert sign_in_with(codes[1])[1].status_code == 422, "new codes replace the earlier ones"


def test_enabling_ends_the_other_sign_ins(ana):
    here, there = browser(), browser()
    there.get("/account")
    enrol(here)
    assert [is_signed_in(here), is_signed_in(there)] == [True, False]


@pytest.mark.promise("SEC-21")
def test_guessing_codes_is_slowed_and_the_password_alone_does_not_reset_that(ana):
    enrol(browser())
    client = browser()
    for _ in range(6):
        client.post("/sign-in/code", {"code": "000000"})
    answer = client.post("/sign-in/code", {"code": code(1)})
    assert answer.status_code == 429
    assert int(answer["Retry-After"]) >= 1
    assert Client().post("/sign-in", {"username": "ana", **PASSWORD}).status_code == 429


@pytest.mark.django_db(transaction=True)
def test_parallel_guesses_are_slowed_like_those_in_sequence(ana):
    enrol(browser())
    found = []

    def guess(client):
        try:
            found.append(client.post("/sign-in/code", {"code": "000000"}).status_code)
        finally:
            connection.close()

    threads = [threading.Thread(target=guess, args=(browser(),), daemon=True) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(found) == len(threads)
    assert 429 in found


def test_a_factor_that_was_removed_meanwhile_leads_back_to_the_password(ana):
    enrol(browser())
    client = browser()
    assert b"Back to sign in" in client.get("/sign-in/code").content
    call_command("reset_second_factor", "ana", stdout=StringIO())
    assert client.get("/sign-in/code")["Location"] == "/sign-in"


def test_the_password_is_good_for_some_minutes_and_not_after_a_new_one(ana, monkeypatch):
    enrol(browser())
    monkeypatch.setattr(sign_in, "PENDING_SECONDS", 0.0)
    late = browser()
    time.sleep(0.01)
    assert late.post("/sign-in/code", {"code": code(1)})["Location"] == "/sign-in"
    monkeypatch.setattr(sign_in, "PENDING_SECONDS", 60.0)
    client = browser()
    ana.set_password("another one of mine")
    ana.save()
    assert client.post("/sign-in/code", {"code": code(1)})["Location"] == "/sign-in"


def test_disabling_needs_the_password(ana):
    client = browser()
    enrol(client)
    assert client.post(PAGE, {"action": "disable", "password": "wrong"}).status_code == 422
    assert client.post(PAGE, {"action": "disable", **PASSWORD}).status_code == 302
    assert is_signed_in(browser())
    assert not StaticToken.objects.exists()


def test_the_command_for_a_lost_device_ends_all_sign_ins(ana):
    client = browser()
    enrol(client)
    client.get("/account")
    call_command("reset_second_factor", "ana", stdout=StringIO())
    assert not is_signed_in(client)
    assert is_signed_in(browser())
    assert AuditEntry.objects.get(action="account.second_factor_disable").actor == "command line"
    with pytest.raises(CommandError, match="not enabled"):
        call_command("reset_second_factor", "ana")


@pytest.mark.promise("SEC-06")
@pytest.mark.parametrize("whole_installation", [True, False])
def test_where_it_is_required_a_member_sees_nothing_without_it(ana, project, whole_installation, settings):
    settings.REQUIRE_SECOND_FACTOR = whole_installation
    project.requires_second_factor = not whole_installation
    project.save()
    ana.is_staff = ana.is_superuser = True
    ana.save()
    client = browser()
    for path in (
        f"/p/{project.slug}/sessions",
        f"/p/{project.slug}/session/rows",
        f"/p/{project.slug}/export/incidents",
    ):
        assert client.get(path)["Location"] == PAGE, path
    assert client.post(f"/p/{project.slug}/settings/project", {"action": "archive"})["Location"] == PAGE
    assert client.get("/admin/", follow=True).redirect_chain[-1][0] == PAGE
    for path in (f"/p/{project.slug}/session/rows", "/admin/login/"):
        part = client.get(path, headers={"HX-Request": "true"})
        assert (part.status_code, part["HX-Redirect"]) == (204, PAGE), path
    page = client.get(PAGE).content.decode()
    assert "Set it up to continue." in page
    assert f"/p/{project.slug}/sessions" not in page
    enrol(client)
    without_code = Client()
    without_code.force_login(ana)
    for path in (f"/p/{project.slug}/sessions", "/admin/"):
        assert b"Sign out and in again with a code." in without_code.get(path, follow=True).content, path
    assert client.get(f"/p/{project.slug}/sessions").status_code == 200
    assert client.get("/admin/").status_code == 200


def test_a_project_requires_it_through_its_settings_and_the_api_says_so(ana, project):
    client = browser()
    form = {"action": "save", "name": "P", "retention_days": "30", "stores_payloads": "yes"}
    client.post(f"/p/{project.slug}/settings/project", form | {"requires_second_factor": "yes"})
    project.refresh_from_db()
    assert project.requires_second_factor
    assert AuditEntry.objects.get(action="project.save").after["requires_second_factor"] is True


def test_keys_of_devices_are_on_no_page_of_the_administration(ana, client):
    ana.is_staff = ana.is_superuser = True
    ana.save()
    client.force_login(ana)
    assert client.get("/admin/otp_totp/totpdevice/").status_code == 404
    assert client.get("/admin/otp_static/staticdevice/").status_code == 404
