"""The screens of alerts and statistics: what they show, what their forms do, and what they never show."""

from __future__ import annotations

import html
import re
from datetime import timedelta
from typing import cast

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from detection.console.formatting import visible
from detection.engine.scopes import PROJECT
from detection.models import AlertDestination, AlertEvent, AlertRoute, AlertSilence, Loop, Project, Role
from detection.models.alert_facts import AlertFacts
from detection.selectors.setup import set_up_of
from detection.services.alerting import delivery, routing
from detection.services.audit import SYSTEM
from detection.services.incidents import loop_triage
from detection.services.policies import overrides
from tests.console.scenes import ask, loop, make_world, text
from tests.support.alerts import make_incident, make_route, note_event
from tests.support.http_receiver import Reply
from tests.support.projects import make_member

pytestmark = pytest.mark.django_db
NASTY = '"><script>alert(1)</script>\u202e'


def url(world, name, *arguments):
    return reverse(f"console:{name}", args=[world.project.slug, *arguments])


def act(world, action, client=None, **values):
    return (client or world.client).post(url(world, "alerts_act"), {"action": action, **values})


@pytest.fixture
def hook(world, receiver):
    act(world, "create", name="hook", kind="webhook", address=receiver.url)
    return AlertDestination.objects.get()


def with_role(world, role):
    user = make_member(world.project, role)
    client = Client()
    client.force_login(user)
    return client


def test_a_new_webhook_shows_its_secret_once_and_its_address_never(world, receiver):
    told = act(world, "create", name="hook", kind="webhook", address=receiver.url).content.decode()
    assert re.search(r"whsec_[A-Za-z0-9+/=]{40,}", told)
    again = world.client.get(url(world, "alerts")).content.decode()
    assert "whsec_" not in again
    assert "s3cr3t-path" not in told + again


def test_a_rejected_address_stays_and_names_the_setting_that_would_allow_it(world, settings):
    settings.ALERT_ALLOWED_NETWORKS = ()
    told = act(world, "create", name="kept name", kind="webhook", address="https://10.0.0.1/s3cret")
    assert 'value="kept name"' in told.content.decode()
    assert 'value="https://10.0.0.1/s3cret"' in told.content.decode()
    assert (
        "LOOPGUARD_ALERT_ALLOWED_NETWORKS=10.0.0.1/32 in the environment of LoopGuard would allow it"
        in text(told)
    )
    assert "no-store" in told["Cache-Control"]
    assert AlertDestination.objects.count() == 0


@pytest.mark.parametrize(
    ("pasted", "kind", "shown"),
    [
        ("https://hooks.slack.com/services/T0AAAAAAA/B0BBBBBBB/abcdefghijklmnopqrstuvwx", "apprise", "slack://… (Slack)"),
        (
            "https://discord.com/api/webhooks/123456789012345678/abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_",
            "apprise",
            "discord://… (Discord)",
        ),
        (
            "https://prod-04.westus.logic.azure.com:443/workflows/643e69f83c8944/triggers/manual/paths/invoke?sig=KODuebWbDGYFr0z0",
            "apprise",
            "workflow://… (Power Automate / Workflows (for MSTeams))",
        ),
        ("ntfys://loops-of-support", "apprise", "ntfys://… (ntfy)"),
    ],
)  # fmt: skip
def test_a_pasted_address_is_recognised(world, pasted, kind, shown):
    answer = world.client.post(
        url(world, "alerts_act"), {"action": "create", "name": "pasted", "address": pasted}, follow=True
    )
    row = AlertDestination.objects.get()
    assert (row.kind, row.shown_address) == (kind, shown)
    assert "abcdefghij" not in answer.content.decode()


def test_what_is_no_address_is_a_mistake_in_the_address_also_without_a_name(world):
    answer = world.client.post(
        url(world, "alerts_act"), {"action": "create", "name": "", "address": "no address"}
    )
    page = answer.content.decode()
    assert "printable characters" not in page
    assert re.search(
        r'name="address"[^>]*aria-invalid="true"|aria-invalid="true"[^>]*name="address"', page
    ), page


def test_a_destination_that_nobody_names_is_called_as_its_address(world, receiver):
    bare = receiver.url.partition("://")[2].partition("/")[0]
    for pasted in (f"http://{bare}?token=abc", "ntfys://loops-of-support"):
        world.client.post(url(world, "alerts_act"), {"action": "create", "name": " ", "address": pasted})
    host = receiver.url.partition("://")[2].partition("/")[0]
    assert {row.name for row in AlertDestination.objects.all()} == {host, "Ntfys"}


