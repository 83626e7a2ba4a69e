"""What people typed survives an expired sign-in, a second submission, a stale form and a second editor."""

import re
from datetime import timedelta
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from django.utils import timezone

from detection.engine.scopes import PROJECT, Scope
from detection.models import (
    AlertDestination,
    AlertSilence,
    ApiKey,
    Invitation,
    LoopActivity,
    MessageTemplate,
    ModelPrice,
    Override,
    Project,
)
from detection.services.alerting import alert_routes, destinations, silences
from detection.services.audit import Actor
from detection.services.gateway import backends, prices
from detection.services.policies import overrides
from detection.services.projects import projects
from tests.console.scenes import PASSWORD, make_world, text
from tests.support.threads import in_thread

pytestmark = pytest.mark.django_db
COMMENT = "A long comment\nof two lines about <b>loops</b>"


@pytest.fixture
def world():
    return make_world()


@pytest.fixture
def browser(world):
    """A signed-in browser that checks CSRF tokens, as real ones have to send them."""
    client = Client(enforce_csrf_checks=True)
    client.force_login(world.user)
    return client


def fields_of(page, name=None):
    """The inputs of the first form of a page that has a field of this name."""
    for form in re.findall(r"<form\b.*?</form>", page.content.decode(), re.DOTALL):
        if name is None or f'name="{name}"' in form:
            found = re.findall(r'<input\b[^>]*?name="(\w+)"[^>]*?value="([^"]*)"', form)
            return {
                key: value.replace("&lt;", "<").replace("&gt;", ">").replace("&quot;", '"')
                for key, value in found
            }
    raise AssertionError(name)


def comment_form(world, browser):
    address = f"{world.base}/loops/{world.incident.loop.public_id}"
    form = fields_of(browser.get(address), "note")
    return address, {**form, "ids": world.incident.loop.public_id, "action": "comment", "note": COMMENT}


def comments():
    return [*LoopActivity.objects.filter(action="commented").values_list("note", flat=True)]


def test_a_form_sent_after_the_sign_in_ended_comes_back_and_can_be_sent(world, browser):
    address, form = comment_form(world, browser)
    del browser.cookies["loopguard"]
    own = {"Referer": f"http://testserver{address}"}
    asked = browser.post(f"{world.base}/loops/act", form, headers=own)
    assert asked.status_code == 401
    assert "What you entered is kept" in text(asked)
    assert comments() == []
    wrong = {**fields_of(asked, "kept"), "username": world.user.get_username(), "password": "no"}
    again = browser.post("/sign-in", wrong)
    assert fields_of(again, "kept")["kept"] == wrong["kept"]
    shown = browser.post(
        "/sign-in", {**fields_of(again, "kept"), "username": wrong["username"], "password": PASSWORD}
    )
    assert "A long comment" in text(shown)
    assert "<b>loops" not in shown.content.decode()
    assert f'href="{address}"' in shown.content.decode()
    sent = browser.post(f"{world.base}/loops/act", {**fields_of(shown), "note": COMMENT})
    assert sent.status_code == 302
    assert comments() == [COMMENT]


def test_a_kept_form_is_read_only_as_it_was_signed(world, browser):
    form = {"username": world.user.get_username(), "password": PASSWORD, "kept": "eyJwYXRoIjoiL3gifQ:forged"}
    del browser.cookies["loopguard"]
    page = browser.get("/sign-in")
    assert (
        browser.post(
            "/sign-in", {**form, "csrfmiddlewaretoken": fields_of(page)["csrfmiddlewaretoken"]}
        ).status_code
        == 302
    )


def test_a_form_that_was_open_since_before_the_sign_in_is_shown_and_not_rejected(world, browser):
    _, form = comment_form(world, browser)
    stale = {**form, "csrfmiddlewaretoken": "x" * 64}
    foreign = browser.post(f"{world.base}/loops/act", stale, headers={"Origin": "https://evil.example"})
    assert foreign.status_code == 403
    assert "A long comment" not in text(foreign)
    shown = browser.post(f"{world.base}/loops/act", stale, headers={"Origin": "http://testserver"})
    assert "A long comment" in text(shown)
    assert comments() == []
    browser.post(f"{world.base}/loops/act", {**fields_of(shown), "note": COMMENT})
    assert comments() == [COMMENT]


def test_a_form_that_arrives_again_is_handled_once_and_answered_alike(world, browser):
    before = ApiKey.objects.count()
    _, form = comment_form(world, browser)
    answers = [browser.post(f"{world.base}/loops/act", form) for _ in range(3)]
    assert {(one.status_code, one["Location"]) for one in answers} == {(302, answers[0]["Location"])}
    assert comments() == [COMMENT]
    # The same words in a form that was rendered anew are another comment.
    _, other = comment_form(world, browser)
    browser.post(f"{world.base}/loops/act", other)
    assert comments() == [COMMENT, COMMENT]
    assert ApiKey.objects.count() == before


