"""Signing in: one message for every failure, a growing wait, and no redirect to another site."""

import threading
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from detection.models import FailedSignIns
from detection.services.accounts import sign_in_throttle
from tests.support.projects import make_member, make_project
from tests.support.threads import all_results, in_thread

pytestmark = pytest.mark.django_db


def send(client, username, password, **more):
    return client.post("/sign-in", {"username": username, "password": password, **more})


def test_a_member_lands_on_connect_until_the_first_event_came_in(client):
    project = make_project()
    make_member(project, username="ana")
    answer = send(client, "ana", "right horse")
    assert answer["Location"] == "/"
    assert client.get("/", follow=True).redirect_chain[-1][0] == f"/p/{project.slug}/connect"


@pytest.mark.promise("SEC-21")
def test_an_unknown_account_and_a_wrong_password_get_the_same_words(client):
    make_member(make_project(), username="ana")
    known, unknown = send(client, "ana", "wrong"), send(client, "nobody", "wrong")
    assert known.status_code == unknown.status_code == 422
    assert b"Username or password is wrong." in known.content
    assert b"Username or password is wrong." in unknown.content


@pytest.mark.promise("SEC-21")
def test_after_some_wrong_tries_the_next_one_has_to_wait_even_with_the_right_password(client):
    make_member(make_project(), username="ana")
    for _ in range(6):
        send(client, "ana", "wrong")
    answer = send(client, "ana", "right horse")
    assert answer.status_code == 429
    assert int(answer["Retry-After"]) >= 1


@pytest.mark.promise("SEC-21")
@pytest.mark.django_db(transaction=True)
def test_guesses_at_the_same_time_are_throttled_like_those_in_sequence(monkeypatch):
    monkeypatch.setattr(sign_in_throttle, "FIRST_WAIT_SECONDS", 600.0)
    make_member(make_project(), username="ana")
    together = threading.Barrier(12)

    def guess(number):
        together.wait(20)
        return send(Client(REMOTE_ADDR="10.1.1.1"), "ana", f"guess {number}").status_code

    statuses = sorted(all_results([in_thread(guess, number) for number in range(12)]))
    assert statuses == [422] * sign_in_throttle.FREE_TRIES + [429] * 7
    assert send(Client(REMOTE_ADDR="10.2.2.2"), "ana", "right horse").status_code == 302, "from elsewhere"
    counts = FailedSignIns.objects.order_by("count").values_list("count", flat=True)
    assert [*counts] == [0, 5, 5, 5], "nothing is left of the attempt that was right"


def test_guessing_many_accounts_from_one_address_is_slowed_too(client):
    for number in range(21):
        send(client, f"person{number}", "wrong")
    assert send(client, "someone-new", "wrong").status_code == 429


@pytest.mark.promise("SEC-21")
def test_a_flood_of_other_names_does_not_flush_the_counts_of_an_account(client, monkeypatch):
    monkeypatch.setattr(sign_in_throttle, "FIRST_WAIT_SECONDS", 600.0)
    make_member(make_project(), username="ana")
    for _ in range(6):
        send(client, "ana", "wrong")
    for number in range(400):
        sign_in_throttle.begin(f"person{number}", f"10.1.{number % 250}.7")
    assert send(client, "ana", "right horse").status_code == 429


def test_counts_are_forgotten_an_hour_after_the_last_failure(client):
    make_member(make_project(), username="ana")
    for _ in range(6):
        send(client, "ana", "wrong")
    past = timezone.now() - timedelta(seconds=1)
    FailedSignIns.objects.update(not_before=past, expires_at=past)
    assert send(client, "ana", "wrong").status_code == 422
    assert FailedSignIns.objects.filter(count=1).count() == 3
    FailedSignIns.objects.update(expires_at=past)
    sign_in_throttle.forget_expired()
    assert not FailedSignIns.objects.exists()


@pytest.mark.promise("SEC-21")
def test_failed_attempts_of_others_do_not_affect_a_signed_in_user(client):
    project = make_project()
    make_member(project, username="ana")
    send(client, "ana", "right horse")
    stranger = Client(REMOTE_ADDR="10.9.9.9")
    for _ in range(8):
        send(stranger, "ana", "wrong")
    assert client.get(f"/p/{project.slug}/sessions").status_code == 200


@pytest.mark.promise("SEC-12")
@pytest.mark.parametrize(
    "target",
    ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)", "http:evil"],
)
def test_signing_in_never_redirects_to_another_site(client, target):
    make_member(make_project(), username="ana")
    assert send(client, "ana", "right horse", next=target)["Location"] == "/"


def test_after_signing_in_one_gets_the_page_one_wanted(client):
    project = make_project()
    make_member(project, username="ana")
    wanted = f"/p/{project.slug}/loops/history?q="
    asked = client.get(wanted)
    assert asked["Location"] == f"/sign-in?next=/p/{project.slug}/loops/history%3Fq%3D"
    assert send(client, "ana", "right horse", next=wanted)["Location"] == wanted


def test_the_administration_has_no_sign_in_of_its_own(client):
    assert client.get("/admin/login/?next=/admin/")["Location"] == "/sign-in?next=/admin/"


def test_a_nul_character_in_the_form_is_a_bad_request_with_a_reason(client):
    answer = send(client, "a\x00b", "\x00")
    assert answer.status_code == 400
    assert b"The request contains a NUL character." in answer.content


@pytest.mark.parametrize("wanted", ["foo", "x:y", "²", "/p/x/sessions"])
def test_a_sign_in_redirects_to_any_address_of_this_site(client, wanted):
    make_member(make_project(), username="ana")
    answer = send(client, "ana", "right horse", next=wanted)
    assert (answer.status_code, answer["Location"]) == (302, {"²": "%C2%B2", "x:y": "/"}.get(wanted, wanted))


def test_nobody_is_signed_out_while_the_secret_key_is_rotated(client, settings):
    project = make_project()
    make_member(project, username="ana")
    send(client, "ana", "right horse")
    away = Client()
    send(away, "ana", "right horse")
    now = f"/p/{project.slug}/now"
    old, settings.SECRET_KEY = settings.SECRET_KEY, "another-key-" + "y" * 40
    settings.SECRET_KEY_FALLBACKS = [old]
    assert client.get(now).status_code == 200
    settings.SECRET_KEY_FALLBACKS = []
    assert client.get(now).status_code == 200
    assert away.get(now).status_code == 302, "who was not here meanwhile signs in again"
