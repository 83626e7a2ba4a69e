"""In-chat commands (`!/set(...)`, `!/unset(...)`): what they change of a session's own settings, and the answer of one line."""

from __future__ import annotations

import re
from dataclasses import dataclass

from detection.engine import commands as grammar
from detection.engine.fields import FIELDS, LADDERS
from detection.engine.policy import Policy, PolicyError
from detection.models import Session
from detection.selectors.policies import Tiers
from detection.services import audit
from detection.services.audit import Actor


@dataclass(frozen=True, slots=True)
class CommandOut:
    """What a text with commands came to.

    Attributes
    ----------
    lines
        One answer per command: what holds now, or what was wrong.
    is_changed
        Whether a setting changed.
    """

    lines: tuple[str, ...]
    is_changed: bool


CHAT = Actor("command")
_HELP = re.compile(r"!/help\(\s*(?:tool[-_]loop[^()]*)?\)", re.IGNORECASE)
_SHOWN = ("enabled", "max_repeats", "ttl_seconds", "mode", "preset")


def help_line(policy: Policy) -> str:
    """Say in one line which settings a chat can change, what holds now, and how to change it."""
    words = []
    for name in _SHOWN:
        field, value = FIELDS[name], policy.get(name)
        now = (
            str(value).lower()
            if isinstance(value, bool)
            else ",".join(value)
            if isinstance(value, tuple)
            else value
        )
        allowed = f", at least {field.minimum:g}" if field.minimum is not None else ""
        if field.type == "ladder":
            allowed = f", one of {', '.join(LADDERS)}, or a list of reactions"
        words.append(f"{grammar.shown_name(name)} (now {now}{allowed})")
    return f"{'; '.join(words)}. Change with !/set(name=value, …), take back with !/unset(name, …)."


def run_in_chat(session: Session, tiers: Tiers, text: str, actor: Actor = CHAT) -> CommandOut:
    """Carry out the commands in `text` on a locked session, which the caller saves.

    A command with a mistake changes nothing; the others in the same text still hold.
    """
    if _HELP.search(text[: grammar.MAX_COMMAND_CHARS]):
        policy = tiers.policy_for(session.backend, session.model, session.policy_values)
        return CommandOut((help_line(policy),), is_changed=False)
    if not grammar.contains_command(text):
        return CommandOut((), is_changed=False)
    try:
        changes = grammar.parse(text)
    except grammar.CommandError as error:
        return CommandOut((str(error),), is_changed=False)
    before = dict(session.policy_values)
    values = dict(before)
    for change in changes:
        if change.value is grammar.UNSET:
            values.pop(change.field, None)
        else:
            values[change.field] = change.value
    try:
        policy = tiers.policy_for(session.backend, session.model, values)
    except PolicyError as error:
        # Each value is fine by itself, but not beside the others.
        return CommandOut((f"{grammar.shown_name(error.field)} {error.message}.",), is_changed=False)
    session.policy_values = values
    if values != before:
        audit.record(
            actor,
            "session.policy",
            session.external_id,
            project_id=session.project_id,
            before=before,
            after=values,
        )
    return CommandOut((grammar.reply(changes, policy),), values != before)
