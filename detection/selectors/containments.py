"""Which containments are in force, which calls and sessions they cover, and what people left for agents.

A process caches them with the version of the project that every call reads with its session: a containment is in force
for each call that is committed after it, in every process, for the cost of a dictionary look-up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from math import inf
from typing import Annotated, Final

from django.db.models import Count, F, Q, QuerySet, Value
from django.db.models.expressions import RawSQL

from detection import clock
from detection.engine.calls import DECISIONS
from detection.models import (
    AgentMessage,
    AgentTags,
    ApiKey,
    Containment,
    Project,
    Session,
)
from detection.models.containments import OF_CALLS, ContainmentReaction, ContainmentScope
from detection.models.sessions import IMPORTED
from detection.selectors.filters import Like, like_pattern
from detection.selectors.project_cache import ProjectCache
from detection.selectors.row_fields import Shown

DONE: Final = {"stop": "stopped", "hold": "put on hold", "block": "blocked"}
RECENT: Final = timedelta(hours=1)
"""A session without a call for longer counts as ended, and is not among those that a containment reaches."""
MAX_MESSAGES: Final = 1_000
"""Waiting messages that a process knows of a project; later ones wait until some of these are delivered."""
_FAMILY = (
    "WITH RECURSIVE line (name) AS (SELECT %s::text UNION SELECT s.external_id::text FROM detection_session s"
    " JOIN line ON s.parent_external_id = line.name WHERE s.project_id = ANY(%s)) SELECT name FROM line"
)


@dataclass(frozen=True, slots=True)
class Caller:
    """What a containment may name of a call and its session.

    Attributes
    ----------
    family
        The session and those above it.
    """

    agent: str
    model: str
    api_key: str
    tags: Sequence[str]
    family: Sequence[str]
    started_at: datetime

    @classmethod
    def of(cls, session: Session, family: Sequence[str], *, agent: str = "", model: str = "") -> Caller:
        """Return the caller of a call of a session; names of the call come before those of the session."""
        return cls(
            agent or session.agent,
            model or session.model,
            session.api_key,
            session.tags,
            family,
            session.started_at,
        )


@dataclass(frozen=True, slots=True)
class ContainmentRule:
    """A containment in force, as calls are compared with it."""

    public_id: str
    scope: str
    value: str
    tool: str
    reaction: str
    reason: str
    by: str
    created_at: datetime
    include_new: bool

    @property
    def is_of_calls(self) -> bool:
        """Whether it covers calls of a tool only."""
        return self.scope in OF_CALLS

    @property
    def words(self) -> str:
        """What it is about, in words."""
        return describe(self.scope, self.value, self.tool)

    @property
    def done(self) -> str:
        """What happened, in words."""
        return DONE[self.reaction]


@dataclass(frozen=True, slots=True)
class ProjectContainments:
    """What is in force in a project at one version of it.

    Attributes
    ----------
    rules
        The strictest reaction first, the oldest first among equals.
    tags_of_agents, tags_of_keys
        Read only where a rule names a tag.
    messages_to_sessions, messages_to_agents
        Ids of messages that wait, by the name of the session or agent, oldest first.
    valid_until
        Unix time at which the next rule ends.
    """

    rules: tuple[ContainmentRule, ...] = ()
    tags_of_agents: Mapping[str, Sequence[str]] | None = None
    tags_of_keys: Mapping[str, Sequence[str]] | None = None
    messages_to_sessions: Mapping[str, Sequence[str]] | None = None
    messages_to_agents: Mapping[str, Sequence[str]] | None = None
    valid_until: float = inf

    @property
    def needs_family(self) -> bool:
        """Whether a rule names a family, so that the sessions above a caller have to be known."""
        return any(rule.scope == ContainmentScope.FAMILY for rule in self.rules)

    def covering(self, caller: Caller, tool: str | None) -> ContainmentRule | None:
        """Return the strictest rule that covers a call of a tool; without a tool, every call of the session."""
        for rule in self.rules:
            if (tool is not None or not rule.is_of_calls) and self._covers(rule, caller, tool or ""):
                return rule
        return None

    def _covers(self, rule: ContainmentRule, caller: Caller, tool: str) -> bool:
        if not rule.include_new and caller.started_at > rule.created_at:
            return False
        value = rule.value
        match rule.scope:
            case ContainmentScope.AGENT_TOOL:
                return caller.agent == value and fits(tool, rule.tool)
            case ContainmentScope.TOOL:
                return fits(tool, value)
            case ContainmentScope.AGENT:
                return caller.agent == value
            case ContainmentScope.MODEL:
                return caller.model == value
            case ContainmentScope.KEY:
                return caller.api_key == value
            case ContainmentScope.FAMILY:
                return value in caller.family
            case ContainmentScope.TAG:
                return (
                    value in caller.tags
                    or value in (self.tags_of_agents or {}).get(caller.agent, ())
                    or value in (self.tags_of_keys or {}).get(caller.api_key, ())
                )
        return True  # the project or the server

    def message_for(self, session: str, agent: str) -> str:
        """Return the id of the message that a session gets next, or empty."""
        waiting = (self.messages_to_sessions or {}).get(session) or (self.messages_to_agents or {}).get(agent)
        return waiting[0] if waiting else ""


def describe(scope: str, value: str, tool: str) -> str:
    """Return the scope of a containment in words, as in `the tool search of the agent support`."""
    match scope:
        case ContainmentScope.AGENT_TOOL:
            return f"the tool {tool} of the agent {value}"
        case ContainmentScope.FAMILY:
            return f"the session {value} and its sub-agents"
        case ContainmentScope.PROJECT:
            return "this project"
        case ContainmentScope.SERVER:
            return "this server"
    return f"the {scope} {value}"


def in_force(now: datetime) -> QuerySet[Containment]:
    """Return the containments in force, of all projects and the server."""
    return Containment.objects.filter(Q(until=None) | Q(until__gt=now), lifted_at=None)


def load_containments(project: Project) -> ProjectContainments:
    """Read what is in force in a project; two queries, and two more where a rule names a tag."""
    rows = [*in_force(clock.now()).filter(Q(project_id=project.pk) | Q(project=None))]
    rules = [
        ContainmentRule(
            row.public_id, row.scope, row.value, row.tool, row.reaction, row.reason, row.created_by,
            row.created_at, row.include_new,
        )
        for row in rows
    ]  # fmt: skip
    rules.sort(key=lambda rule: (-DECISIONS.index(rule.reaction), rule.created_at))
    tags = [rule.value for rule in rules if rule.scope == ContainmentScope.TAG]
    waiting = AgentMessage.objects.filter(project_id=project.pk, delivered_at=None, withdrawn_at=None)
    sessions: dict[str, list[str]] = {}
    agents: dict[str, list[str]] = {}
    # The newest: those for sessions that never call again would keep all others from being delivered.
    columns = waiting.order_by("-id").values_list("session", "agent", "public_id")[:MAX_MESSAGES]
    for session, agent, public_id in reversed(columns):
        (sessions.setdefault(session, []) if session else agents.setdefault(agent, [])).append(public_id)
    return ProjectContainments(
        tuple(rules),
        _tags_of_agents([project.pk], tags) if tags else None,
        _tags_of_keys([project.pk], tags) if tags else None,
        sessions,
        agents,
        min((row.until.timestamp() for row in rows if row.until), default=inf),
    )


def _tags_of_agents(projects: Sequence[int], tags: Sequence[str]) -> dict[str, Sequence[str]]:
    rows = AgentTags.objects.filter(project_id__in=projects, tags__overlap=tags)
    return dict(rows.values_list("agent", "tags"))


def _tags_of_keys(projects: Sequence[int], tags: Sequence[str]) -> dict[str, Sequence[str]]:
    rows = ApiKey.objects.filter(project_id__in=projects, tags__overlap=tags)
    return dict(rows.values_list("public_id", "tags"))


containment_cache = ProjectCache(load_containments, valid_until=lambda found: found.valid_until)
containments_of = containment_cache.get
"""Return what is in force in a project, from this process's cache."""


