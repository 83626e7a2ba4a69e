"""Session data of the gateway: whether a session is stopped, and how its history is rewritten."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TypedDict

from django.db.models import Q

from detection import clock
from detection.engine.policy import Policy
from detection.models import ContainmentReaction, EventKey, GatewayRewrite, Project, Session
from detection.selectors.ancestors import ancestors_of
from detection.selectors.containments import Caller, containments_of, in_force
from detection.selectors.policies import effective
from detection.services.policies.message_templates import templates_of
from detection.services.sessions import containment
from detection.services.sessions.actions import ended_message, note_refused_request, stopped_message

MAX_REWRITES = 1_000
"""Maximum number of rewritten answers per session; beyond it, the oldest ones are left as the client sends them."""


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """A session at the beginning of a request.

    Attributes
    ----------
    stopped
        The message that a person or a containment stopped it, or empty.
    ended
        The message that a loop has ended the run, or empty. It holds until a person asks for something else.
    ends_in_error
        Whether the answer with one of these messages ends as an error.
    rewrites
        JSON texts, oldest first.
    max_repeated_words
        The limit for repeated words in an answer; 0 if nobody looks for them.
    cuts
        Whether the stream of an answer that reaches it is ended.
    """

    stopped: str = ""
    ended: str = ""
    ends_in_error: bool = False
    rewrites: tuple[str, ...] = ()
    max_repeated_words: int = 0
    cuts: bool = False


def session_facts(
    project_id: int, external_id: str, agent: str, backend: str, model: str, api_key: str
) -> SessionFacts:
    """Return the facts of a session; of one that does not exist yet, those of its agent, backend, model and key.

    The request of a stopped session is refused, which is recorded.
    Costs two queries, and those of the policy when it has changed.
    """
    session = (
        Session.objects.select_related("project")
        .filter(project_id=project_id, external_id=external_id)
        .first()
    )
    if session is None:
        project = Project.objects.get(pk=project_id)
        policy = effective(project, agent, backend, model)
        asked = OpenRequest(project_id, external_id, agent, model, api_key)
        return _contained(project, _caller(project, None, asked), policy) or SessionFacts(**_limits(policy))
    rows = GatewayRewrite.objects.filter(session=session).order_by("-id").values_list("body", flat=True)
    rewrites = tuple(reversed(rows[:MAX_REWRITES]))
    policy = effective(session.project, agent, backend, model, session=session)
    ends_in_error = preset_ends_in_error(str(policy.values["preset"]))
    if session.is_stopped_by_person:
        note_refused_request(project_id, external_id)
        return SessionFacts(stopped_message(session), ends_in_error=ends_in_error, rewrites=rewrites)
    if containments_of(session.project).rules:
        asked = OpenRequest(project_id, external_id, agent, model, api_key)
        contained = _contained(session.project, _caller(session.project, session, asked), policy)
        if contained is not None:
            note_refused_request(project_id, external_id)
            return replace(contained, rewrites=rewrites)
    ended = ended_message(session) if session.is_ended_by_loop else ""
    return SessionFacts(ended=ended, ends_in_error=ends_in_error, rewrites=rewrites, **_limits(policy))


def _contained(project: Project, caller: Caller, policy: Policy) -> SessionFacts | None:
    """Return the facts of a session that a containment stops: the model server is not even asked."""
    rule = containments_of(project).covering(caller, None)
    if rule is None or rule.reaction != ContainmentReaction.STOP:
        return None
    text = containment.message_of(rule, "", templates_of(project).by_rung)
    ends_in_error = preset_ends_in_error(str(policy.values["preset"]))
    return SessionFacts(text, ends_in_error=ends_in_error)


class _Limits(TypedDict, total=False):
    max_repeated_words: int
    cuts: bool


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """What a containment may name of a request that is being served; the session may have no name yet."""

    project_id: int
    session: str
    agent: str
    model: str
    api_key: str


def contained_requests(requests: Iterable[OpenRequest]) -> dict[OpenRequest, str]:
    """Return those of the requests that a containment stops, with the message for the agent.

    One query while no containment is in force in their projects, and a query for each of those projects otherwise.
    """
    by_project: dict[int, list[OpenRequest]] = {}
    for one in requests:
        by_project.setdefault(one.project_id, []).append(one)
    rules = in_force(clock.now()).filter(Q(project_id__in=[*by_project]) | Q(project=None))
    projects = {*rules.filter(reaction=ContainmentReaction.STOP).values_list("project_id", flat=True)}
    stopped: dict[OpenRequest, str] = {}
    for project in Project.objects.filter(pk__in=[*by_project] if None in projects else projects):
        names = {one.session for one in by_project[project.pk]}
        rows = Session.objects.filter(project_id=project.pk, external_id__in=names)
        sessions = {row.external_id: row for row in rows}
        for one in by_project[project.pk]:
            caller = _caller(project, sessions.get(one.session), one)
            rule = containments_of(project).covering(caller, None)
            if rule is not None and rule.reaction == ContainmentReaction.STOP:
                stopped[one] = containment.message_of(rule, "", templates_of(project).by_rung)
    return stopped


def _caller(project: Project, session: Session | None, asked: OpenRequest) -> Caller:
    if session is None:
        return Caller(asked.agent, asked.model, asked.api_key, (), (asked.session,), clock.now())
    session.project, session.api_key = project, asked.api_key or session.api_key
    above = ancestors_of(session) if containments_of(project).needs_family else None
    family = above.names if above else (session.external_id, session.parent_external_id)
    return Caller.of(session, family, agent=asked.agent, model=asked.model)


def _limits(policy: Policy) -> _Limits:
    values = policy.values
    if not (values["enabled"] and values["degenerate_enabled"]):
        return {}
    words = values["degenerate_max_words"]
    return {"max_repeated_words": words, "cuts": values["degenerate_reaction"] == "cut"}


def session_of_response(project_id: int, response_id: str) -> str:
    """Return the name of the session in which a response was given, empty if that is not known; one query."""
    found = EventKey.objects.filter(project_id=project_id, digest=_digest_of_response(response_id)).values(
        "session_id"
    )
    names = Session.objects.filter(project_id=project_id, pk__in=found).values_list("external_id", flat=True)
    return names.first() or ""


def store_response(project_id: int, external_id: str, response_id: str) -> None:
    """Store the session of a response.

    It is kept as long as event ids; nothing is stored for a session without events.
    """
    found = (
        Session.objects.filter(project_id=project_id, external_id=external_id)
        .values_list("pk", flat=True)
        .first()
    )
    if found is not None:
        key = EventKey(project_id=project_id, digest=_digest_of_response(response_id), session_id=found)
        EventKey.objects.bulk_create([key], ignore_conflicts=True)


def _digest_of_response(response_id: str) -> bytes:
    name = response_id.encode("utf-8", "surrogatepass")
    return hashlib.blake2b(name, digest_size=16, person=b"response").digest()


def preset_ends_in_error(preset: str) -> bool:
    """Return whether a stop ends an answer as an error: the known system behind this preset marks it so."""
    return preset == "proxy"


def store_rewrite(project_id: int, external_id: str, answer: tuple[str, int], body: str) -> None:
    """Store how the history is rewritten around an answer; does nothing if the project stores no payloads."""
    session = (
        Session.objects.select_related("project")
        .filter(project_id=project_id, external_id=external_id)
        .first()
    )
    if session is None or not session.project.stores_payloads:
        return
    digest = hashlib.blake2b(answer[0].encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
    name = f"{digest}:{answer[1]}"
    GatewayRewrite.objects.update_or_create(session=session, answer=name, defaults={"body": body})
