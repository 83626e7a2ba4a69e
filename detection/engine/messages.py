"""Message templates per rung.

A message names the tool, the count, the window and what to do next. It never quotes arguments, which would feed the
loop. The services store the templates of a project.
"""

from __future__ import annotations

from collections.abc import Mapping
from string import Template

from detection.engine import durations
from detection.engine.calls import Finding
from detection.engine.detectors import detector_for
from detection.engine.detectors.base import NAMES_ONLY, SMALLER_STEPS, calls_in_window
from detection.engine.policy import Policy
from detection.engine.provider_trouble import ADVICE
from detection.engine.tool_classes import ToolClass

MAX_TOOL_CHARACTERS = 128
"""Length of a tool name in a message."""

_INSTEAD = "Change the inputs, use another tool, or answer with what you know."

_MARKS = (".", "!", "?", "…", "。", "！", "？")
"""What ends a sentence."""

ONCE = Template(
    "The call was not run: the same answer calls '$tool' with identical arguments before, and what changes something "
    "runs once. The result of that call is the result of this one, too. To do it again, call it in another answer."
)
"""Of a call that repeats a write of its own answer; see the setting `writes_once`."""

CLOSINGS = ("skipped", "expired", "expired_stop", "denied", "contained")
"""Names of the templates for calls that people decide about: skipped by a person, expired, denied by the judge, or
contained."""

TEMPLATES: Mapping[str, str] = {
    "warn": "[WARNING: $what. You may be in a loop. $advice]",
    "delay": "The call was not run. $sentence. Asking more often changes nothing: do other work meanwhile.",
    "reuse": "The call was not run. $sentence. Its answer is known: use it, or continue without this call. $next",
    "chance": (
        "The call was not run. $sentence. Reflect: why did the earlier calls not help? Change the inputs, use a "
        "different tool, or answer with what you know. $next"
    ),
    "block": "The call was not run. $sentence. $advice $next",
    "finish": (
        "The call was not run. $sentence. Use no more tools. Answer "
        "now with what you have, and say what is missing. $next"
    ),
    "ask": "The call is on hold. $sentence. An operator decides whether it may run.",
    "judge": "The call is on hold. $sentence. A justification has been requested.",
    "skipped": "The call was not run: an operator skipped it. $sentence. " + _INSTEAD,
    "expired": "The call was not run: $decider did not approve it in time. $sentence. " + _INSTEAD,
    "expired_stop": "The run was stopped: $decider did not approve the call in time. $sentence. "
    + SMALLER_STEPS,
    "denied": "The run was stopped. $sentence, and no justification was accepted. " + SMALLER_STEPS,
    "contained": "The call was not run. $sentence. No call of it runs until an operator lifts this: say what you have, "
    "and what is missing.",
    "stop": (
        "Tool call loop detected: $what. Session stopped to prevent unintended looping. Adjust the inputs or the "
        "strategy, or break the request into smaller steps."
    ),
}
"""Default message templates by rung or name of `CLOSINGS`; see `message` for the placeholders."""


def _of_class(advice: str, stop: str = TEMPLATES["stop"]) -> Mapping[str, str]:
    return {
        "warn": f"[WARNING: $what. You may be in a loop. {advice}]",
        "chance": f"The call was not run. $sentence. {advice} $next",
        "block": f"The call was not run. $sentence. {advice} $next",
        "stop": stop,
    }


CLASS_TEMPLATES: Mapping[ToolClass, Mapping[str, str]] = {
    # Other arguments would ask for something else: a poll has to wait.
    "poll": _of_class(
        "Nothing has changed yet. Wait once, longer than so far, before you ask again, ask to be notified, or do other "
        "work first. If nothing has changed then, report that.",
        "Tool call loop detected: $what. Session stopped to prevent unintended looping. Nothing had changed; start "
        "again later, when what was waited for may be done.",
    ),
    "read": _of_class(
        "The same call returns what you already have: use it, look for something else, or answer with what you know."
    ),
    "change": _of_class(
        "Making the same change again does not help: check what the "
        "earlier calls did, then decide what is still missing."
    ),
    "message": _of_class(
        "Do not send it again: wait for a reply, or continue without one and say what you could not find out."
    ),
    "fallible": _of_class(
        "Use the output of the earlier calls. Change something before you run it again, or report what you have."
    ),
}
"""Default message templates by tool class and rung, for repeats; `TEMPLATES` has the others."""

_RESULT_TEMPLATES: Mapping[tuple[ToolClass, str], Mapping[str, str]] = {
    # The agent has nothing of these reads yet.
    ("read", "unknown"): _of_class(
        "Do not repeat it: look for something else, or answer with what you know."
    ),
    ("read", "errors"): _of_class(
        "The same call brings the same error: find its cause, look for something else, or report what fails."
    ),
    # What fails is not waited for.
    ("poll", "errors"): _of_class(
        "What is asked for may not exist or may have ended: check its id, start it again, or report what fails."
    ),
    # Only what fails has a cause to be found.
    ("fallible", "errors"): _of_class(
        "Read the output of the earlier calls and find the cause, then try something that addresses it, or report what "
        "fails."
    ),
}
"""Templates by tool class and by what is known of the results, where these need other advice than `CLASS_TEMPLATES`."""

_TEMPLATES_BY_NAME: Mapping[str, str] = _of_class(
    "Other arguments do not help: use another tool, or answer with what you know.",
    "Tool call loop detected: $what. Session stopped to prevent unintended looping. Use other tools, or break the "
    "request into smaller steps.",
)
"""Templates where calls were compared by their tools alone: nothing is known of their arguments."""

_CLASSES_OF_ANY_LOOP = frozenset(("poll", "fallible"))
"""Classes whose templates also suit loops of different calls."""

