import pytest

from detection.engine.scopes import ENVIRONMENT, PROJECT, SERVER, SESSION, Scope
from detection.models import AuditEntry, Override, Project, Role, Session, ToolOverride
from detection.selectors.policies import effective
from detection.services.audit import Actor
from detection.services.errors import Invalid, NotFound
from detection.services.policies import overrides
from detection.services.sessions import actions
from tests.support.agents import OPERATOR
from tests.support.projects import make_member


def value_and_source(project, name, **call):
    project.refresh_from_db()
    return tuple(effective(project, **call).explain([name])[name].values())


def test_every_setting_comes_from_the_narrowest_scope_that_contains_it(project):
    overrides.save_override(None, SERVER, {"max_repeats": 10, "ttl_seconds": 300, "mode": "warn"}, OPERATOR)
    overrides.save_override(project.pk, PROJECT, {"max_repeats": 9, "mode": "chance"}, OPERATOR)
    overrides.save_override(project.pk, Scope("backend", backend="openai"), {"max_repeats": 8}, OPERATOR)
    overrides.save_override(
        project.pk, Scope("model", backend="openai", model="org/gpt-5"), {"max_repeats": 7}, OPERATOR
    )

    call = {"backend": "openai", "model": "org/gpt-5"}
    assert value_and_source(project, "max_repeats", **call) == (7, "model:openai/org/gpt-5")
    assert value_and_source(project, "max_repeats", backend="openai", model="other") == (8, "backend:openai")
    assert value_and_source(project, "max_repeats") == (9, "project")
    assert value_and_source(project, "mode", **call) == ("chance_then_break", "project")
    assert value_and_source(project, "ttl_seconds", **call) == (300, "server")


def test_deleting_an_override_restores_the_scope_below(project):
    overrides.save_override(project.pk, PROJECT, {"max_repeats": 9}, OPERATOR)
    overrides.save_override(
        project.pk, Scope("model", backend="openai", model="m"), {"max_repeats": 7}, OPERATOR
    )
    overrides.delete_override(project.pk, Scope("model", backend="openai", model="m"), OPERATOR)

    assert value_and_source(project, "max_repeats", backend="openai", model="m") == (9, "project")


def test_a_wrong_value_names_its_setting_and_changes_nothing(project):
    with pytest.raises(Invalid) as refused:
        overrides.save_override(project.pk, PROJECT, {"max_repeats": 1}, OPERATOR)
    assert "max_repeats" in str(refused.value)
    with pytest.raises(Invalid):
        overrides.save_override(project.pk, PROJECT, {"no_such_setting": 1}, OPERATOR)
    assert not Override.objects.exists()


@pytest.mark.parametrize(
    ("in_project", "scope"),
    [
        (True, SERVER),
        (False, PROJECT),
        (True, ENVIRONMENT),
        (True, SESSION),
        (False, Scope("tool", pattern="x")),
    ],
)
def test_only_scopes_of_the_server_or_the_project_have_a_stored_override(project, in_project, scope):
    with pytest.raises(Invalid):
        overrides.save_override(project.pk if in_project else None, scope, {"max_repeats": 5}, OPERATOR)


def test_a_tool_rule_holds_for_its_tools_only(project):
    overrides.save_override(
        project.pk, Scope("tool", pattern="search_*"), actor=OPERATOR, values={"max_repeats": 12}
    )

    assert value_and_source(project, "max_repeats", tool="search_web") == (12, "tool:search_*")
    assert value_and_source(project, "max_repeats", tool="read_file")[0] == 4
    with pytest.raises(Invalid):
        overrides.save_override(
            project.pk, Scope("tool", pattern="x"), {}, actor=OPERATOR, tool_class="nonsense"
        )


@pytest.mark.parametrize(
    "scope",
    [
        Scope.of(backend="openai", model="a/b"),
        Scope.of(backend="team/proxy", model="a/b"),
        Scope.of(backend="a/b"),
        Scope.of("a/b"),
    ],
    ids=str,
)
def test_history_restores_what_was_before(project, scope):
    overrides.save_override(project.pk, scope, {"max_repeats": 7}, OPERATOR)
    overrides.save_override(project.pk, scope, {"max_repeats": 3}, OPERATOR)
    newest = overrides.history(project.pk)[0]
    overrides.restore(project.pk, newest.pk, OPERATOR)

    assert Override.objects.get().values == {"max_repeats": 7}
    assert AuditEntry.objects.filter(action="policy.save").count() == 3


