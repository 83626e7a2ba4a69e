"""Scopes: where an override applies, from the whole installation down to one session.

A narrower scope wins over a wider one, setting by setting. Overrides themselves belong to `policy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal, get_args
from urllib.parse import unquote

from detection.engine.errors import PolicyError

ScopeKind = Literal[
    "environment", "server", "project", "top_session", "agent", "backend", "model", "tool", "session"
]  # fmt: skip

_ORDER: tuple[ScopeKind, ...] = get_args(ScopeKind)
SCOPE_KINDS: tuple[ScopeKind, ...] = tuple(kind for kind in _ORDER if kind != "top_session")
"""Where settings can be set, widest first: the order in which overrides are applied.

What the session at the top of a tree of sub-agents hands down, and before it what the agent of that session does, apply
between the project and the agent.
"""

STORED_KINDS: tuple[ScopeKind, ...] = ("server", "project", "agent", "backend", "model")
"""Kinds whose overrides are rows of their own. A tool rule also declares facts about tools, and is stored with them."""

_RANKS: Mapping[str, int] = MappingProxyType({kind: rank for rank, kind in enumerate(_ORDER)})
_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "environment": (),
        "server": (),
        "project": (),
        "top_session": (),
        "agent": ("agent",),
        "backend": ("backend",),
        "model": ("backend", "model"),
        "tool": ("pattern",),
        "session": (),
    }
)
"""The names that a scope of each kind must have."""

_CONTEXT: Mapping[str, tuple[str, ...]] = MappingProxyType({"session": ("agent", "backend", "model")})
"""Optional names: a session runs one agent on one model, which decides what it inherits."""

TAG_PREFIX = "tag:"
"""Begins the name of the scope ``agent`` that applies to all agents with a tag, below that of an agent itself."""

MAX_NAME_CHARACTERS: Mapping[str, int] = MappingProxyType(
    {"agent": 128, "backend": 128, "model": 200, "pattern": 128}
)


@dataclass(frozen=True, slots=True)
class Scope:
    """The scope of an override.

    Parameters
    ----------
    kind : str
        One of `SCOPE_KINDS`, or `top_session`.
    agent, backend, model : str
        Names that the scope applies to. A session's are optional. An agent named ``tag:<tag>`` stands for those with
        the tag.
    pattern : str
        Glob on tool names, for tool rules.

    Raises
    ------
    PolicyError
        When a required name is missing, or a name is given that the kind does not have.
    """

    kind: ScopeKind
    agent: str = ""
    backend: str = ""
    model: str = ""
    pattern: str = ""

    def __post_init__(self) -> None:
        if self.kind not in _RANKS:
            raise PolicyError("scope", f"must be one of {', '.join(SCOPE_KINDS)}")
        needed, optional = _NAMES[self.kind], _CONTEXT.get(self.kind, ())
        for name in MAX_NAME_CHARACTERS:
            if not getattr(self, name):
                if name in needed:
                    raise PolicyError(name, f"is required for the scope {self.kind}")
            elif name not in needed and name not in optional:
                raise PolicyError(name, f"must be empty for the scope {self.kind}")

    @classmethod
    def of(cls, agent: str = "", backend: str = "", model: str = "") -> Scope:
        """Return the scope in a project that these names select; none of them select the project itself.

        Raises
        ------
        PolicyError
            For a model without its backend, or an agent together with either.
        """
        if agent:
            return cls("agent", agent, backend, model)
        if model:
            return cls("model", agent, backend, model)
        return cls("backend", agent, backend, model) if backend else PROJECT

    @classmethod
    def parse(cls, text: str) -> Scope:
        """Read the textual form that `str` gives.

        Raises
        ------
        PolicyError
            When the text names no scope.
        """
        kind, _, name = text.partition(":")
        if kind == "model":
            backend, _, model = name.partition("/")
            return cls("model", backend=unquote(backend), model=model)
        if kind == "backend":
            return cls("backend", backend=unquote(name))
        if kind == "agent":
            return cls("agent", agent=name)
        if kind == "tool":
            return cls("tool", pattern=name)
        if name or kind not in _RANKS:
            raise PolicyError("scope", f"must be one of {', '.join(SCOPE_KINDS)}")
        return cls(kind)  # type: ignore[arg-type]

    def __str__(self) -> str:
        """Return the form that verdicts, history and audit use: `project`, `model:openai/gpt-5`, `tool:search_*`.

        A backend's own slashes are percent-encoded, so that the first plain slash ends it.
        """
        backend = self.backend.replace("%", "%25").replace("/", "%2F")
        if self.kind == "model":
            return f"model:{backend}/{self.model}"
        if self.kind == "backend":
            return f"backend:{backend}"
        if self.kind == "agent":
            return f"agent:{self.agent}"
        return f"tool:{self.pattern}" if self.kind == "tool" else self.kind

    @property
    def label(self) -> str:
        """The scope for people: `Project`, `Model openai / gpt-5`, `Tools search_*`."""
        if self.kind == "model":
            return f"Model {self.backend} / {self.model}"
        if self.kind == "tool":
            return f"Tools {self.pattern}"
        if self.kind == "agent" and self.agent.startswith(TAG_PREFIX):
            return f"Agents with the tag {self.agent.removeprefix(TAG_PREFIX)}"
        name = self.agent if self.kind == "agent" else self.backend if self.kind == "backend" else ""
        return f"{self.kind.capitalize().replace('_', ' ')} {name}".rstrip()

    @property
    def rank(self) -> int:
        """Position in the order of all kinds; a higher one wins."""
        return _RANKS[self.kind]

    def below(self) -> tuple[Scope, ...]:
        """Return the scopes that this one inherits from, widest first.

        A wider scope is below this one when it needs no name that this one lacks: a model inherits from its backend,
        a session from its agent, backend and model, and a tool rule, which applies to all of them, from the project.
        """
        return tuple(
            Scope(kind, **{name: getattr(self, name) for name in _NAMES[kind]})
            for kind in SCOPE_KINDS
            if _RANKS[kind] < self.rank and all(getattr(self, name) for name in _NAMES[kind])
        )

    def check_names(self) -> None:
        """Check the names of a scope before it is stored.

        Raises
        ------
        PolicyError
            For a name that is blank, too long or not printable.
        """
        for name, longest in MAX_NAME_CHARACTERS.items():
            value = getattr(self, name)
            if value and (len(value) > longest or not value.isprintable() or not value.strip()):
                raise PolicyError(name, f"must have 1 to {longest} printable characters")


ENVIRONMENT, SERVER, PROJECT, TOP_SESSION, SESSION = (
    Scope("environment"),
    Scope("server"),
    Scope("project"),
    Scope("top_session"),
    Scope("session"),
)
