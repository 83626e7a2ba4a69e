"""In-chat commands (`!/set(...)`, `!/unset(...)`): change settings of one session and reply with one line each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from detection.engine import commands as grammar
from detection.engine.field import number_text
from detection.engine.fields import FIELDS, LADDERS
from detection.engine.memory import State
from detection.engine.policy import Policy, Top, stored_values
from detection.models import Session
from detection.selectors.ancestors import top_of
from detection.selectors.policies import ProjectOverrides, overrides_of
from detection.services import audit
from detection.services.audit import Actor


@dataclass(frozen=True, slots=True)
class CommandOut:
    """Result of the commands in a text.

    Attributes
    ----------
    lines
        One reply per command: the value now in effect, or the error.
    is_changed
        Whether a setting changed.
    """

    lines: tuple[str, ...]
    is_changed: bool


CHAT = Actor("command")
_SHOWN = ("enabled", "max_repeats", "ttl_seconds", "mode", "preset")


def help_line(policy: Policy) -> str:
    """Return one line with the settings that a chat can change, their values, and the syntax."""
    words = []
    for name in _SHOWN:
        field, value = FIELDS[name], policy.get(name)
        now = grammar.shown_value(value)
        allowed = ""
        if field.type == "int":
            allowed = f", {number_text(field.minimum)} to {number_text(field.maximum)}"
        elif field.type == "ladder":
            allowed = f", one of {', '.join(LADDERS)}, or a list of reactions"
        words.append(f"{grammar.shown_name(name)} (now {now}{allowed})")
    words.append(f"{grammar.shown_name(grammar.EXEMPT)} (tools that this session spares)")
    return f"{'; '.join(words)}. Change with !/set(name=value, …), remove with !/unset(name, …)."


def replies_in_effect(project_id: int, external_id: str, text: str) -> str:
    """Return the replies to commands that were executed before, one a line: the values that are in effect now."""
    session = Session.objects.select_related("project").get(project_id=project_id, external_id=external_id)
    overrides, values = overrides_of(session.project), stored_values(session.policy_values)
    policy = overrides.policy_for(session.agent, session.backend, session.model, values, top_of(session))
    if grammar.asks_for_help(text):
        return help_line(policy)
    lines = []
    for command in grammar.parse(text):
        try:
            grammar.apply(command, values, policy.get)
        except grammar.CommandError as error:
            lines.append(str(error))
        else:
            lines.append(grammar.reply(command.changes, policy, session.exempt_tools))
    return "\n".join(lines)


def run_in_chat(
    session: Session,
    overrides: ProjectOverrides,
    text: str,
    state_of: Callable[[], State],
    actor: Actor = CHAT,
    *,
    top: Top | None = None,
) -> CommandOut:
    """Execute the commands in `text` on a locked session, which the caller saves with its state.

    `state_of` returns the state, which is read for commands only; `top` is what a sub-agent inherits.

    A command with a mistake changes nothing; the others in the same text are executed.
    """
    if grammar.asks_for_help(text):
        policy = overrides.policy_for(
            session.agent, session.backend, session.model, session.policy_values, top
        )
        return CommandOut((help_line(policy),), is_changed=False)
    if not grammar.contains_command(text):
        return CommandOut((), is_changed=False)
    before = values = stored_values(session.policy_values)
    state = state_of()
    exempt = list(state.exempt)
    lines = []
    for command in grammar.parse(text):
        try:
            policy = overrides.policy_for(session.agent, session.backend, session.model, values, top)
            spared = grammar.exempted(command, exempt)
            values, exempt = grammar.apply(command, values, policy.get), spared
        except grammar.CommandError as error:
            lines.append(str(error))
        else:
            policy = overrides.policy_for(session.agent, session.backend, session.model, values, top)
            lines.append(grammar.reply(command.changes, policy, exempt))
    has_exemptions = exempt != state.exempt
    if has_exemptions:
        _exempt(session, state, exempt, actor)
    if values != before:
        session.policy_values = values
        audit.record(
            actor,
            "session.policy",
            session.external_id,
            project_id=session.project_id,
            before=before,
            after=values,
        )
    return CommandOut(tuple(lines), values != before or has_exemptions)


def _exempt(session: Session, state: State, exempt: list[str], actor: Actor) -> None:
    """Spare these tools and no others, starting with the next call."""
    for tool in state.exempt:
        if tool not in exempt:
            audit.record(
                actor,
                "session.exemption.revoke",
                session.external_id,
                project_id=session.project_id,
                before={"tool": tool},
            )
    added = [tool for tool in exempt if tool not in state.exempt]
    if added:
        audit.record(
            actor,
            "session.exemption",
            session.external_id,
            project_id=session.project_id,
            after={"tools": added},
        )
    state.exempt = exempt