@pytest.mark.parametrize(
    ("form", "leads_to", "rows"),
    [
        (("keys", {"name": "ci", "scopes": "ingest"}), "keys", ApiKey),
        (("connect/guides/api", {"action": "create_key"}), "connect/guides/api", ApiKey),
        (("connect/base-url/openai", {"action": "create_key"}), "connect/base-url/openai", ApiKey),
        (("members", {"action": "invite", "role": "viewer", "days": "7"}), "members", Invitation),
        (
            (
                "alerts/act",
                {"action": "create", "name": "ops", "kind": "webhook", "address": "https://8.8.8.8/x"},
            ),
            "alerts?tab=routes",
            AlertDestination,
        ),
    ],
)
def test_a_reload_of_the_page_with_a_secret_creates_no_other_one(world, browser, form, leads_to, rows):
    path, fields = form
    token = fields_of(browser.get(f"{world.base}/{leads_to}"), "csrfmiddlewaretoken")["csrfmiddlewaretoken"]
    before = rows.objects.count()
    answers = [
        browser.post(f"{world.base}/{path}", {**fields, "csrfmiddlewaretoken": token}) for _ in range(3)
    ]
    assert [one.status_code for one in answers] == [200, 302, 302]
    assert rows.objects.count() == before + 1
    assert answers[2]["Location"] == f"{world.base}/{leads_to}"
    assert "What it showed is not shown again" in text(browser.get(answers[2]["Location"]))


def test_an_answered_form_is_named_in_a_cookie_unless_its_text_is_lost(world, browser):
    _, form = comment_form(world, browser)
    sent_id = form["csrfmiddlewaretoken"][:32]
    rejected = browser.post(f"{world.base}/loops/act", {**form, "ids": "loop_unknown"})
    assert (rejected.status_code, "loopguard-answered" in rejected.cookies) == (302, False)
    preview = {"csrfmiddlewaretoken": form["csrfmiddlewaretoken"], "action": "diff"}
    part = browser.post(f"{world.base}/policies/settings", preview, headers={"HX-Request": "true"})
    assert (part.status_code, "loopguard-answered" in part.cookies) == (200, False)
    session = browser.cookies.pop("loopguard")
    waiting = browser.post(f"{world.base}/loops/act", form)
    assert (waiting.status_code, "loopguard-answered" in waiting.cookies) == (401, False)
    own = browser.post("/projects", {**form, "name": "night shift"})
    assert (own.status_code, "loopguard-answered" in own.cookies) == (302, False)
    browser.cookies["loopguard"] = session
    foreign = browser.post("/p/nobody/loops/act", form)
    assert (foreign.status_code, "loopguard-answered" in foreign.cookies) == (404, False)
    invalid = browser.post("/projects", {**form, "name": "x" * 200})
    assert (invalid.status_code, "loopguard-answered" in invalid.cookies) == (422, True)
    answer = browser.post(f"{world.base}/loops/act", form)
    assert (answer.status_code, answer.cookies["loopguard-answered"].value) == (302, sent_id)


@pytest.mark.django_db(transaction=True)
def test_two_clicks_at_the_same_moment_create_one_comment(transactional_db):
    world = make_world()
    clients = []
    for _ in range(2):
        client = Client(enforce_csrf_checks=True)
        client.force_login(world.user)
        clients.append(client)
    clients[1].cookies = clients[0].cookies
    _, form = comment_form(world, clients[0])

    def send(client):
        return client.post(f"{world.base}/loops/act", form).status_code

    threads = [in_thread(send, client) for client in clients]
    found = [thread.result() for thread in threads]
    assert found == [302, 302]
    assert comments() == [COMMENT]


def test_the_second_editor_sees_both_versions_and_overwrites_nothing_unseen(world):
    page, other = f"{world.base}/policies/settings", Actor("ben")
    form = {**fields_of(world.client.get(page), "version"), "set_max_repeats": "7", "note": "mine"}
    overrides.save_override(world.project.pk, PROJECT, {"max_repeats": 9}, other, "theirs")
    refused = world.client.post(page, form)
    assert refused.status_code == 409
    shown = text(refused)
    assert "This was changed in the meantime" in shown
    assert re.search(r"Repeats|repeats.* 9 7 ", shown)
    assert Override.objects.get(project=world.project, agent="", backend="", model="").values == {
        "max_repeats": 9
    }
    assert 'value="7"' in refused.content.decode()
    again = {**form, "version": fields_of(refused, "version")["version"]}
    assert world.client.post(page, again).status_code == 302
    assert Override.objects.get(project=world.project, agent="", backend="", model="").values == {
        "max_repeats": 7
    }