def test_being_notified_is_done_once_a_route_has_a_destination_that_works(world, hook):
    assert not set_up_of(world.project.pk).has_route
    route = make_route(world.project, hook, name="all")
    assert set_up_of(world.project.pk).has_route
    AlertDestination.objects.update(failures_in_row=2)
    assert not set_up_of(world.project.pk).has_route
    AlertDestination.objects.update(failures_in_row=0, is_enabled=False)
    assert not set_up_of(world.project.pk).has_route
    AlertDestination.objects.update(is_enabled=True)
    type(route).objects.update(is_enabled=False)
    assert not set_up_of(world.project.pk).has_route


def test_a_new_destination_is_tested_and_leads_to_its_route(world, receiver):
    form = {"action": "create_destination", "service": "webhook", "address": receiver.url}
    told = world.client.post(url(world, "new_alert_route"), form)
    assert re.search(r"Test to Webhook .*: delivered in [\d.]+ ms", text(told))
    assert re.search(r"whsec_[A-Za-z0-9+/=]{40,}", text(told))
    row = AlertDestination.objects.get()
    chosen = re.search(rf'value="{row.public_id}"\s+checked', told.content.decode())
    assert chosen
    receiver.replies = [Reply(500, body=b"no")]
    failed = world.client.post(url(world, "new_alert_route"), form | {"name": "second"})
    assert "not delivered" in text(failed)
    rejected = world.client.post(url(world, "new_alert_route"), form | {"address": "mail:x"})
    assert 'value="mail:x"' in rejected.content.decode()
    assert "d-address-error" in rejected.content.decode()


def test_a_test_goes_through_a_route(world, receiver, hook):
    route = make_route(world.project, hook, name="all")
    told = world.client.post(
        url(world, "alerts_act"), {"action": "test_route", "id": route.public_id}, follow=True
    )
    assert f"Test to {hook.name}: delivered in" in text(told)
    assert hook.notifications.get().is_test


def test_addresses_of_before_lead_to_the_tabs_of_today(world):
    for before, today in (("destinations", "routes"), ("notifications", "sent")):
        moved = world.client.get(f"{url(world, 'alerts')}?tab={before}&q=is%3Afailed")
        assert (moved.status_code, moved["Location"]) == (
            301,
            f"{url(world, 'alerts')}?tab={today}&q=is%3Afailed",
        )


def test_an_address_that_does_not_resolve_names_both_mistakes_at_once(world):
    does_not, start = "The host name does not resolve.", "the address must start with https://."
    plain = text(act(world, "create", name="n", kind="webhook", address="http://unknown.invalid/x"))
    assert f"{does_not} Outside allowed networks, {start}" in plain
    secure = text(act(world, "create", name="n", kind="webhook", address="https://unknown.invalid/x"))
    assert does_not in secure
    assert start not in secure


def test_the_test_button_leads_to_its_attempt(world, receiver, hook):
    receiver.replies = [Reply(500, body=b"<b>broken</b>")]
    told = world.client.post(url(world, "alerts_act"), {"action": "test", "id": hook.public_id}, follow=True)
    assert "was not delivered" in told.content.decode()
    assert "&lt;b&gt;broken" in told.content.decode()


def test_what_a_receiver_answered_is_for_admins(world, receiver, hook):
    receiver.replies = [Reply(500, body=b"internal words")]
    act(world, "test", id=hook.public_id)
    page = url(world, "notification", hook.notifications.get().public_id)
    assert "internal words" in world.client.get(page).content.decode()
    for role in (Role.VIEWER, Role.OPERATOR):
        assert "internal words" not in with_role(world, role).get(page).content.decode()


def test_operators_silence_and_resend_and_set_up_nothing(world, hook):
    operator = with_role(world, Role.OPERATOR)
    for action in ("create", "switch", "delete", "test", "add_secret", "retire_secrets", "delete_route"):
        assert act(world, action, operator, id=hook.public_id).status_code == 403, action
    act(world, "silence", operator, reason="night work", hours="1", tools="search_*, read_*")
    assert AlertSilence.objects.get().tools == ["search_*", "read_*"]
    assert act(world, "resend", operator).status_code == 302


