"""Small believable worlds for tests of screens, made by the services that make them in earnest."""

from __future__ import annotations

import copy
import itertools
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from django.test import Client
from django.utils import timezone

from detection.engine.scopes import Scope
from detection.models import (
    Attempt,
    Incident,
    Loop,
    Project,
    Role,
    Session,
    SessionState,
    TranscriptImport,
    WhatIf,
)
from detection.services.audit import SYSTEM
from detection.services.events.event_records import EventRecord
from detection.services.gateway import backends, prices
from detection.services.gateway.traffic import TrafficCounts, TrafficKey, store_traffic
from detection.services.ingestion import guard
from detection.services.ingestion.guard import GuardRequest, GuardResponse
from detection.services.ingestion.run_import import summarise
from detection.services.keys import Principal
from detection.services.policies import overrides
from detection.services.search import indexing
from detection.services.what_if import changes, what_ifs, worker
from tests.support.projects import make_key, make_member, make_project

PASSWORD = "right horse"
_policy_versions = itertools.count(1_000_000, 1_000)


def principal(project: Project, *, is_demo: bool = False) -> Principal:
    """Whoever sends calls of this project."""
    return Principal(
        0,
        "test",
        project.pk,
        project.slug,
        frozenset(("guard", "ingest")),
        is_demo,
        None,
        bytes(project.digest_secret),
    )


def ask(
    project: Project,
    session: str,
    number: int,
    *,
    tool="search_web",
    arguments='{"q":"reset"}',
    cost_usd=0.0,
    **more: Any,
) -> GuardResponse:
    """Ask whether a call may run."""
    is_demo = more.pop("is_demo", False)
    results = more.pop("results", ())
    call = EventRecord(
        type="call",
        session=session,
        call_id=f"call-{number}",
        tool=tool,
        arguments=arguments,
        cost_usd=cost_usd,
    )
    more = {"backend": "openai", "model": "gpt-5", "agent": "researcher", **more}
    return guard.guard(
        principal(project, is_demo=is_demo),
        GuardRequest(session=session, calls=(call,), results=results, **more),
    )


def result_of(session: str, number: int, content: str, *, is_error: bool = False) -> EventRecord:
    """What a call came to."""
    return EventRecord(
        type="result", session=session, call_id=f"call-{number}", content=content, is_error=is_error
    )


def answer(project: Project, session: str, number: int, content: str, *, is_error: bool = False) -> None:
    """Report what a call came to."""
    result = result_of(session, number, content, is_error=is_error)
    guard.guard(principal(project), GuardRequest(session=session, results=(result,)))


def loop(
    project: Project, session: str = "s-1", *, calls: int = 4, content: str = "0 results", **more: Any
) -> Incident:
    """Let a session ask the same thing again and again; return its first incident."""
    results: tuple[EventRecord, ...] = ()
    for number in range(calls):
        decision = ask(project, session, number, results=results, **more).decision
        results = (result_of(session, number, content),) if decision in ("allow", "warn") else ()
    if results:
        guard.guard(principal(project), GuardRequest(session=session, results=results))
    return Incident.objects.filter(project=project, session_name=session).earliest("pk")


@dataclass
class World:
    """A project with an administrator who is signed in, a looping session and its incident."""

    project: Project
    client: Client
    user: Any
    incident: Incident
    session: Session

    @cached_property
    def an_import(self) -> TranscriptImport:
        """An import, made where it is looked at."""
        return finished_import(self.incident)

    def copy(self) -> World:
        """Return the world for one of the tests that share its rows: with objects and a client of its own.

        Its policy version is new, because processes cache policies by version, and the tests save different ones.
        """
        client = Client()
        client.cookies.update(self.client.cookies)
        own = copy.deepcopy(self, {id(self.client): client})
        own.project.policy_version = next(_policy_versions)
        own.project.save(update_fields=["policy_version"])
        return own

    @property
    def base(self) -> str:
        """Where the project's pages are."""
        return f"/p/{self.project.slug}"


def run_address(incident: Incident) -> str:
    """Where the page of a loop shows this incident."""
    assert incident.loop is not None
    return f"/p/{incident.project.slug}/loops/{incident.loop.public_id}?run={incident.public_id}"


