"""Every screen with a corpus of payloads in every field: all that agents send stays text, and screens stay accessible."""

import json
from dataclasses import replace

import pytest
from playwright.sync_api import Page

from detection.engine.scopes import Scope
from detection.models import Attempt, Incident, Override
from detection.services.audit import Actor
from detection.services.events.event_records import EventRecord
from detection.services.incidents import loop_triage
from detection.services.ingestion import guard
from detection.services.ingestion.guard import GuardRequest
from detection.services.policies import overrides
from detection.services.sessions import actions
from tests.browser.pages import complaints, noise_of, sign_in
from tests.console.scenes import World, add_gateway, make_world, principal, screens
from tests.support.alerts import make_incident

HIT = "document.title='HIT'"
PAYLOADS = [
    f"<script>{HIT}</script>",
    f"</script><script>{HIT}</script>",
    f"<img src=x onerror={HIT}>",
    f'"><img src=x onerror={HIT}>',
    f"'><svg onload={HIT}>",
    f"<svg><animate onbegin={HIT} attributeName=x dur=1s>",
    f"<details open ontoggle={HIT}>",
    f'<iframe srcdoc="<script>parent.{HIT}</script>"></iframe>',
    f"javascript:{HIT}",
    f"<a href=javascript:{HIT}>x</a>",
    f"<math><mtext></form><form><mglyph><style></math><img src onerror={HIT}>",
    f"<div hx-get=/ hx-trigger=load hx-on:load={HIT}>",
    "<div data-hx-get=/nowhere data-hx-trigger=load>",
    f"<input autofocus onfocus={HIT}>",
    f"<body onpageshow={HIT}>",
    f"<video><source onerror={HIT}>",
    "<form action=https://evil.example><button>",
    "<img src=https://evil.example/beacon.png>",
    "![x](https://evil.example/beacon.png)",
    "<link rel=stylesheet href=https://evil.example/x.css>",
    "<style>@import 'https://evil.example/x.css';</style>",
    "<meta http-equiv=refresh content='0;url=https://evil.example'>",
    "<base href=https://evil.example>",
    "{{ 7*7 }}{% debug %}${7*7}#{7*7}",
    "<!--><script>" + HIT + "</script>-->",
    "]]><script>" + HIT + "</script>",
    "<textarea></textarea><script>" + HIT + "</script>",
    "<title></title><script>" + HIT + "</script>",
    "\\u003cscript\\u003e" + HIT + "\\u003c/script\\u003e",
    "&lt;script&gt;" + HIT + "&lt;/script&gt;",
    "\u202egnp.exe\u202c \u2066hidden\u2069 \u200b\ufeff",
    "a\x1b[31mred\x07",
    "' OR 1=1 --\"`);",
    '=HYPERLINK("https://evil.example")',
    "<x contenteditable onblur=" + HIT + " tabindex=1 id=x>",
]
BAD_CHARACTERS = "\u202e\u202c\u2066\u2069\u200b\ufeff\x1b\x07"


INJECTED = (
    "iframe, object, embed, base, [onerror], [onload], [onfocus], [ontoggle], [contenteditable], link[href*=evil], img, video,"
    " math, script:not([src], [type='application/json']), a[href^=javascript], form[action*=evil], meta[http-equiv]"
)
"""Elements that only a payload would put on a page."""
OF_A_SESSION = ("session", "session table", "session settings", "loop_run")
"""Screens of one session; the others show all sessions of the project."""
LIKE_OTHERS = (
    "policies of a model",
    "new tool rule",
    "connect python",
    "connect mcp",
    "connect anthropic",
    "connect litellm",
)
"""Screens with the template and the rows of another one: only the long tests open them."""


def add_session(world: World, payload: str) -> World:
    """Add a session in which everything that a client can name is the payload; return the world seen from it."""
    project, name = world.project, payload.replace("\x1b", "").replace("\x07", "")[:256]
    arguments = f'{{"q": {json.dumps(payload)}, {json.dumps(payload)}: 1}}'
    short = payload[:120]
    for number in range(5):
        call = EventRecord(
            type="call",
            session=name,
            call_id=f"{short}{number}",
            tool=short,
            arguments=arguments,
            round=f"{short}{number}",
            run=short,
        )
        asked = GuardRequest(
            session=name, backend=short, model=short, agent=short, calls=(call,), parent_session=name
        )
        if guard.guard(principal(project), asked).decision in ("allow", "warn"):
            result = EventRecord(
                type="result", session=name, call_id=f"{short}{number}", content=payload, is_error=number == 1
            )
            guard.guard(principal(project), GuardRequest(session=name, results=(result,)))
    incident = Incident.objects.filter(project=project).latest("pk")
    assert incident.session is not None
    actor = Actor(short, world.user.pk, "10.0.0.1", short[:60])
    loop_triage.comment(project.pk, incident.loop.public_id, actor, payload)
    actions.stop(project.pk, name, actor, payload)
    printable = "".join(character for character in short if character.isprintable())
    scope = Scope("model", backend=printable, model=printable)
    overrides.save_override(project.pk, scope, {"max_repeats": 3}, actor, payload[:300])
    overrides.save_override(
        project.pk,
        Scope("tool", pattern=printable),
        {},
        ignore_arguments=[payload[:60]],
        note=payload[:300],
        actor=actor,
    )
    Override.objects.filter(project=project, backend="openai").update(note=payload[:300])
    Attempt.objects.create(
        project=project,
        route="events",
        status=422,
        code=short[:48],
        detail=payload[:300],
        key_hint=short[:24],
    )
    return replace(world, incident=incident, session=incident.session)