def test_a_template_and_a_tool_rule_know_their_version_too(world):
    page = f"{world.base}/policies/messages"
    form = {"rung": "stop", "shape": "", "seen_shape": "", "action": "save"}
    seen = fields_of(world.client.get(page), "seen_shape")["version"]
    assert world.client.post(page, {**form, "text": "Stop $tool.", "version": seen}).status_code == 302
    refused = world.client.post(page, {**form, "text": "Halt $tool.", "version": seen})
    assert refused.status_code == 409
    assert "Stop $tool." in text(refused)
    assert MessageTemplate.objects.get().text == "Stop $tool."
    rule = f"{world.base}/policies/tools?pattern=get_*"
    form = {**fields_of(world.client.get(rule), "version"), "pattern": "get_*", "tool_class": "wait"}
    overrides.save_override(
        world.project.pk,
        Scope("tool", pattern="get_*"),
        {},
        tool_class="read",
        note="ours",
        actor=Actor("ben"),
    )
    refused = world.client.post(rule, form)
    assert refused.status_code == 409
    assert "read wait" in text(refused)


def test_prices_backends_destinations_silences_and_the_project_know_their_version_too(world):
    pk, ben, get, post = world.project.pk, Actor("ben"), world.client.get, world.client.post
    # A price: typed values stay, both are shown, and the next submission replaces.
    row = prices.save_price(pk, ben, model="gpt-5", input_usd="1", output_usd="2")
    page = f"{world.base}/gateway/prices"
    form = {**fields_of(get(f"{page}?edit={row.public_id}"), "output_usd"), "output_usd": "3.50"}
    prices.save_price(pk, ben, model="gpt-5", input_usd="1", output_usd="9")
    refused = post(f"{page}/save", form)
    assert (refused.status_code, "Output usd 9 3.5" in text(refused)) == (409, True)
    assert 'value="3.50"' in refused.content.decode()
    assert post(f"{page}/save", fields_of(refused, "output_usd")).status_code == 302
    assert ModelPrice.objects.get(pk=row.pk).output_usd == 3.5
    # The settings of the project.
    page = f"{world.base}/settings/project"
    form = {**fields_of(get(page), "version"), "name": "Mine", "stores_payloads": "yes"}
    projects.update_project(pk, ben, name="Theirs")
    refused = post(page, form)
    assert (refused.status_code, "Name Theirs Mine" in text(refused)) == (409, True)
    assert post(page, {**fields_of(refused, "version"), "stores_payloads": "yes"}).status_code == 302
    assert Project.objects.get(pk=pk).name == "Mine"
    # A backend of the gateway.
    url = settings.GATEWAY_UPSTREAMS[0]
    backend = backends.create_backend(pk, ben, name="b-two", kind="openai", base_url=url)
    page = f"{world.base}/gateway"
    form = {"id": backend.public_id, "version": backends.backend_version(backend), "action": "switch"}
    form |= {"fails_closed": "yes", "requests_usage": "no"}
    assert form["version"] in get(page).content.decode()
    backends.update_backend(pk, backend.public_id, ben, requests_usage=False)
    refused = post(f"{page}/act", form)
    assert (refused.status_code, "Fails closed off on" in text(refused)) == (409, True)
    current = re.search(r'name="version" value="(\w+)">\s*<div class="conflict"', refused.content.decode())[1]
    assert post(f"{page}/act", {**form, "version": current}).status_code == 302
    # A destination: its name can be changed, its address is never shown.
    target, _ = destinations.create_destination(
        pk, ben, name="chat", kind="apprise", address="slack://AAAAAAAAA/BBBBBBBBB/cccccccccccccccccccccccc"
    )
    page = f"{world.base}/alerts"
    form = {"id": target.public_id, "version": destinations.destination_version(target), "action": "edit"}
    assert form["version"] in get(page).content.decode()
    destinations.update_destination(pk, target.public_id, ben, name="theirs")
    refused = post(f"{page}/act", {**form, "name": "mine"})
    assert (refused.status_code, "Name theirs mine" in text(refused)) == (409, True)
    assert "cccccccc" not in refused.content.decode()
    assert post(f"{page}/act", {**form, "action": "switch", "enabled": "no"}).status_code == 409
    target.refresh_from_db()
    assert (target.name, target.is_enabled) == ("theirs", True)
    form["version"] = destinations.destination_version(target)
    assert post(f"{page}/act", {**form, "name": "mine"}).status_code == 302
    assert AlertDestination.objects.get(pk=target.pk).name == "mine"
    # A rejected address is no conflict: the reason stands beside the field, and what was typed is kept.
    form["version"] = re.search(r'name="version" value="(\w+)"', get(page).content.decode())[1]
    refused = post(f"{page}/act", {**form, "name": "third", "address": "gopher://nowhere"})
    page_text = refused.content.decode()
    assert 'id="address-error"' in page_text
    assert ("changed in the meantime" in page_text, 'value="gopher://nowhere"' in page_text) == (False, True)
    assert AlertDestination.objects.get(pk=target.pk).name == "mine"
    # A silence that was made longer is not ended by who saw the shorter one.
    now = timezone.now()
    silence = silences.create_silence(pk, ben, reason="deploy", ends_at=now + timedelta(hours=1))
    form = {"id": silence.public_id, "version": silences.silence_version(silence), "action": "end_silence"}
    assert form["version"] in get(f"{page}?tab=silences").content.decode()
    AlertSilence.objects.filter(pk=silence.pk).update(ends_at=now + timedelta(days=3))
    assert post(f"{page}/act", form).status_code == 409
    assert AlertSilence.objects.get(pk=silence.pk).ends_at > timezone.now()