def finished_import(incident: Incident) -> TranscriptImport:
    """An import as a worker leaves it, whose worst loop is this incident."""
    assert incident.session_id is not None
    summary = asdict(summarise(incident.project, [incident.session_id]))
    return TranscriptImport.objects.create(
        project=incident.project,
        kind="claude-code",
        files=[{"name": f"{incident.tool}.jsonl", "bytes": 4096}],
        total_bytes=4096,
        done_bytes=4096,
        created_by=incident.agent,
        state="finished",
        is_checked=True,
        sessions=1,
        skipped=[f"No claude-code session in {incident.session_name}."],
        summary=summary,
        finished_at=incident.opened_at,
    )


def make_world(role: str = Role.ADMIN, *, session: str = "s-1", **text: Any) -> World:
    """Make the world; `text` replaces names that clients choose."""
    project = make_project()
    user = make_member(project, role)
    make_key(project)
    incident = loop(project, session, **text)
    overrides.save_override(
        project.pk, Scope("model", backend="openai", model="gpt-5"), {"max_repeats": 5}, SYSTEM, "because"
    )
    overrides.save_override(
        project.pk, Scope("tool", pattern="get_*"), {}, tool_class="poll", note="polls", actor=SYSTEM
    )
    Attempt.objects.create(
        project=project, route="events", status=422, code="missing_field", detail="events[0].tool is missing"
    )
    Attempt.objects.create(project=project, route="events", status=202, accepted=7, altered=1)
    indexing.index_texts()
    client = Client()
    client.force_login(user)
    assert incident.session is not None
    return World(project, client, user, incident, incident.session)


def what_if_of(world: World, scope: str = "project") -> WhatIf:
    """A finished what-if of the project that changes something, or of its session, made where there is none."""
    row = WhatIf.objects.filter(project=world.project, change__scope=scope).first()
    if row is None:
        name = world.session.external_id if scope == "session" else ""
        change = changes.check(world.project.pk, scope, {"enabled": False}, session=name)
        row = what_ifs.create_what_if(world.project.pk, change, SYSTEM)
        worker.run_waiting(lambda: False)
    return row


def add_gateway(world: World, **text: str) -> None:
    """Add backends with a token, prices, and an hour of traffic; `text` replaces the name of a model without a price."""
    upstreams = {"openai": "https://api.openai.com/v1", "anthropic": "https://api.anthropic.com"}
    rows = [
        backends.create_backend(world.project.pk, SYSTEM, name=name, kind=name, base_url=url)
        for name, url in upstreams.items()
    ]
    backends.create_token(world.project.pk, rows[0].public_id, SYSTEM, name="ci")
    amounts = {"input_usd": "1.25", "cached_input_usd": "0.125", "output_usd": "10"}
    prices.save_price(world.project.pk, SYSTEM, model="gpt-5*", **amounts)
    prices.save_price(
        world.project.pk,
        SYSTEM,
        backend="anthropic",
        model="claude-*",
        input_usd=3,
        cache_write_usd="3.75",
        output_usd=15,
    )
    minute = int(timezone.now().timestamp()) // 60
    counts: dict[TrafficKey, TrafficCounts] = {}
    models = ("gpt-5", text.get("model", "gpt-oss-120b")), ("claude-sonnet-4-5",)
    for row, names in zip(rows, models, strict=True):
        for name in names:
            for ago in range(55):
                number = 3 + (ago * 7) % 11
                one = TrafficCounts(requests=number, input_tokens=number * 9_000, output_tokens=number * 400)
                one.cached_tokens, one.rate_limited, one.cut = (
                    number * 6_000,
                    int(ago % 20 == 3),
                    int(ago == 40),
                )
                for place in range(number):
                    one.count_added(2.0 + (place * ago) % 9 + 30 * (place == 7))
                counts[TrafficKey(row.project_id, row.public_id, minute - ago, name)] = one
    store_traffic(counts)


def loop_of(incident: Incident) -> Loop:
    """Return the loop of an incident."""
    assert incident.loop is not None
    return incident.loop