_NEXT = {
    "delay": "will have to wait",
    "reuse": "will not be run",
    "finish": "will not be run",
    "chance": "will not be run",
    "block": "will not be run",
    "stop": "will end the session",
}
"""What the next detection does, by rung, for the agent."""

OF_HOSTS_THAT_GO_ON: Mapping[str, str] = {"next_stop": "will get all further calls refused"}
"""Beside the templates of a session whose host cannot end a run: what a stop does there."""


def message(
    rung: str | None,
    finding: Finding,
    policy: Policy,
    templates: Mapping[str, str] | None = None,
    *,
    after_guidance: bool = False,
    next_rung: str = "",
    pause_seconds: int = 0,
) -> str:
    """Return the message of a rung.

    Parameters
    ----------
    rung : str or None
        `observe` and None have no message.
    finding : Finding
        The finding; its `detail["tool"]` names the tool.
    policy : Policy
        For the class of the tool and for what is counted together.
    templates : mapping, optional
        Templates by rung instead of the defaults of all classes. Placeholders: `$what` (the finding in words),
        `$sentence` (the same with a capital letter), `$advice`, `$next` (what happens if the agent continues), `$tool`,
        `$count`, `$limit`, `$window`, `$kind` and `$seconds`.
    after_guidance : bool
        Whether the agent already got a chance to change its approach.
    next_rung : str
        The rung that the next detection takes, if it is known.
    pause_seconds : int
        Of a delay: the pause, which follows the template.

    Returns
    -------
    str
        Plain text.
    """
    detector = detector_for(finding.kind)
    following = _NEXT.get(next_rung, "")
    if next_rung == "stop" and templates and "next_stop" in templates:
        following = _NEXT["block"] if detector.is_run_limit else templates["next_stop"]
    defaults = TEMPLATES
    tool_class = policy.traits.tool_class
    is_repeat = detector.is_exact and not detector.spans_tools
    names_only = bool(finding.detail.get(NAMES_ONLY))
    if names_only and detector.is_exact:
        defaults = {**TEMPLATES, **_TEMPLATES_BY_NAME}
    elif is_repeat or (tool_class in _CLASSES_OF_ANY_LOOP and not detector.is_run_limit):
        of_class = _RESULT_TEMPLATES.get((tool_class, finding.results)) or CLASS_TEMPLATES.get(tool_class, {})
        defaults = {**TEMPLATES, **of_class}
    advice = ADVICE.get(str(finding.detail.get("own_limit", "")), "")
    if advice:
        defaults = {**TEMPLATES, **_of_class(advice)}
    defaults = {**defaults, **detector.templates}
    template = (templates or {}).get(rung or "") or defaults.get(rung or "")
    if template is None:
        return ""
    pause = f" {pause_note(pause_seconds)}" if pause_seconds else ""
    what = detector.describe(finding, in_seconds=True) + (
        ", again after guidance to try another way" if after_guidance and not detector.is_run_limit else ""
    )
    return (
        Template(template)
        .safe_substitute(
            what=what,
            sentence=what[:1].upper() + what[1:],
            advice=advice or (finding.results == "errors" and detector.error_advice) or detector.advice,
            next=f"{(names_only and detector.again_by_name) or detector.again} {following}."
            if following
            else "",
            tool=shown(str(finding.detail.get("tool", ""))),
            count=finding.count,
            limit=finding.limit,
            kind=finding.kind,
            decider="an operator",
            seconds=finding.window_seconds or "",
            window=_window(finding, policy),
        )
        .rstrip()
        + pause
    )


def closing(
    name: str,
    summary: str,
    *,
    kind: str,
    tool: str,
    count: int,
    limit: int,
    decider: str = "an operator",
    templates: Mapping[str, str] | None = None,
) -> str:
    """Return the message for an agent whose held call was not approved.

    Parameters
    ----------
    name : str
        One of `CLOSINGS`.
    summary : str
        The finding in words, as the approval has it.
    kind, tool, count, limit
        Of the finding.
    decider : str
        Who did not decide in time.
    templates : mapping, optional
        Templates by name instead of the defaults.
    """
    detector = detector_for(kind)
    template = (templates or {}).get(name) or detector.templates.get(name) or TEMPLATES[name]
    return Template(template).safe_substitute(
        sentence=summary,
        advice=detector.advice,
        decider=decider,
        tool=shown(tool),
        count=count,
        limit=limit,
    )


def as_sentence(text: str) -> str:
    """Return what a person or a model wrote with a mark at its end, so that more can follow."""
    text = text.strip()
    return text if not text or text.rstrip("\"')”’»").endswith(_MARKS) else f"{text}."


def pause_note(seconds: int) -> str:
    """Return the sentence that names the pause before a call may be made again."""
    return f"Wait {durations.exact(seconds)} before you make this call again; it may run then."


def answer_note(seconds: float) -> str:
    """Return the line before a reused result, with its age in seconds."""
    return f"The answer that the same call got {durations.relative(max(0.0, seconds))}:"


def shown(tool: str) -> str:
    """Return the name of a tool as a message has it."""
    return "".join(char for char in tool if char.isprintable())[:MAX_TOOL_CHARACTERS]


def _window(finding: Finding, policy: Policy) -> str:
    """Return the window that was counted over."""
    bounds = [f"{calls} calls"] if (calls := calls_in_window(finding)) else []
    if finding.window_seconds:
        bounds.append(durations.exact(finding.window_seconds))
    return " and ".join(bounds) or f"this {policy.values['counting_scope']}"


def describe(finding: Finding) -> str:
    """Return the finding in words, without arguments."""
    return detector_for(finding.kind).describe(finding)
