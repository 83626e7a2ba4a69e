"""Whatever agents send is text: a corpus of payloads in every field, opened on every screen in a real browser."""

import pytest

from detection.engine.scopes import Scope
from detection.models import Attempt, Incident, Override
from detection.services.audit import Actor
from detection.services.incidents import triage
from detection.services.ingestion import guard
from detection.services.ingestion.guard import GuardIn
from detection.services.policies import overrides
from detection.services.sessions import actions
from detection.services.sessions.event_records import EventRecord
from tests.browser.test_screens import sign_in
from tests.console.scenes import World, make_world, principal, screens

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


def hostile_world(payload: str) -> World:
    """A world in which everything a client can name is the payload."""
    world = make_world()
    project, name = world.project, payload.replace("\x1b", "").replace("\x07", "")[:256]
    arguments = '{"q":' + __import__("json").dumps(payload) + "," + __import__("json").dumps(payload) + ":1}"
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
        asked = GuardIn(
            session=name, backend=short, model=short, agent=short, calls=(call,), parent_session=name
        )
        if guard.guard(principal(project), asked).decision in ("allow", "warn"):
            result = EventRecord(
                type="result", session=name, call_id=f"{short}{number}", content=payload, is_error=number == 1
            )
            guard.guard(principal(project), GuardIn(session=name, results=(result,)))
    world.incident = Incident.objects.filter(project=project).latest("pk")
    world.session = world.incident.session
    actor = Actor(short, world.user.pk, "10.0.0.1", short[:60])
    triage.comment(project.pk, world.incident.public_id, actor, payload)
    actions.stop(project.pk, name, actor, payload)
    overrides.save_override(
        project.pk, Scope("model", backend=short, model=short), {"max_repeats": 3}, actor, payload[:300]
    )
    overrides.save_tool_rule(
        project.pk, short, ignore_arguments=[payload[:60]], note=payload[:300], actor=actor
    )
    Override.objects.filter(project=project, backend="openai").update(note=payload[:300])
    project.name = short
    project.save()
    Attempt.objects.create(
        project=project,
        route="events",
        status=422,
        code=short[:48],
        detail=payload[:300],
        key_hint=short[:24],
    )
    return world


def packed() -> list[str]:
    """The payloads, as many together as fit into the shortest field: fewer worlds, the same text everywhere."""
    texts = [""]
    for payload in PAYLOADS:
        if texts[-1] and len(texts[-1]) + len(payload) > 119:
            texts.append("")
        texts[-1] = f"{texts[-1]} {payload}".strip()
    return texts


BATCHES = 4


@pytest.mark.parametrize("batch", range(BATCHES))
def test_no_payload_runs_or_calls_out_on_any_screen(site, page, batch):
    chosen = packed()[batch::BATCHES]
    outside: list[str] = []
    page.on(
        "request",
        lambda request: (
            outside.append(request.url)
            if not request.url.startswith((site.url, site.live_url, "data:"))
            else None
        ),
    )
    page.on("dialog", lambda dialog: pytest.fail(f"a dialog: {dialog.message}"))
    for payload in chosen:
        world = hostile_world(payload)
        page.context.clear_cookies()
        sign_in(page, site, world.user.get_username())
        for name, url in screens(world).items():
            if name in ("preferences", "policies of a model"):
                continue
            page.goto(site.url + url)
            # What stands in the page as an element of somebody else's making would have one of these.
            made = page.evaluate(
                "[...document.querySelectorAll('iframe, object, embed, base, [onerror], [onload], [onfocus], [ontoggle], [contenteditable],"
                " link[href*=evil], img, video, math, script:not([src]), a[href^=javascript], form[action*=evil], meta[http-equiv]')].map(e => e.outerHTML)"
            )
            assert made == [], (name, payload)
            assert page.title() != "HIT", (name, payload)
            shown = page.evaluate("document.body.innerText")
            assert not any(character in shown for character in BAD_CHARACTERS), (name, payload)
    assert [url for url in outside if not url.startswith("ws")] == []
