"""Scopes: their names, their textual form, and what each inherits from."""

import pytest

from detection.engine.errors import PolicyError
from detection.engine.scopes import ENVIRONMENT, PROJECT, SCOPE_KINDS, SERVER, SESSION, TOP_SESSION, Scope

AGENT, BACKEND, TOOL = Scope.of("triage"), Scope.of(backend="openai"), Scope("tool", pattern="search_*")
MODEL = Scope.of(backend="openai", model="gpt-5")
SCOPES = (ENVIRONMENT, SERVER, PROJECT, AGENT, BACKEND, MODEL, TOOL, SESSION)


def test_a_narrower_scope_has_a_higher_rank():
    assert [scope.kind for scope in SCOPES] == [*SCOPE_KINDS]
    ranks = [scope.rank for scope in SCOPES]
    assert ranks == sorted(set(ranks))
    assert PROJECT.rank < TOP_SESSION.rank < AGENT.rank


@pytest.mark.parametrize(
    ("scope", "below"),
    [
        (ENVIRONMENT, ()),
        (SERVER, (ENVIRONMENT,)),
        (PROJECT, (ENVIRONMENT, SERVER)),
        (AGENT, (ENVIRONMENT, SERVER, PROJECT)),
        (BACKEND, (ENVIRONMENT, SERVER, PROJECT)),
        (MODEL, (ENVIRONMENT, SERVER, PROJECT, BACKEND)),
        (TOOL, (ENVIRONMENT, SERVER, PROJECT)),
        (Scope("session", model="gpt-5"), (ENVIRONMENT, SERVER, PROJECT)),
        (
            Scope("session", "triage", "openai", "gpt-5"),
            (ENVIRONMENT, SERVER, PROJECT, AGENT, BACKEND, MODEL),
        ),
    ],
    ids=str,
)
def test_a_scope_inherits_from_every_wider_one_that_needs_no_other_name(scope, below):
    assert scope.below() == below


@pytest.mark.parametrize(
    ("scope", "text", "label"),
    [
        (ENVIRONMENT, "environment", "Environment"),
        (PROJECT, "project", "Project"),
        (AGENT, "agent:triage", "Agent triage"),
        (Scope.of("a/b"), "agent:a/b", "Agent a/b"),
        (BACKEND, "backend:openai", "Backend openai"),
        (Scope.of(backend="a/b"), "backend:a%2Fb", "Backend a/b"),
        (MODEL, "model:openai/gpt-5", "Model openai / gpt-5"),
        (Scope.of(backend="a/b%2F", model="c/d e"), "model:a%2Fb%252F/c/d e", "Model a/b%2F / c/d e"),
        (TOOL, "tool:search_*", "Tools search_*"),
        (SESSION, "session", "Session"),
    ],
    ids=str,
)
def test_a_scope_has_one_textual_form(scope, text, label):
    assert (str(scope), scope.label) == (text, label)
    assert Scope.parse(text) == scope


@pytest.mark.parametrize(
    "text",
    ["", "nowhere", "server:x", "model:openai", "model:/m", "backend:", "tool:", "agent:", "preset:standard"],
)
def test_a_text_that_is_no_scope_is_rejected(text):
    with pytest.raises(PolicyError):
        Scope.parse(text)


@pytest.mark.parametrize(
    ("names", "field", "message"),
    [
        ({"kind": "model", "model": "m"}, "backend", "is required for the scope model"),
        ({"kind": "project", "backend": "b"}, "backend", "must be empty for the scope project"),
        ({"kind": "agent", "agent": "a", "model": "m"}, "model", "must be empty for the scope agent"),
        ({"kind": "session", "pattern": "x"}, "pattern", "must be empty for the scope session"),
        ({"kind": "planet"}, "scope", f"must be one of {', '.join(SCOPE_KINDS)}"),
    ],
)
def test_names_must_fit_the_kind_of_scope(names, field, message):
    with pytest.raises(PolicyError) as caught:
        Scope(**names)
    assert (caught.value.field, caught.value.message) == (field, message)


@pytest.mark.parametrize(
    "scope",
    [
        Scope.of("x" * 129),
        Scope.of(backend=" "),
        Scope.of(backend="b", model="a\x00"),
        Scope("tool", pattern="\u202e"),
    ],
)
def test_a_name_that_is_stored_is_short_and_printable(scope):
    with pytest.raises(PolicyError, match="printable characters"):
        scope.check_names()
