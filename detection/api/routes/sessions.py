"""Routes of sessions, their calls and actions on them.

Session names may contain slashes, which the server passes on decoded. The action is the last part of the path; if a
session name itself ends in such a part, the longer name is tried, too.
"""

from __future__ import annotations

from dataclasses import asdict
from functools import partial
from typing import Any

from django.http import HttpResponse
from ninja import Body, Query, Router

from detection.api.auth import ADMIN, ADMIN_WITH_BODY, READ, ApiKeyAuth
from detection.api.pages import page_response, query_of
from detection.api.query_parameters import check_parameters, existing, session_name, target
from detection.api.request_bodies import JSON
from detection.api.requests import ApiRequest, actor_of
from detection.api.responses import json_response
from detection.api.schemas.common import PageSchema
from detection.api.schemas.sessions import (
    CallPageSchema,
    CallQuerySchema,
    CallSchema,
    CommandReplySchema,
    CommandRequestSchema,
    CommandResultSchema,
    LimitNoticeSchema,
    QuarantinedEventSchema,
    RevokeExemptionSchema,
    SessionCountsSchema,
    SessionDetailSchema,
    SessionFilterSchema,
    SessionQuerySchema,
    SessionSchema,
    StopRequestSchema,
)
from detection.api.typed_bodies import described, optional_body
from detection.filtering import language
from detection.models import KeyScope, Session
from detection.selectors import dashboard, incidents, policies, sessions
from detection.selectors.incidents import ALL_INCIDENTS
from detection.selectors.lists import SESSIONS
from detection.selectors.row_fields import document_of
from detection.services.sessions import actions as services
from detection.web.documents import incident_document, session_document

router = Router(tags=["sessions"])
_command = ApiKeyAuth(KeyScope.GUARD, (JSON,))
SHOWN_INCIDENTS, SHOWN_TOOLS = 20, 100
_PARAMETERS = {name: name for name in ("agent", "backend", "model", "tool", "demo")}
"""Typed parameters and the fields of the filter language that they select values of."""
SHOWN_QUARANTINED = 100


def _session(request: ApiRequest, name: str) -> Session:
    return existing(sessions.get_session(request.principal.project_id, session_name(request, name)))


@router.get(
    "/sessions",
    auth=READ,
    response={200: PageSchema[SessionSchema]},
    summary="List sessions",
)
def list_sessions(request: ApiRequest, query: Query[SessionQuerySchema]) -> HttpResponse:
    """List sessions, most recently active first."""
    wanted = query_of(request, SESSIONS, query, _PARAMETERS | {"state": "is"})
    document = partial(session_document, project=request.principal.project_slug)
    return page_response(request, query, wanted, sessions.list_sessions, document)


@router.get(
    "/session-counts",
    auth=READ,
    response={200: SessionCountsSchema},
    summary="Get the number of sessions by state",
)
def get_session_counts(request: ApiRequest, query: Query[SessionFilterSchema]) -> HttpResponse:
    """Get the number of sessions by state, under the same filters as the list."""
    check_parameters(request, SessionFilterSchema)
    counts = dashboard.state_counts(
        request.principal.project_id, query_of(request, SESSIONS, query, _PARAMETERS)
    )
    return json_response(asdict(counts))


@router.get(
    "/sessions/{path:session}/calls",
    auth=READ,
    response={200: CallPageSchema},
    summary="List the calls of a session",
)
def list_calls(request: ApiRequest, session: str, query: Query[CallQuerySchema]) -> HttpResponse:
    """List calls in order, each with its verdict and its result, and the replies to in-chat commands between them."""
    found = sessions.get_session(request.principal.project_id, session_name(request, session))
    if found is None:
        return _detail(request, _session(request, f"{session}/calls"))
    check_parameters(request, CallQuerySchema)
    after_seq = sessions.calls_cursor(query.cursor) if query.cursor else 0
    page = sessions.session_calls(found, after_seq=after_seq, limit=query.limit)
    up_to_seq = page.items[-1].seq if page.next_cursor else None
    replies = sessions.command_replies(found, after_seq=after_seq, up_to_seq=up_to_seq)
    return json_response(
        {
            "items": [document_of(row, CallSchema) for row in page.items],
            "next_cursor": page.next_cursor,
            "command_replies": [document_of(row, CommandReplySchema) for row in replies],
        }
    )


@router.post(
    "/sessions/{path:session}/commands",
    auth=_command,
    response={200: CommandResultSchema},
    summary="Run in-chat commands",
)
def run_commands(request: ApiRequest, session: str, body: Body[CommandRequestSchema]) -> HttpResponse:
    """Run in-chat commands. Requires the `guard` scope."""
    out = services.run_command(
        request.principal.project_id, session_name(request, session), body.text, actor_of(request)
    )
    values = _session(request, session).policy_values
    return json_response({"lines": list(out.lines), "changed": out.is_changed, "policy_values": values})