def test_a_route_is_made_edited_and_removed(world, hook):
    values = {
        "name": "night", "destinations": [hook.public_id], "event_types": ["opened"], "severities": ["high"], "tools": "search_*",
        "group_wait_seconds": "0", "position": "5", "quiet_from": "22:00", "quiet_until": "07:00", "quiet_zone": "Europe/Berlin",
        "is_enabled": "on", "group_by": ["session"], "repeat_interval_hours": "6",
    }  # fmt: skip
    assert world.client.post(url(world, "new_alert_route"), values).status_code == 302
    row = AlertRoute.objects.get()
    assert (row.tools, row.quiet_zone, row.continue_matching) == (["search_*"], "Europe/Berlin", False)
    assert row.repeat_interval_hours == 6
    page = world.client.get(url(world, "alert_route", row.public_id)).content.decode()
    assert 'value="22:00"' in page
    wrong = world.client.post(
        url(world, "alert_route", row.public_id), {**values, "quiet_zone": "Mars/North"}
    )
    assert wrong.status_code == 422
    assert "zone" in wrong.content.decode()
    listed = world.client.get(url(world, "alerts") + "?tab=routes").content.decode()
    assert "night" in listed
    told = text(world.client.get(url(world, "alerts") + "?tab=routes"))
    assert "When a loop opens at high for tool search_*" in told
    assert (
        "again every 6 h while it is open, not from 22:00 to 07:00 (Europe/Berlin) unless it is critical."
        in told
    )
    act(world, "delete_route", id=row.public_id)
    assert AlertRoute.objects.count() == 0


def test_destinations_say_which_alerts_no_route_sends(world, hook):
    no_route, missed = (
        "No alert is sent, because no route is enabled.",
        "1 alert in the last 24 hours matched no route",
    )

    def banners(expected, *others):
        shown = text(world.client.get(url(world, "alerts")))
        assert expected in shown
        assert not [one for one in others if one in shown]

    AlertEvent.objects.all().delete()
    for is_demo in (False, True):
        AlertEvent.objects.create(
            project=world.project,
            type="opened",
            actor="system",
            facts=cast("AlertFacts", {"is_demo": is_demo}),
            state="unrouted",
        )
    banners(no_route, "matched no route")
    route = make_route(world.project, hook)
    banners(missed, no_route)
    AlertRoute.objects.filter(pk=route.pk).update(is_enabled=False)
    banners(no_route, "matched no route")


def test_a_new_route_goes_to_the_destination_that_works_and_shows_what_it_would_have_sent(world, hook):
    for tool in ("search_web", "read_file"):
        note_event(make_incident(world.project, tool=tool, agent="triage-1"), "opened")
    page = world.client.get(url(world, "new_alert_route"))
    assert re.search(rf'value="{hook.public_id}"\s+checked', page.content.decode())
    assert re.search(r"would have sent [1-5] notifications? with ", text(page)), text(page)
    sentence = {
        "when": "opens", "at_least": "warning", "agents": "triage*", "tools": "search_*", "destinations": [hook.public_id],
        "group_wait_seconds": "10", "is_enabled": "on",
    }  # fmt: skip
    asked = world.client.post(
        url(world, "new_alert_route"), sentence | {"action": "preview"}, HTTP_HX_REQUEST="true"
    )
    assert "would have sent 1 notification with 1 alert." in text(asked)
    assert re.search(r"due in ([1-9]|10) s", text(asked))
    assert AlertRoute.objects.count() == 0
    without = world.client.post(url(world, "new_alert_route"), sentence | {"destinations": []})
    assert without.status_code == 422
    assert 'value="triage*"' in without.content.decode()
    assert world.client.post(url(world, "new_alert_route"), sentence).status_code == 302
    row = AlertRoute.objects.get()
    assert row.name == f"a loop opens → {hook.name}"
    assert (row.event_types, row.severities) == (["opened"], ["warning", "high", "critical"])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"group_wait_seconds": "999999"}, "Group wait in seconds must be a whole number from 0 to 3,600."),
        ({"group_wait_seconds": "3601"}, "Group wait in seconds must be a whole number from 0 to 3,600."),
        ({"position": "-1"}, "Position must be a whole number from 0 to 10,000."),
        ({"repeat_interval_hours": "1.5"}, "Repeat interval in hours must be a whole number from 0 to 720."),
        ({"quiet_until": "07:00"}, "Give both times of the quiet hours, or neither."),
        ({"destinations": []}, "Choose at least one destination."),
    ],
)
def test_an_invalid_route_names_the_field_and_what_is_allowed(world, hook, change, problem):
    values = {"destinations": [hook.public_id], "group_wait_seconds": "10", "is_enabled": "on", **change}
    saved = world.client.post(url(world, "new_alert_route"), values)
    assert saved.status_code == 422
    assert f"Not saved: {problem}" in text(saved)
    if "destinations" not in change:
        preview = {**values, "action": "preview"}
        shown = world.client.post(url(world, "new_alert_route"), preview, HTTP_HX_REQUEST="true")
        assert problem in text(shown)