def test_history_of_another_project_cannot_be_restored(project):
    overrides.save_override(project.pk, PROJECT, {"max_repeats": 7}, OPERATOR)
    other = Project.objects.create(slug="other", name="Other")
    with pytest.raises(NotFound):
        overrides.restore(other.pk, overrides.history(project.pk)[0].pk, OPERATOR)


def test_session_settings_are_set_and_inherited_again(project, agent):
    agent.asks()
    actions.set_policy(project.pk, "s-1", {"max_repeats": 8, "mode": "warn"}, OPERATOR)
    row = actions.set_policy(project.pk, "s-1", {"mode": None}, OPERATOR)

    assert row.policy_values == {"max_repeats": 8}
    with pytest.raises(Invalid):
        actions.set_policy(project.pk, "s-1", {"max_repeats": 0}, OPERATOR)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("!/set(tool-loop-max-repeats=1)", "2"),
        ("!/set(tool-loop-ttl=0)", "1"),
        ("!/set(tool-loop-mode=sideways)", "mode"),
    ],
)
def test_a_command_with_a_mistake_says_exactly_what_and_changes_nothing(project, agent, text, expected):
    agent.asks()
    out = actions.run_command(project.pk, "s-1", text, OPERATOR)
    assert not out.is_changed
    assert expected in out.lines[0]


def test_one_invalid_command_does_not_void_the_others_in_the_text(project, agent):
    agent.asks()
    text = "!/set(tool-loop-max-repeats=1) and !/set(tool-loop-ttl=60) !/set(model=x) !/unset(tool-loop-mode)"
    out = actions.run_command(project.pk, "s-1", text, OPERATOR)
    assert out.lines == (
        "tool-loop-max-repeats must be between 2 and 1,000.",
        "tool-loop-ttl is now 60.",
        "tool-loop-mode is now block_then_stop (from preset:standard).",
    )
    assert Session.objects.get().policy_values == {"ttl_seconds": 60}


def test_a_list_that_begins_with_an_unknown_setting_is_answered_and_changes_nothing(project, agent):
    agent.asks()
    out = actions.run_command(project.pk, "s-1", "!/set(foo=1, tool-loop-mode=chance)", OPERATOR)
    assert not out.is_changed
    assert out.lines[0].startswith("Unknown setting 'foo'. Known: tool-loop-detection")
    assert Session.objects.get().policy_values == {}
    with pytest.raises(Invalid):
        actions.run_command(project.pk, "s-1", "!/set(foo=1)", OPERATOR)


def test_a_stored_ladder_is_no_change_of_its_own(project, agent):
    agent.asks()
    actions.set_policy(project.pk, "s-1", {"mode": ["warn", "stop"]}, OPERATOR)
    assert not actions.run_command(project.pk, "s-1", "!/set(tool-loop-mode=warn,stop)", OPERATOR).is_changed


def test_a_text_without_a_command_is_refused(project, agent):
    agent.asks()
    with pytest.raises(Invalid):
        actions.run_command(project.pk, "s-1", "hello", OPERATOR)


@pytest.fixture
def person(project):
    member = make_member(project, Role.ADMIN)
    return Actor(member.get_username(), member.pk)


def note_of(action):
    entry = AuditEntry.objects.filter(action=action).latest("pk")
    return (entry.after or {}).get("note", "")


def refuses(function, *arguments, **more):
    with pytest.raises(Invalid) as refused:
        function(*arguments, **more)
    assert (refused.value.code, refused.value.field) == ("note_needed", "note")
    return refused.value.detail


