"""In-chat commands (`!/set(...)`, `!/unset(...)`): what they change of a session's own settings, and the answer of one line."""

from __future__ import annotations

from dataclasses import dataclass

from detection.engine import commands as grammar
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


def run_in_chat(session: Session, tiers: Tiers, text: str, actor: Actor = CHAT) -> CommandOut:
    """Carry out the commands in `text` on a locked session, which the caller saves.

    A command with a mistake changes nothing; the others in the same text still hold.
    """
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
    session.policy_values = values
    policy = tiers.policy_for(session.backend, session.model, values)
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