def test_a_silence_shows_what_it_hides(world):
    act(world, "silence", reason="rebuild", hours="1")
    note_event(make_incident(world.project, tool="hidden_tool"), "opened")
    routing.route_pending()
    told = world.client.get(url(world, "alerts") + "?tab=silences").content.decode()
    assert "3 hidden alerts" in told
    assert "hidden_tool" in told


def test_mutes_name_their_patterns_and_link_to_them(world):
    names = (NASTY[:60], "read_file")
    found = {}
    for tool in names:
        make_incident(world.project, tool=tool, agent=NASTY)
        found[tool] = Loop.objects.get(project=world.project, tool=tool)
        loop_triage.later(world.project.pk, found[tool].public_id, SYSTEM, until=None, until_worse=True)
    page = f"{url(world, 'alerts')}?tab=silences"

    def shown():
        with CaptureQueriesContext(connection) as queries:
            told = world.client.get(page)
        assert "all alerts" not in text(told)
        assert "<script>alert" not in told.content.decode()
        for tool, row in found.items():
            link = url(world, "loop", row.public_id)
            (words,) = re.findall(rf'href="{link}"\s*>([^<]*)</a>', told.content.decode())
            assert html.unescape(words).startswith(visible(tool))
        return len(queries)

    shown()  # the first page of a process looks more up
    first = shown()
    for place in range(3):
        tool = f"tool_{place}"
        make_incident(world.project, tool=tool)
        found[tool] = Loop.objects.get(project=world.project, tool=tool)
        loop_triage.later(world.project.pk, found[tool].public_id, SYSTEM, until=None, until_worse=True)
    assert shown() == first
    loop_triage.reopen(world.project.pk, found["read_file"].public_id, SYSTEM)
    shown()
    gone = found.pop("tool_0")
    gone.incidents.all().delete()
    shown()
    told = world.client.get(page)
    assert url(world, "loop", gone.public_id) not in told.content.decode()
    assert "loop: tool_0" in text(told)


def test_messages_and_their_attempts_are_shown_with_everything_escaped(world, hook):
    world.client.post(
        url(world, "new_alert_route"),
        {"name": NASTY[:20], "destinations": [hook.public_id], "is_enabled": "on", "group_wait_seconds": "0"},
    )
    incident = make_incident(world.project, tool=NASTY, agent=NASTY, session_name=NASTY)
    note_event(incident, "opened", actor=NASTY, note=NASTY)
    delivery.run(5)
    listed = world.client.get(url(world, "alerts") + "?tab=sent").content.decode()
    shown = world.client.get(
        url(world, "notification", hook.notifications.first().public_id)
    ).content.decode()
    for page in (listed, shown):
        assert "<script>alert" not in page
        assert "\u202e" not in page
    assert "Delivered" in listed


@pytest.mark.parametrize("query", ["?tab=sent&cursor=nonsense", "?tab=sent&q=is:x", "?tab=x"])
def test_odd_addresses_do_not_break_the_page(world, query):
    assert world.client.get(url(world, "alerts") + query).status_code in (200, 404)


def test_another_projects_messages_are_not_found(world, hook):
    act(world, "test", id=hook.public_id)
    other = make_world()
    message = hook.notifications.get().public_id
    assert other.client.get(url(other, "notification", message)).status_code == 404
    assert other.client.get(url(world, "alerts")).status_code == 404


def test_a_project_s_first_day_is_shown_by_itself_and_a_week_later_on(world):
    def chosen():
        page = world.client.get(url(world, "insights")).content.decode()
        return re.search(r'<a\s+href="[^"]*"\s+aria-current="true"\s*>(Last .*?)</a', page)[1]

    loop(world.project, "s-9", calls=6)
    assert chosen() == "Last 24 hours"
    Project.objects.update(first_event_at=timezone.now() - timedelta(days=2))
    assert chosen() == "Last 7 days"


