"""Custom message templates: what is sent, what they may contain, and that projects have separate ones."""

from __future__ import annotations

import re

import pytest

from detection.engine.scopes import PROJECT
from detection.engine.wire_shapes import SHAPES
from detection.models import AuditEntry, Event, Incident, MessageTemplate, Project, QuarantinedEvent, Session
from detection.services import keys
from detection.services.errors import Invalid
from detection.services.policies import message_templates, overrides
from detection.services.sessions import actions, evaluation
from tests.api.test_hooks import SILENT
from tests.support.agents import OPERATOR, Agent


def stopped(agent):
    return [agent.asks().verdicts[0] for _ in range(8)][-1]


def test_an_own_text_holds_from_the_next_verdict_on_and_the_default_comes_back(project, agent):
    default = stopped(agent).message()
    text = "$tool: $count of $limit within $window. It costs $$5."
    message_templates.save_template(project.pk, "stop", "", text, OPERATOR)
    assert re.fullmatch(
        r"search_web: 9 of 4 within \d s\. It costs \$5\.", agent.asks().verdicts[0].message()
    )
    message_templates.save_template(project.pk, "stop", "", "", OPERATOR)
    assert agent.asks().verdicts[0].message().startswith(default[:20])
    assert AuditEntry.objects.filter(action="message_template.save").count() == 2


def test_a_shape_may_have_a_text_of_its_own(project, agent):
    message_templates.save_template(project.pk, "stop", "mcp", "Stop calling $tool.", OPERATOR)
    verdict = stopped(agent)
    assert verdict.verdict.message_by_shape == {"mcp": "Stop calling search_web."}
    assert "Tool call loop detected" in verdict.message()
    assert Event.objects.order_by("seq").last().verdict == verdict.verdict


def test_the_templates_of_other_projects_do_not_change(project, agent):
    other = Project.objects.create(slug="rivals", name="Rivals")
    message_templates.save_template(other.pk, "stop", "", "Not yours.", OPERATOR)
    assert stopped(agent).message() != "Not yours."
    theirs = keys.authenticate(keys.create_key(other, "agent", OPERATOR)[1])
    assert stopped(Agent(theirs)).message() == "Not yours."


@pytest.mark.parametrize(
    "text",
    [
        "$arguments",
        "${arguments}",
        "$ tool",
        "$",
        "$tool and $call",
        "${tool",
        "a\x00b",
        "bell \x07",
        "x" * 1001,
        "$TOOL",
        "$tool_name",
    ],
)
def test_what_is_no_placeholder_and_what_cannot_be_shown_is_refused(text, project):
    with pytest.raises(Invalid):
        message_templates.save_template(project.pk, "stop", "", text, OPERATOR)
    assert not MessageTemplate.objects.exists()


@pytest.mark.parametrize(("rung", "shape"), [("observe", ""), ("shout", ""), ("stop", "html")])
def test_only_rungs_that_speak_and_shapes_that_exist_have_texts(rung, shape, project):
    with pytest.raises(Invalid):
        message_templates.save_template(project.pk, rung, shape, "Stop.", OPERATOR)


def test_a_tool_with_a_hostile_name_cannot_break_out_of_its_line(project, principal):
    message_templates.save_template(project.pk, "stop", "", "Stop $tool now.", OPERATOR)
    agent = Agent(principal)
    verdict = [agent.asks(agent.call(tool="a$count\u202eb")).verdicts[0] for _ in range(8)][-1]
    assert verdict.message() == "Stop a$countb now."


@pytest.mark.parametrize("shape", ["", *SHAPES])
def test_every_text_has_a_preview_in_every_shape(shape, project):
    for one in message_templates.list_templates(project.pk):
        is_read = shape not in SILENT or one.rung != "warn"
        assert ("search_web" in str(message_templates.preview(one.rung, shape, ""))) == is_read
        own = message_templates.preview(one.rung, shape, "Own $tool $count")
        assert ("Own search_web 4" in str(own)) == is_read


def test_help_answers_in_one_line_what_holds_and_how_to_change_it(project, agent):
    agent.asks()
    out = actions.run_command(project.pk, "s-1", "please !/help(tool-loop)", OPERATOR)
    assert len(out.lines) == 1
    assert "tool-loop-max-repeats (now 4, 2 to 1,000)" in out.lines[0]
    assert "!/set(name=value, …)" in out.lines[0]
    assert not out.is_changed


def test_values_that_do_not_fit_together_are_refused_and_nothing_is_parked(project, agent):
    agent.asks()
    text = "!/set(tool-loop-cycle-min-length=8, tool-loop-cycle-max-length=3)"
    out = actions.run_command(project.pk, "s-1", text, OPERATOR)
    assert "must be at most" in out.lines[0]
    agent.posts(type(agent.call())(type="message", session="s-1", content=text))
    session = Session.objects.get()
    evaluation.evaluate(session.key)
    session.refresh_from_db()
    assert session.policy_values == {}
    assert not QuarantinedEvent.objects.exists()


def test_a_stop_after_a_chance_is_answered_with_the_same_words_as_the_activity_has(project, agent):
    overrides.save_override(project.pk, PROJECT, {"mode": "chance"}, OPERATOR)
    message = [agent.asks().verdicts[0].message() for _ in range(5)][-1]
    assert "after guidance" in message
    assert Incident.objects.get().activity.filter(action="reacted", note=f"stop: {message}").count() == 1


def test_the_activity_of_an_incident_has_the_words_that_the_agent_got(project, agent):
    message_templates.save_template(project.pk, "stop", "", "Enough of $tool within $window.", OPERATOR)
    messages = [agent.asks().verdicts[0].message() for _ in range(8)]
    assert messages[7].startswith("Enough of search_web within ")
    notes = Incident.objects.get().activity.filter(action="reacted").order_by("id")
    assert [row.note for row in notes] == [f"chance: {messages[3]}", f"stop: {messages[7]}"]


@pytest.mark.parametrize(
    ("tool", "is_reported", "advice"),
    [
        ("read_file", False, "Do not repeat it: look for something else"),
        ("read_file", True, "The same call brings the same error"),
        ("reindex_shop", True, "It fails the same way each time"),
    ],
)
def test_a_repeated_read_is_not_said_to_have_its_answer_without_one(agent, tool, is_reported, advice):
    messages = []
    for number in range(4):
        verdict = agent.asks(agent.call(tool, "{}", call_id=f"r-{number}")).verdicts[0]
        messages.append(verdict.message())
        if is_reported:
            agent.posts(agent.result(f"r-{number}", "403 Forbidden", is_error=True))
    assert advice in " ".join(messages)
