"""Sessions: look at them, and what people and clients do with them.

Names of sessions may hold slashes, which the server gives us decoded; so the action is the last word of the path, and
where a session's own name ends in such a word, the longer name is tried too.
"""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Body, Query, Router

from detection.api import schemas
from detection.api.auth import ADMIN, ADMIN_WITH_BODY, READ, ApiKey, actor, principal_of, project_of
from detection.api.query_parameters import existing, existing_name, refuse_unknown, target
from detection.api.request_bodies import JSON
from detection.api.responses import (
    answer,
    answer_list,
    call_document,
    incident_document,
    notice_document,
    session_document,
)
from detection.api.typed_bodies import described, optional_body
from detection.models import Scope, Session
from detection.selectors import incidents, policies, sessions
from detection.selectors.incidents import IncidentFilters
from detection.selectors.sessions import SessionFilters
from detection.services.sessions import actions as services

router = Router(tags=["sessions"])
_command = ApiKey(Scope.GUARD, (JSON,))
SHOWN_INCIDENTS = 20


def _session(request: HttpRequest, name: str) -> Session:
    return existing(sessions.get_session(project_of(request), existing_name(name)), "session")


@router.get(
    "/sessions",
    auth=READ,
    response={200: schemas.Listed[schemas.SessionOut]},
    operation_id="listSessions",
    summary="List sessions",
)
def list_sessions(request: HttpRequest, query: Query[schemas.SessionQuery]) -> HttpResponse:
    """List sessions, those with the newest events first."""
    refuse_unknown(request, schemas.SessionQuery)
    principal = principal_of(request)
    filters = SessionFilters(**query.dict(exclude={"cursor", "limit"}))
    page = sessions.list_sessions(principal.project_id, filters, query.cursor, query.limit)
    rows = (session_document(row, principal.project_slug) for row in page.items)
    return answer_list(rows, page.next_cursor)


@router.get(
    "/sessions/{path:session}/calls",
    auth=READ,
    response={200: schemas.Listed[schemas.CallOut]},
    operation_id="listCalls",
    summary="List a session's calls",
)
def list_calls(request: HttpRequest, session: str, query: Query[schemas.PageQuery]) -> HttpResponse:
    """List calls in their order, each with its verdict and result."""
    found = sessions.get_session(project_of(request), existing_name(session))
    if found is None:
        return _detail(request, _session(request, f"{session}/calls"))
    refuse_unknown(request, schemas.PageQuery)
    after_seq = sessions.calls_cursor(query.cursor) if query.cursor else 0
    page = sessions.session_calls(found, after_seq=after_seq, limit=query.limit)
    return answer_list((call_document(row) for row in page.items), page.next_cursor)


@router.post(
    "/sessions/{path:session}/commands",
    auth=_command,
    response={200: schemas.CommandOut},
    operation_id="runCommands",
    summary="Carry out in-chat commands",
)
def run_commands(request: HttpRequest, session: str, body: Body[schemas.CommandIn]) -> HttpResponse:
    """Carry out in-chat commands, for clients without the gateway; needs the scope guard."""
    out = services.run_command(project_of(request), existing_name(session), body.text, actor(request))
    values = _session(request, session).policy_values
    return answer({"lines": list(out.lines), "changed": out.is_changed, "policy_values": values})


@router.patch(
    "/sessions/{path:session}/policy",
    auth=ADMIN_WITH_BODY,
    response={200: schemas.SessionDetail},
    operation_id="setSessionPolicy",
    summary="Set a session's own settings",
)
def set_session_policy(request: HttpRequest, session: str, body: Body[dict[str, Any]]) -> HttpResponse:
    """Set some of the session's own settings, by name; one that is null is inherited again. `{"values": {…}}` does too."""
    inner = body.get("values")
    values = inner if isinstance(inner, dict) and body.keys() == {"values"} else body
    changed = services.set_policy(project_of(request), existing_name(session), values, actor(request))
    return _detail(request, changed)


@router.post(
    "/sessions/{path:session}/stop",
    auth=ADMIN,
    response={200: schemas.SessionOut},
    operation_id="stopSession",
    summary="Stop a session",
    openapi_extra=described(schemas.StopIn),
)
def stop_session(request: HttpRequest, session: str) -> HttpResponse:
    """Stop a session: from now on none of its calls is allowed, until somebody resumes it."""
    body = optional_body(request, schemas.StopIn)
    stopped = services.stop(*target(request, session), body.reason)
    return answer(session_document(stopped, principal_of(request).project_slug))


@router.post(
    "/sessions/{path:session}/resume",
    auth=ADMIN,
    response={200: schemas.SessionOut},
    operation_id="resumeSession",
    summary="Resume a stopped session",
)
def resume_session(request: HttpRequest, session: str) -> HttpResponse:
    """Let a stopped session go on; its counters begin anew."""
    resumed = services.resume(*target(request, session))
    return answer(session_document(resumed, principal_of(request).project_slug))


def _get_by_longer_name(last_word: str) -> Any:
    def get_session_by_longer_name(request: HttpRequest, session: str) -> HttpResponse:
        return _detail(request, _session(request, f"{session}/{last_word}"))

    return get_session_by_longer_name


for _word in ("commands", "policy", "stop", "resume"):
    router.get(
        f"/sessions/{{path:session}}/{_word}",
        auth=READ,
        include_in_schema=False,
        operation_id=f"getSessionNamed{_word.title()}",
    )(_get_by_longer_name(_word))


@router.get(
    "/sessions/{path:session}",
    auth=READ,
    response={200: schemas.SessionDetail},
    operation_id="getSession",
    summary="Look at a session",
)
def get_session(request: HttpRequest, session: str) -> HttpResponse:
    """Return a session with the settings that hold for it, each with its source, limits nearly used, and its newest incidents."""
    return _detail(request, _session(request, session))


def _detail(request: HttpRequest, session: Session) -> HttpResponse:
    project = session.project
    policy = policies.effective(project, session=session)
    own = incidents.list_incidents(
        project.pk, IncidentFilters(session=session.external_id), limit=SHOWN_INCIDENTS
    )
    document = session_document(session, project.slug)
    document["policy_values"] = session.policy_values
    document["policy"] = policy.explain(policy.values)
    document["quarantined"] = session.quarantined
    document["limit_notices"] = [notice_document(notice) for notice in session.limit_notices.all()]
    document["incidents"] = [incident_document(row, project.slug) for row in own.items]
    return answer(document)