@router.patch(
    "/sessions/{path:session}/policy",
    auth=ADMIN_WITH_BODY,
    response={200: SessionDetailSchema},
    summary="Update the overrides of a session",
)
def update_session_policy(request: ApiRequest, session: str, body: Body[dict[str, object]]) -> HttpResponse:
    """Set overrides of the session by name. Null removes one. `{"values": {…}}` is accepted, too."""
    inner = body.get("values")
    values = inner if isinstance(inner, dict) and body.keys() == {"values"} else body
    changed = services.set_policy(
        request.principal.project_id, session_name(request, session), values, actor_of(request)
    )
    return _detail(request, changed)


@router.post(
    "/sessions/{path:session}/stop",
    auth=ADMIN,
    response={200: SessionSchema},
    summary="Stop a session",
    openapi_extra=described(StopRequestSchema),
)
def stop_session(request: ApiRequest, session: str) -> HttpResponse:
    """Stop a session: each further call that asks is refused until the session is resumed.

    `state` says what has come of it: it is `stopping` until a call is blocked, and a session that only reports its
    calls is `stop_unenforced`.
    """
    body = optional_body(request, StopRequestSchema)
    stopped = services.stop(*target(request, session_name(request, session)), body.reason)
    return json_response(session_document(stopped, request.principal.project_slug))


@router.post(
    "/sessions/{path:session}/resume",
    auth=ADMIN,
    response={200: SessionSchema},
    summary="Resume a session",
)
def resume_session(request: ApiRequest, session: str) -> HttpResponse:
    """Resume a stopped session. Its counters are reset. Of one that only reports its calls, the stop is withdrawn."""
    resumed = services.resume(*target(request, session_name(request, session)))
    return json_response(session_document(resumed, request.principal.project_slug))


@router.post(
    "/sessions/{path:session}/revoke-exemption",
    auth=ADMIN_WITH_BODY,
    response={200: SessionDetailSchema},
    summary="Revoke the exemption of a tool",
)
def revoke_exemption(request: ApiRequest, session: str, body: Body[RevokeExemptionSchema]) -> HttpResponse:
    """Revoke the exemption of a tool in a session. Detection counts the tool again from its next call."""
    project_id, name, actor = target(request, session_name(request, session))
    return _detail(request, services.revoke_exemption(project_id, name, body.tool, actor))


def _get_by_longer_name(last_word: str) -> Any:
    def get_session_by_longer_name(request: ApiRequest, session: str) -> HttpResponse:
        return _detail(request, _session(request, f"{session}/{last_word}"))

    return get_session_by_longer_name


for _word in ("commands", "policy", "stop", "resume", "revoke-exemption"):
    router.get(
        f"/sessions/{{path:session}}/{_word}",
        auth=READ,
        include_in_schema=False,
        operation_id=f"getSessionNamed{_word.title()}",
    )(_get_by_longer_name(_word))


@router.get(
    "/sessions/{path:session}",
    auth=READ,
    response={200: SessionDetailSchema},
    summary="Get a session",
)
def get_session(request: ApiRequest, session: str) -> HttpResponse:
    """Return a session with its effective settings, its limit notices, and its newest incidents."""
    return _detail(request, _session(request, session))


def _detail(request: ApiRequest, session: Session) -> HttpResponse:
    project = session.project
    policy = policies.effective(project, session=session)
    own = incidents.list_incidents(
        project.pk,
        ALL_INCIDENTS.narrowed(language.term("session", session.external_id)),
        limit=SHOWN_INCIDENTS,
    )
    document = session_document(session, project.slug)
    document["policy_values"] = session.policy_values
    document["policy"] = policy.explain(policy.values)
    document["kept_over_preset"] = [one._asdict() for one in policy.kept_over_preset()]
    document["exempt_tools"] = session.exempt_tools
    document["tools"] = [asdict(tool) for tool in sessions.called_tools(session, limit=SHOWN_TOOLS)]
    document["quarantined_count"] = session.quarantined_events.count()
    newest = session.quarantined_events.order_by("-id")[:SHOWN_QUARANTINED]
    document["quarantined"] = [document_of(row, QuarantinedEventSchema) for row in newest]
    document["limit_notices"] = [
        document_of(notice, LimitNoticeSchema) for notice in session.limit_notices.all()
    ]
    document["incidents"] = [incident_document(row, project.slug) for row in own.items]
    return json_response(document)