@dataclass(frozen=True, slots=True)
class Reached:
    """Sessions that a containment reaches, by what can be done to them."""

    # fmt: off
    can_stop: Annotated[int, Shown("Sessions whose next call is stopped, and whose run ends with it.")] = 0
    can_block: Annotated[int, Shown("Sessions whose calls are blocked one by one, while the agent continues.")] = 0
    watch_only: Annotated[int, Shown("Sessions that only report their calls: nothing can be blocked.")] = 0
    # fmt: on


def reached_sessions(
    projects: Sequence[int], scope: str, value: str, tool: str, now: datetime
) -> QuerySet[Session]:
    """Return the sessions of projects with a call within `RECENT` and no end that a containment covers.

    For a tool, those whose last call was one of it.
    """
    rows = Session.objects.filter(project_id__in=projects, ended_at=None, last_event_at__gt=now - RECENT)
    rows = rows.exclude(integration__startswith=IMPORTED)
    match scope:
        case ContainmentScope.AGENT_TOOL:
            return rows.filter(_matches("last_tool", tool), agent=value)
        case ContainmentScope.TOOL:
            return rows.filter(_matches("last_tool", value))
        case ContainmentScope.AGENT:
            return rows.filter(agent=value)
        case ContainmentScope.MODEL:
            return rows.filter(model=value)
        case ContainmentScope.KEY:
            return rows.filter(api_key=value)
        case ContainmentScope.FAMILY:
            return rows.filter(external_id__in=RawSQL(_FAMILY, (value, [*projects])))  # noqa: S611 - a constant
        case ContainmentScope.TAG:
            return rows.filter(
                Q(tags__contains=[value])
                | Q(agent__in=[*_tags_of_agents(projects, [value])])
                | Q(api_key__in=[*_tags_of_keys(projects, [value])])
            )
    return rows