def test_what_was_changed_meanwhile_is_not_deleted(world):
    pk, ben, get, post = world.project.pk, Actor("ben"), world.client.get, world.client.post
    url = settings.GATEWAY_UPSTREAMS[0]
    price = prices.save_price(pk, ben, model="gpt-5", input_usd="1", output_usd="2")
    backend = backends.create_backend(pk, ben, name="b-two", kind="openai", base_url=url)
    target, _ = destinations.create_destination(
        pk, ben, name="chat", kind="apprise", address="slack://AAAAAAAAA/BBBBBBBBB/cccccccccccccccccccccccc"
    )
    to: dict[str, Any] = {"name": "night", "destinations": [target.public_id]}
    route = alert_routes.save_route(pk, ben, **to)

    def change():
        prices.save_price(pk, ben, model="gpt-5", input_usd="1", output_usd="9")
        backends.update_backend(pk, backend.public_id, ben, fails_closed=True)
        alert_routes.save_route(pk, ben, public_id=route.public_id, group_wait_seconds=60, **to)
        destinations.update_destination(pk, target.public_id, ben, name="on-call")

    forms = [
        (row, page, act, delete_form(get(page), row.public_id))
        for row, page, act in (
            (price, f"{world.base}/gateway/prices", f"{world.base}/gateway/prices/delete"),
            (backend, f"{world.base}/gateway", f"{world.base}/gateway/act"),
            (route, f"{world.base}/alerts?tab=routes", f"{world.base}/alerts/act"),
            (target, f"{world.base}/alerts?tab=routes", f"{world.base}/alerts/act"),
        )
    ]
    change()
    for row, page, act, seen in forms:
        stale = post(act, seen)
        assert (stale.status_code, "changed in the meantime. It was not deleted." in text(stale)) == (
            409,
            True,
        ), row
        # The answer shows what is stored now, and can be deleted.
        assert type(row).objects.filter(pk=row.pk).exists()
        current = delete_form(stale, row.public_id)["version"]
        assert current == delete_form(get(page), row.public_id)["version"] != seen["version"]
        assert post(act, delete_form(stale, row.public_id)).status_code == 302
        assert not type(row).objects.filter(pk=row.pk).exists()


def delete_form(page, public_id):
    """The fields of the form that deletes a row."""
    for form in re.findall(r"<form\b[^>]*data-confirm.*?</form>", page.content.decode(), re.DOTALL):
        if f'value="{public_id}"' in form:
            return dict(re.findall(r'name="(\w+)" value="(\w*)"', form))
    raise AssertionError(public_id)


def test_an_override_that_was_changed_meanwhile_is_not_deleted(world):
    page = f"{world.base}/policies/settings"
    overrides.save_override(world.project.pk, PROJECT, {"max_repeats": 3}, Actor("ben"))
    seen = fields_of(world.client.get(page), "version")["version"]
    overrides.save_override(world.project.pk, PROJECT, {"max_repeats": 2}, Actor("ben"))
    stale = world.client.post(page, {"action": "delete", "version": seen, "note": "not needed"}, follow=True)
    assert "changed in the meantime and was not deleted" in text(stale)
    assert Override.objects.get(project=world.project, agent="", backend="").values == {"max_repeats": 2}
