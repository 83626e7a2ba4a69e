"""Verdicts in the formats of clients; those of coding agents are read by the rules of the agents."""

from typing import Any

import pytest

from detection.engine.calls import DECISIONS
from detection.engine.wire_shapes import ACTIONS, NO_REASON, SHAPES, WARNED_WITH_RESULT, action_of, render

# What a coding agent does with the answer of a hook: whether the call runs, whether its user is asked, what the model
# reads, and whether the run ends. A reader returns `RUNS` for an answer that its agent ignores or takes for an error.
RUNS = {"runs": True, "asks": False, "model_reads": "", "ends": False}


def claude_code(answer, moment):
    known = {
        "continue",
        "stopReason",
        "suppressOutput",
        "systemMessage",
        "decision",
        "reason",
        "hookSpecificOutput",
    }
    if not answer.keys() <= known:
        return RUNS
    output = answer.get("hookSpecificOutput", {})
    if output and output["hookEventName"] != {"before": "PreToolUse", "after": "PostToolUse"}[moment]:
        return RUNS
    decision = output.get("permissionDecision", "allow") if moment == "before" else "allow"
    # `continue: false` ends the run after this call; only a denial keeps the call from running.
    return {
        "runs": decision == "allow",
        "asks": decision == "ask",
        "model_reads": output.get(
            "additionalContext" if decision == "allow" else "permissionDecisionReason", ""
        ),
        "ends": answer.get("continue", True) is False,
    }


def codex(answer, moment):
    output = answer.get("hookSpecificOutput", {})
    if not answer.keys() <= {"hookSpecificOutput"}:
        return RUNS  # before a tool, `continue: false`, `stopReason` and unknown keys are invalid
    if moment == "after":
        return RUNS | {"model_reads": output.get("additionalContext", "")}
    if not output:
        return RUNS
    is_denied = (
        output.keys() == {"hookEventName", "permissionDecision", "permissionDecisionReason"}
        and output["hookEventName"] == "PreToolUse"
        and output["permissionDecision"] == "deny"  # allow and ask are invalid
        and output["permissionDecisionReason"].strip()
    )
    return RUNS | {"runs": False, "model_reads": output["permissionDecisionReason"]} if is_denied else RUNS


def gemini_cli(answer, moment):
    if answer.get("continue") is False:
        return {
            "runs": moment == "after",
            "asks": False,
            "model_reads": answer.get("stopReason") or answer.get("reason", ""),
            "ends": True,
        }
    if answer.get("decision") in ("deny", "block"):
        return RUNS | {"runs": False, "model_reads": answer.get("stopReason") or answer["reason"]}
    context = answer.get("hookSpecificOutput", {}).get("additionalContext", "") if moment == "after" else ""
    return RUNS | {"model_reads": context}


def copilot(answer, moment):
    if moment == "after":
        return RUNS | {"model_reads": answer.get("additionalContext", "")}
    decision = answer.get("permissionDecision", "allow")
    return RUNS | {
        "runs": decision == "allow",
        "asks": decision == "ask",
        "model_reads": answer.get("permissionDecisionReason") or answer.get("additionalContext", ""),
    }


def opencode(answer, moment):
    runs = moment == "after" or answer["run"]
    return RUNS | {"runs": runs, "model_reads": answer["message"], "ends": answer["stop"]}


def openclaw(answer, moment):
    return opencode(answer, moment) | {"asks": moment == "before" and answer["ask"]}


def cursor(answer, moment):
    if moment == "after":
        return RUNS | {"model_reads": answer.get("additional_context", "")}
    is_denied = answer.get("permission") == "deny"
    return RUNS | {"runs": not is_denied, "model_reads": answer["agent_message"] if is_denied else ""}


def goose(answer, moment):
    is_denied = moment == "before" and answer.get("decision") == "block"
    return RUNS | {"runs": not is_denied, "model_reads": answer["reason"] if is_denied else ""}


def openhands(answer, moment):
    is_denied = moment == "before" and answer.get("decision") == "deny"
    return RUNS | {"runs": not is_denied, "model_reads": answer["reason"] if is_denied else ""}