def packed() -> list[str]:
    """Return the payloads joined, as many as fit into the shortest field: fewer sessions, the same text everywhere."""
    texts = [""]
    for payload in PAYLOADS:
        if texts[-1] and len(texts[-1]) + len(payload) > 119:
            texts.append("")
        texts[-1] = f"{texts[-1]} {payload}".strip()
    return texts


def assert_only_text(page: Page, name: str) -> None:
    """Assert that no payload became an element of the page, changed its title or kept a misleading character."""
    assert (
        page.evaluate("found => [...document.querySelectorAll(found)].map(e => e.outerHTML)", INJECTED) == []
    ), name
    assert page.title() != "HIT", name
    shown = page.evaluate("document.body.innerText")
    assert not any(character in shown for character in BAD_CHARACTERS), name


def outside_of(site, page: Page) -> list[str]:
    """Return a list that fills with what the page requests from elsewhere; a dialog fails the test."""
    outside: list[str] = []
    allowed = (site.url, site.live_url, site.live_url.replace("http", "ws", 1), "data:")

    def note(request):
        if not request.url.startswith(allowed):
            outside.append(request.url)

    page.on("request", note)
    page.on("dialog", lambda dialog: pytest.fail(f"a dialog: {dialog.message}"))
    return outside


def make_hostile_world(payloads: list[str]) -> tuple[World, list[World]]:
    """Make the world with all that screens can show, and the same world seen from a session of each payload."""
    world = make_world()
    add_gateway(world, model=payloads[0][:200])
    for _ in range(3):
        make_incident(world.project, tool="poller", label="false_alarm", label_reason="poll")
    seen = [add_session(world, payload) for payload in payloads]
    world.project.name = payloads[-1][:120]
    world.project.save()
    return world, seen


def open_screen(site, page: Page, name: str, url: str) -> None:
    """Open a screen, and assert that no payload runs or becomes an element of it."""
    answer = page.goto(site.url + url)
    assert answer is not None
    assert answer.status == 200, name
    assert_only_text(page, name)


# Each half in a process of its own: together they would be the last tests to end.
@pytest.mark.promise("SEC-10", "SEC-11", "SEC-12")
@pytest.mark.parametrize("half", [0, 1])
@pytest.mark.parametrize("views", [1, pytest.param(4, marks=pytest.mark.long)])
def test_no_screen_runs_a_payload_calls_out_or_has_serious_accessibility_problems(site, page, half, views):
    noise, outside = noise_of(page), outside_of(site, page)
    world, seen = make_hostile_world(packed())
    found: dict[str, list[str]] = {}
    if half == 0:
        page.goto(f"{site.url}/sign-in")
        found["sign-in"] = complaints(page)
    sign_in(page, site, world.user)
    # One of its screens for each of many sessions: the templates of calls and texts are the same.
    for number, one in [*enumerate(seen)][half::2]:
        name = OF_A_SESSION[number // 2 % len(OF_A_SESSION)]
        open_screen(site, page, name, screens(one)[name])
    shown = {name: url for name, url in screens(world).items() if views > 1 or name not in LIKE_OTHERS}
    for number, (name, url) in enumerate([*shown.items()][half::2]):
        open_screen(site, page, name, url)
        found[name] = complaints(page, number, count=views)
    assert {name: problems for name, problems in found.items() if problems} == {}
    assert noise == []
    assert outside == []


@pytest.mark.long
@pytest.mark.parametrize("payload", PAYLOADS)
def test_no_payload_alone_runs_or_calls_out_on_any_screen(site, page, payload):
    outside = outside_of(site, page)
    world, (seen,) = make_hostile_world([payload])
    sign_in(page, site, world.user)
    for name, url in (screens(world) | {name: screens(seen)[name] for name in OF_A_SESSION}).items():
        open_screen(site, page, name, url)
    assert outside == []