def screens(world: World) -> dict[str, str]:
    """Every screen of a project by name."""
    from detection.console import permalinks

    session = permalinks.session_url(world.project.slug, world.session.external_id)
    more = "&" if "?" in session else "?"
    base = world.base
    return {
        "now": f"{base}/now",
        "sessions": f"{base}/sessions",
        "session": session,
        "session table": f"{session}{more}tab=calls&call=1",
        "session settings": f"{session}{more}tab=settings",
        "loop_history": f"{base}/loops/history",
        "loop_run": run_address(world.incident),
        "loop_fine": f"{base}/loops/{world.incident.loop.public_id}/fine",
        "loops": f"{base}/loops?q=",
        "loop": f"{base}/loops/{loop_of(world.incident).public_id}",
        "policies": f"{base}/policies",
        "policies of a model": f"{base}/policies/settings?scope=model:openai/gpt-5",
        "which value applies": f"{base}/policies?model=openai/gpt-5&setting=max_repeats",
        "tools": f"{base}/policies/tools",
        "messages": f"{base}/policies/messages",
        "change here": f"{base}/policies/change?setting=max_repeats&scope=model:openai/gpt-5",
        "verify": f"{base}/policies/verify?setting=max_repeats&model=gpt-5&backend=openai",
        "tool rule": f"{base}/policies/tools?pattern=get_*",
        "new tool rule": f"{base}/policies/tools?new=",
        "policy history": f"{base}/policies/history",
        "what-ifs": f"{base}/policies/what-ifs",
        "what-if": f"{base}/policies/what-ifs/{what_if_of(world).public_id}",
        "connect": f"{base}/connect",
        "connect codex": f"{base}/connect/guides/codex",
        "connect python": f"{base}/connect/guides/python",
        "connect api": f"{base}/connect/guides/api",
        "connect langgraph": f"{base}/connect/guides/langgraph",
        "connect mastra": f"{base}/connect/guides/mastra",
        "connect opentelemetry": f"{base}/connect/guides/opentelemetry",
        "connect imports": f"{base}/connect/guides/imports",
        "connect mcp": f"{base}/connect/guides/mcp",
        "connect openai": f"{base}/connect/base-url/openai",
        "connect anthropic": f"{base}/connect/base-url/anthropic",
        "connect litellm": f"{base}/connect/base-url/litellm",
        "gateway": f"{base}/gateway",
        "gateway traffic": f"{base}/gateway/traffic",
        "prices": f"{base}/gateway/prices",
        "imports": f"{base}/connect/imports",
        "import": f"{base}/connect/imports/{world.an_import.public_id}",
        "keys": f"{base}/keys",
        "agents": f"{base}/agents",
        "ingest": f"{base}/ingest",
        "system": f"{base}/system",
        "quarantined events": f"{base}/quarantined-events",
        "search": f"{base}/search?q=search",
        "containments": f"{base}/contain?scope=agent&value=triage&reaction=stop&reason=test",
        "audit": f"{base}/audit",
        "settings": f"{base}/settings",
        "project": f"{base}/settings/project",
        "members": f"{base}/members",
        "projects": "/projects",
        "preferences": "/preferences",
        "account": "/account",
        "second factor": "/account/second-factor",
    }


def text(page: Any) -> str:
    """Return the words of a response without its markup, with single spaces."""
    body = re.sub(r"<(script|style)[\s\S]*?</\1>", "", page.content.decode())
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", body))


_STATES = {state.label: state.value for state in SessionState} | {"Silent": "silent", "Stopped": "stopped"}


def tabs_of(html: str) -> dict[str, int]:
    """Return the numbers of the tabs of a page, by the state or the words of each."""
    return {
        _STATES.get(words, words.lower().replace(",", "").replace(" ", "_")): int(count)
        for words, count in re.findall(r">\s*([\w ,]+?)\s*<span class=\"n\">(\d+)</span>", html)
    }


def tabs_for(states: Mapping[str, int]) -> dict[str, int]:
    """What the tabs of Sessions say of these numbers by state."""
    down = ("stopping", "stopped", "calls_blocked", "stop_unenforced", "still_calling")
    return {
        "active": sum(states[state.value] for state in SessionState) - states["ended"],
        **{state: states[state] for state in ("looping", "silent", "held", "ended")},
        "stopped": sum(states[state] for state in down),
    }