def by_exit_code(answer, moment):
    is_denied = moment == "before" and "deny" in answer
    return RUNS | {"runs": not is_denied, "model_reads": answer["deny"] if is_denied else ""}


def document(*about: Any, **more: Any) -> dict[str, Any]:
    answer = render(*about, **more)
    assert isinstance(answer, dict)
    return answer


HOSTS = {
    "claude_code": claude_code,
    "codex": codex,
    "gemini_cli": gemini_cli,
    "copilot": copilot,
    "opencode": opencode,
    "qwen_code": claude_code,
    "cursor": cursor,
    "goose": goose,
    "openhands": openhands,
    "windsurf": by_exit_code,
    "kiro": by_exit_code,
    "openclaw": openclaw,
}
SILENT = ("goose", "openhands", "windsurf", "kiro")
"""Their models read nothing of a hook whose call runs, or has run."""


@pytest.mark.parametrize("decision", DECISIONS)
@pytest.mark.parametrize("shape", HOSTS)
def test_a_coding_agent_does_with_a_verdict_what_the_table_says(shape, decision):
    text = "" if decision == "allow" else "try another way"
    action = action_of(shape, decision)
    got = HOSTS[shape](render(shape, decision, text), "before")

    assert got["runs"] == (action in ("run", "run_with_message"))
    assert got["asks"] == (action == "ask")
    assert got["ends"] == (action == "end")
    is_unread = decision == "warn" and shape in (*WARNED_WITH_RESULT, *SILENT)
    assert got["model_reads"] == ("" if is_unread else text)


@pytest.mark.parametrize("decision", DECISIONS)
@pytest.mark.parametrize("shape", [shape for shape in HOSTS if shape not in SILENT])
def test_after_a_tool_the_model_reads_the_message_and_the_run_ends_where_it_can(shape, decision):
    text = "" if decision == "allow" else "try another way"
    ends = action_of(shape, decision) == "end"
    answer = document(shape, decision, text, moment="after")
    got = HOSTS[shape](answer, "after")

    assert got["runs"]
    assert got["ends"] == ends
    assert text in (got["model_reads"], answer.get("stopReason"))


@pytest.mark.parametrize("shape", HOSTS)
def test_a_denial_never_lacks_its_reason(shape):
    got = HOSTS[shape](render(shape, "block", ""), "before")

    assert (got["runs"], got["model_reads"]) == (False, NO_REASON)


def test_every_shape_has_an_action_for_every_decision():
    assert tuple(ACTIONS) == SHAPES
    assert {len(actions) for actions in ACTIONS.values()} == {len(DECISIONS)}


def test_the_other_shapes_are_those_of_the_protocols():
    assert render("text", "block", "m") == "m"
    assert render("openai", "block", "m", "c") == {"role": "tool", "tool_call_id": "c", "content": "m"}
    assert document("anthropic", "block", "m", "c")["is_error"] is True
    assert document("anthropic", "warn", "m", "c")["is_error"] is False
    assert render("mcp", "stop", "m") == {"content": [{"type": "text", "text": "m"}], "isError": True}


def test_gemini_gets_the_response_of_the_function_or_a_whole_response():
    blocked, warned = (
        document("gemini", one, "m", "c", tool="t")["functionResponse"] for one in ("block", "warn")
    )
    assert blocked == {"id": "c", "name": "t", "response": {"error": "m"}}
    assert warned["response"] == {"output": "m"}
    stopped = document("gemini", "stop", "m", "c", "gemini-3", "t")
    assert stopped["modelVersion"] == "gemini-3"
    assert [(one["content"]["parts"], one["finishReason"]) for one in stopped["candidates"]] == [
        ([{"text": "m"}], "OTHER")
    ]


def test_an_openai_stop_is_a_whole_completion_with_one_choice_that_ends_in_an_error():
    envelope = document("openai", "stop", "m", "c", "gpt-5")

    assert envelope["model"] == "gpt-5"
    assert [choice["finish_reason"] for choice in envelope["choices"]] == ["error"]
    assert envelope["choices"][0]["message"] == {"role": "assistant", "content": "m"}


def test_an_unknown_shape_is_rejected():
    with pytest.raises(ValueError, match="smoke"):
        render("smoke", "allow", "m")  # type: ignore[arg-type]