@pytest.mark.promise("SEC-06")
@pytest.mark.parametrize(
    "scope",
    [PROJECT, Scope.of("triage"), Scope.of(backend="openai"), Scope.of(backend="openai", model="m")],
    ids=str,
)
def test_a_person_gives_a_reason_for_weakening_an_override(project, person, scope):
    detail = refuses(overrides.save_override, project.pk, scope, {"max_repeats": 9}, person, " ")
    assert detail == "This weakens detection (Limit for identical calls). Give a reason."
    assert not Override.objects.exists()
    overrides.save_override(project.pk, scope, {"max_repeats": 3}, person)
    refuses(overrides.save_override, project.pk, scope, {}, person)
    refuses(overrides.delete_override, project.pk, scope, person)
    assert Override.objects.get().values == {"max_repeats": 3}
    overrides.delete_override(project.pk, scope, person, "the index is slow")
    assert not Override.objects.exists()
    assert note_of("policy.save") == "the index is slow"


def test_weaker_means_weaker_than_the_scopes_below(project, person):
    overrides.save_override(None, SERVER, {"max_repeats": 12}, OPERATOR)
    overrides.save_override(project.pk, Scope("backend", backend="openai"), {"max_repeats": 3}, OPERATOR)
    overrides.save_override(project.pk, PROJECT, {"max_repeats": 9}, person)
    overrides.save_override(project.pk, Scope("backend", backend="other"), {"max_repeats": 8}, person)
    refuses(
        overrides.save_override,
        project.pk,
        Scope("model", backend="openai", model="m"),
        {"max_repeats": 8},
        person,
    )
    refuses(overrides.save_override, None, SERVER, {"max_repeats": 13}, person)


def test_a_preset_that_only_observes_weakens_detection(project, person):
    detail = refuses(overrides.save_override, project.pk, PROJECT, {"preset": "observe"}, person)
    assert "Preset" in detail


def test_a_person_gives_a_reason_for_weakening_a_rule(project, person):
    for more in (
        {"exempt": True}, {"tool_class": "poll"}, {"tool_class": "exempt"}, {"values": {"max_repeats": 9}}
    ):  # fmt: skip
        given = {"values": {}, **more}
        refuses(overrides.save_override, project.pk, Scope("tool", pattern="jobs_*"), actor=person, **given)
    assert not ToolOverride.objects.exists()
    overrides.save_override(
        project.pk,
        Scope("tool", pattern="jobs_*"),
        actor=person,
        values={"max_repeats": 2},
        tool_class="read",
    )
    refuses(overrides.delete_override, project.pk, Scope("tool", pattern="jobs_*"), person)
    overrides.delete_override(project.pk, Scope("tool", pattern="jobs_*"), person, "not used")
    assert note_of("policy.tool_rule") == "not used"
    overrides.save_override(
        project.pk, Scope("tool", pattern="a"), {}, actor=person, exempt=True, note="a mock"
    )
    overrides.delete_override(project.pk, Scope("tool", pattern="a"), person)


def test_restoring_a_weaker_setting_needs_no_other_reason(project, person):
    overrides.save_override(project.pk, Scope("tool", pattern="a"), {}, actor=OPERATOR, exempt=True)
    overrides.delete_override(project.pk, Scope("tool", pattern="a"), person)
    overrides.restore(project.pk, overrides.history(project.pk)[0].pk, person)
    assert ToolOverride.objects.get().exempt
    assert note_of("policy.tool_rule") == "restored"
    overrides.save_override(project.pk, PROJECT, {"max_repeats": 2}, person)
    overrides.restore(project.pk, overrides.history(project.pk)[0].pk, person)
    assert not Override.objects.exists()
    assert note_of("policy.save") == "restored"


def test_a_program_needs_no_reason_and_the_audit_says_that_none_was_given(project):
    key = Actor("key:0123456789")
    overrides.save_override(project.pk, PROJECT, {"max_repeats": 9}, key)
    assert (note_of("policy.save"), Override.objects.get().note) == ("no note given", "")
    overrides.save_override(project.pk, PROJECT, {"max_repeats": 3}, key)
    assert note_of("policy.save") == ""
    overrides.save_override(project.pk, Scope("tool", pattern="a"), actor=key, values={"max_repeats": 2})
    overrides.delete_override(project.pk, Scope("tool", pattern="a"), key)
    assert note_of("policy.tool_rule") == "no note given"
