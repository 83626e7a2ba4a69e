import pytest

from detection.models import AuditEntry, PolicyTier, Project
from detection.selectors.policies import effective
from detection.services import policies, sessions
from detection.services.errors import Invalid, NotFound
from tests.services.conftest import OPERATOR


def value_and_source(project, name, **place):
    project.refresh_from_db()
    return tuple(effective(project, **place).explain([name])[name].values())


def test_every_field_comes_from_the_narrowest_tier_that_sets_it(project):
    policies.save_tier(
        None, "server", "", "", {"max_repeats": 10, "ttl_seconds": 300, "mode": "warn"}, OPERATOR
    )
    policies.save_tier(project.pk, "project", "", "", {"max_repeats": 9, "mode": "chance"}, OPERATOR)
    policies.save_tier(project.pk, "backend", "openai", "", {"max_repeats": 8}, OPERATOR)
    policies.save_tier(project.pk, "model", "openai", "org/gpt-5", {"max_repeats": 7}, OPERATOR)

    place = {"backend": "openai", "model": "org/gpt-5"}
    assert value_and_source(project, "max_repeats", **place) == (7, "model:openai/org/gpt-5")
    assert value_and_source(project, "max_repeats", backend="openai", model="other") == (8, "backend:openai")
    assert value_and_source(project, "max_repeats") == (9, "project")
    assert value_and_source(project, "mode", **place) == ("chance_then_break", "project")
    assert value_and_source(project, "ttl_seconds", **place) == (300, "server")


def test_unsetting_restores_the_tier_below(project):
    policies.save_tier(project.pk, "project", "", "", {"max_repeats": 9}, OPERATOR)
    policies.save_tier(project.pk, "model", "openai", "m", {"max_repeats": 7}, OPERATOR)
    policies.delete_tier(project.pk, "model", "openai", "m", OPERATOR)

    assert value_and_source(project, "max_repeats", backend="openai", model="m") == (9, "project")


def test_a_wrong_value_names_its_setting_and_changes_nothing(project):
    with pytest.raises(Invalid) as refused:
        policies.save_tier(project.pk, "project", "", "", {"max_repeats": 1}, OPERATOR)
    assert "max_repeats" in str(refused.value)
    with pytest.raises(Invalid):
        policies.save_tier(project.pk, "project", "", "", {"no_such_setting": 1}, OPERATOR)
    assert not PolicyTier.objects.exists()


@pytest.mark.parametrize(
    "place", [("backend", "", ""), ("model", "openai", ""), ("project", "openai", ""), ("server", "", "")]
)
def test_a_place_must_fit_its_tier(project, place):
    with pytest.raises(Invalid):
        policies.save_tier(project.pk, *place, {"max_repeats": 5}, OPERATOR)


def test_a_tool_rule_holds_for_its_tools_only(project):
    policies.save_tool_rule(project.pk, "search_*", actor=OPERATOR, values={"max_repeats": 12})

    assert value_and_source(project, "max_repeats", tool="search_web") == (12, "tool:search_*")
    assert value_and_source(project, "max_repeats", tool="read_file")[0] == 4
    with pytest.raises(Invalid):
        policies.save_tool_rule(project.pk, "x", actor=OPERATOR, tool_class="nonsense")


@pytest.mark.parametrize(
    "place", [("model", "openai", "a/b"), ("model", "team/proxy", "a/b"), ("backend", "a/b", "")]
)
def test_history_restores_what_was_before(project, place):
    policies.save_tier(project.pk, *place, {"max_repeats": 7}, OPERATOR)
    policies.save_tier(project.pk, *place, {"max_repeats": 3}, OPERATOR)
    newest = policies.history(project.pk)[0]
    policies.restore(project.pk, newest.pk, OPERATOR)

    assert PolicyTier.objects.get().values == {"max_repeats": 7}
    assert AuditEntry.objects.filter(action="policy.save").count() == 3


def test_history_of_another_project_cannot_be_restored(project):
    policies.save_tier(project.pk, "project", "", "", {"max_repeats": 7}, OPERATOR)
    other = Project.objects.create(slug="other", name="Other")
    with pytest.raises(NotFound):
        policies.restore(other.pk, policies.history(project.pk)[0].pk, OPERATOR)


def test_session_settings_are_set_and_inherited_again(project, agent):
    agent.asks()
    sessions.set_policy(project.pk, "s-1", {"max_repeats": 8, "mode": "warn"}, OPERATOR)
    row = sessions.set_policy(project.pk, "s-1", {"mode": None}, OPERATOR)

    assert row.policy_values == {"max_repeats": 8}
    with pytest.raises(Invalid):
        sessions.set_policy(project.pk, "s-1", {"max_repeats": 0}, OPERATOR)


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
    out = sessions.run_command(project.pk, "s-1", text, OPERATOR)
    assert not out.is_changed
    assert expected in out.lines[0]


def test_a_text_without_a_command_is_refused(project, agent):
    agent.asks()
    with pytest.raises(Invalid):
        sessions.run_command(project.pk, "s-1", "hello", OPERATOR)