@pytest.mark.parametrize("by", ["detector", "model", "agent", "nonsense"])
def test_insights_group_by_the_given_field(world, by):
    assert world.client.get(url(world, "insights"), {"by": by}).status_code == 200


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("", "by=detector"),
        ("?by=kind&q=agent%3Acoder&range=30d&groups=more", "q=agent%3Acoder&range=30d&by=detector"),
        ("?by=tool&sort=-cost", "sort=-cost&by=tool"),
        ("?by=backend", "by=model"),
    ],
)
def test_the_address_of_the_statistics_leads_to_insights_for_good(world, given, wanted):
    answer = world.client.get(url(world, "statistics") + given)
    assert (answer.status_code, answer["Location"]) == (301, f"{url(world, 'insights')}?{wanted}")


def test_a_session_close_to_a_limit_shows_it_on_its_page_and_among_the_approvals(world):
    overrides.save_override(world.project.pk, PROJECT, {"budget_max_calls": 10}, SYSTEM)
    for number in range(8):
        ask(world.project, "s-close", number, arguments=f'{{"n": {number}}}')
    page = text(world.client.get(url(world, "session", "s-close")))
    assert "Close to a limit" in page
    assert "8 of 9 calls" in page
    assert "8 of 9 calls" in text(world.client.get(url(world, "held")))
    assert "Close to a limit" not in world.client.get(url(world, "session", "s-1")).content.decode()


def test_the_log_and_a_silence_link_to_the_session_where_there_is_no_incident(world, hook):
    act(world, "silence", reason="night work", hours="1", tools="search_*")
    make_route(world.project, hook)
    overrides.save_override(world.project.pk, PROJECT, {"budget_max_calls": 10}, SYSTEM)
    for number in range(8):
        ask(world.project, "s-close", number, arguments=f'{{"n": {number}}}')
        ask(world.project, "s-told", number, tool="read_file", arguments=f'{{"n": {number}}}')
    delivery.run(5)
    silences = world.client.get(f"{url(world, 'alerts')}?tab=silences").content.decode()
    assert f'href="{url(world, "session", "s-close")}"' in silences
    message = hook.notifications.get()
    assert f'href="{url(world, "session", "s-told")}"' in (
        world.client.get(url(world, "notification", message.public_id)).content.decode()
    )


def test_a_route_matches_event_types_without_an_incident(world, hook):
    assert 'value="session.near_limit"' in world.client.get(url(world, "new_alert_route")).content.decode()
    values = {"name": "limits", "destinations": [hook.public_id], "event_types": ["session.near_limit"]}
    world.client.post(url(world, "new_alert_route"), values)
    assert AlertRoute.objects.get().event_types == ["session.near_limit"]


def form_of(page):
    """The fields of the form of a silence as a browser would send them, before anything is filled in."""
    start = page.index('id="new-silence"')
    form = page[start : page.index("</form>", start)]
    inputs = re.findall(r"<input\s[^>]*>", form)
    fields = {}
    for one in inputs:
        found = dict(re.findall(r'(\w+)="([^"]*)"', one))
        if found.get("type") != "checkbox" or "checked" in one.split():
            fields[found["name"]] = html.unescape(found.get("value", ""))
    chosen = re.search(r'<option\s+value="(\d+)"\s+selected', form) or re.search(
        r'<option\s+value="(\d+)"', form
    )
    return {**fields, "hours": chosen.group(1)}


def test_an_incident_whose_alerts_are_silenced_shows_it_and_others_do_not(world, hook):
    make_route(world.project, hook)
    incident = make_incident(
        world.project, tool="search_web", agent="res*", calls_digest="l00p", ended_at=None
    )
    other = make_incident(world.project, tool="a_b_c", agent="research", calls_digest="l00p2", ended_at=None)
    link = f"{url(world, 'alerts')}?tab=silences&tool=search_web"
    form = form_of(world.client.get(link).content.decode())
    form.pop("csrfmiddlewaretoken", None)
    assert form["tools"] == "search_web"
    rejected = world.client.post(url(world, "alerts_act"), form | {"reason": " "}).content.decode()
    assert "<code>reason</code> must have" in rejected
    assert form_of(rejected)["tools"] == "search_web"
    assert world.client.post(url(world, "alerts_act"), form | {"reason": "known"}).status_code == 302
    silence = AlertSilence.objects.get()
    for one in (incident, other):
        note_event(one, "opened")
    routing.route_pending()
    suppressed = {row.facts["id"] for row in silence.suppressed_events.all()}
    assert incident.public_id in suppressed
    assert other.public_id not in suppressed
    shown = [
        world.client.get(url(world, "incident", one.public_id), follow=True).content.decode()
        for one in (incident, other)
    ]
    assert ["Silenced<" in one for one in shown] == [True, False]