def _matches(column: str, pattern: str) -> Q:
    return Q(Like(F(column), Value(like_pattern(pattern))))


def fits(tool: str, pattern: str) -> bool:
    """Return whether a tool has a name, in which `*` stands for any characters."""
    return tool == pattern or (
        "*" in pattern and fnmatchcase(tool, pattern.replace("[", "[[]").replace("?", "[?]"))
    )


def count_reached(rows: QuerySet[Session]) -> Reached:
    """Count sessions by what can be done to them; one query."""
    counts = rows.order_by().values_list("reach").annotate(Count("pk"))
    return Reached(**{str(reach): number for reach, number in counts})


def list_containments(project_id: int, *, limit: int, is_in_force: bool | None = None) -> list[Containment]:
    """List the containments of a project and of the server, newest first; all, those in force, or the past ones."""
    rows = Containment.objects.filter(Q(project_id=project_id) | Q(project=None))
    current = in_force(clock.now())
    if is_in_force is not None:
        rows = rows & current if is_in_force else rows.exclude(pk__in=current.values("pk"))
    return [*rows[:limit]]


def _is_in_force(row: Containment) -> bool:
    return row.lifted_at is None and (row.until is None or row.until > clock.now())


def _reached(row: Containment) -> Reached:
    return Reached(row.can_stop, row.can_block, row.watch_only)


@dataclass(frozen=True, slots=True)
class ContainmentRow:
    """A `Containment`."""

    # fmt: off
    public_id: Annotated[str, Shown("Id of the containment. Empty in a preview.", name="id")]
    scope: Annotated[str, Shown("What it is about.", choices=ContainmentScope)]
    value: Annotated[str, Shown("Name in the scope. Empty for the project and the server.")]
    tool: Annotated[str, Shown("Of the scope `agent_tool`: the tool.")]
    reaction: Annotated[str, Shown("What happens to each call.", choices=ContainmentReaction)]
    reason: Annotated[str, Shown("The reason given.")]
    until: Annotated[datetime | None, Shown("When it ends by itself. Null if it does not.")]
    include_new: Annotated[bool, Shown("Whether it covers sessions that started after it was created.")]
    in_force: Annotated[bool, Shown("Whether it is in force.", show=_is_in_force)]
    reaches: Annotated[Reached, Shown("Sessions that it reached when it was created.", show=_reached)]
    created_by: Annotated[str, Shown("A user name, `key:<id>` or `command line`.")]
    created_at: Annotated[datetime, Shown("When it was created.")]
    lifted_by: Annotated[str, Shown("Who lifted it.", is_optional=True)]
    lifted_at: Annotated[datetime | None, Shown("When it was lifted.")]
    # fmt: on
