"""Custom message templates of projects, per rung and wire shape, with safe placeholders.

The engine contains the default templates and the shapes. Templates can contain the tool, the count, the limit and the
window, but no text of an agent: a quoted argument feeds the loop.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

from django.db import transaction
from django.db.models import F

from detection.engine import messages, wire_shapes
from detection.engine.calls import Decision, Finding
from detection.engine.policy import Policy, resolve
from detection.engine.reactions import DECISION_OF
from detection.models import MessageTemplate, Project
from detection.selectors.project_cache import ProjectCache
from detection.services import audit
from detection.services.audit import Actor
from detection.services.errors import Invalid
from detection.services.versions import require_version, version_of
from detection.stream.hints import Hint
from detection.stream.publisher import publish_after_commit

PLACEHOLDERS = ("tool", "count", "limit", "window")
RUNGS = tuple(messages.TEMPLATES)
MAX_CHARACTERS = 1000
_DECISIONS: dict[str, Decision] = {
    **DECISION_OF, "skipped": "block", "expired": "block", "expired_stop": "stop", "denied": "stop",
    "contained": "block",
}  # fmt: skip
_PLACEHOLDER = re.compile(r"\$(?:\$|(\w+)|\{([^${}]*+)\}|)")
_SAMPLE = Finding(
    kind="repeat", count=4, limit=4, window_seconds=120, detail={"tool": "search_web"}, results="equal"
)


@dataclass(frozen=True, slots=True)
class EffectiveTemplate:
    """The template in use for a rung and a wire shape; an empty shape means all."""

    rung: str
    shape: str
    text: str
    is_own: bool
    updated_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class CustomTemplates:
    """The custom templates of a project: by rung for every shape, and by rung and shape."""

    by_rung: dict[str, str]
    by_shape: dict[tuple[str, str], str]

    def for_shapes(
        self, rung: str | None, finding: Finding, policy: Policy, pause_seconds: int = 0
    ) -> dict[str, str]:
        """Return the messages of the shapes that have a template for this rung."""
        return {
            shape: messages.message(rung, finding, policy, {of: text}, pause_seconds=pause_seconds)
            for (of, shape), text in self.by_shape.items()
            if of == rung
        }


def load_templates(project: Project) -> CustomTemplates:
    """Read the custom templates of a project; one query."""
    rows = list(MessageTemplate.objects.filter(project=project).values_list("rung", "shape", "text"))
    return CustomTemplates(
        {rung: text for rung, shape, text in rows if not shape},
        {(rung, shape): text for rung, shape, text in rows if shape},
    )


template_cache = ProjectCache(load_templates)
templates_of = template_cache.get
"""Return the custom templates of a project, from this process's cache."""


def check(rung: str, shape: str, text: str) -> str:
    """Return a valid template.

    Raises
    ------
    Invalid
        For an unknown rung or shape, a placeholder that is not one of `PLACEHOLDERS`, control characters, or a
        template that is empty or too long.
    """
    if rung not in RUNGS:
        raise Invalid(f"`rung` must be one of {', '.join(RUNGS)}.", field="rung", code="invalid_value")
    if shape not in ("", *wire_shapes.SHAPES):
        raise Invalid(
            f"`shape` must be one of {', '.join(wire_shapes.SHAPES)}, or empty for all.",
            field="shape",
            code="invalid_value",
        )
    if shape and rung in messages.CLOSINGS:
        raise Invalid(
            "`shape` must be empty: this text is the same in all.", field="shape", code="invalid_value"
        )
    text = text.replace("\r\n", "\n").strip()
    if not 1 <= len(text) <= MAX_CHARACTERS:
        raise Invalid(
            f"`text` must have 1 to {MAX_CHARACTERS:,} characters.",
            field="text",
            code="too_long" if text else "missing",
        )
    if any(not char.isprintable() and char != "\n" for char in text):
        raise Invalid("`text` must not contain control characters.", field="text", code="invalid_characters")
    known = PLACEHOLDERS[:-1] if rung in messages.CLOSINGS else PLACEHOLDERS  # an approval keeps no window
    for found in _PLACEHOLDER.finditer(text):
        name = found[1] or found[2]
        if found[0] != "$$" and name not in known:
            allowed = ", ".join(f"${one}" for one in known)
            raise Invalid(
                f"'{found[0]}' is not a placeholder. Use {allowed}, or $$ for a dollar sign.",
                field="text",
                code="unknown_placeholder",
            )
    return text


@transaction.atomic
def save_template(
    project_id: int, rung: str, shape: str, text: str, actor: Actor, *, version: str | None = None
) -> None:
    """Set a custom template; an empty one restores the default. Takes effect on the next call.

    Raises
    ------
    Invalid
        See `check`.
    ChangedMeanwhile
        When the template is not the one of `version`, which is `template_version` of what the person has seen.
    """
    row = MessageTemplate.objects.select_for_update().filter(project_id=project_id, rung=rung, shape=shape)
    before = row.first()
    require_version(version, {"text": before.text if before else ""})
    text = check(rung, shape, text) if text.strip() else ""
    if (before.text if before else "") == text:
        return
    if not text:
        row.delete()
    else:
        MessageTemplate.objects.update_or_create(
            project_id=project_id,
            rung=rung,
            shape=shape,
            defaults={"text": text, "updated_by_id": actor.user_id},
        )
    Project.objects.filter(pk=project_id).update(policy_version=F("policy_version") + 1)
    audit.record(
        actor,
        "message_template.save",
        f"{rung} {shape}".strip(),
        project_id=project_id,
        before={"text": before.text} if before else None,
        after={"text": text} if text else None,
    )
    publish_after_commit(project_id, Hint("policy"))


def template_version(text: str) -> str:
    """Return the version of a custom template; of none, with an empty text."""
    return version_of({"text": text})


def list_templates(project_id: int) -> list[EffectiveTemplate]:
    """List every rung's template for all shapes, and the project's for single shapes, in the order of the rungs."""
    own = {(row.rung, row.shape): row for row in MessageTemplate.objects.filter(project_id=project_id)}
    listed = []
    for rung in RUNGS:
        for shape in ("", *wire_shapes.SHAPES):
            row = own.get((rung, shape))
            if row is not None:
                listed.append(EffectiveTemplate(rung, shape, row.text, True, row.updated_at))
            elif not shape:
                listed.append(EffectiveTemplate(rung, "", messages.TEMPLATES[rung], False))
    return listed


def preview(rung: str, shape: str, text: str) -> dict[str, object] | str:
    """Return what an agent would get for a repeated search, in a wire shape; an empty text previews the default."""
    own = {rung: check(rung, "" if rung in messages.CLOSINGS else shape, text)} if text.strip() else None
    policy = resolve([])
    pause_seconds = policy.values["delay_seconds"] if rung == "delay" else 0
    message = messages.message(rung, _SAMPLE, policy, own, pause_seconds=pause_seconds)
    if rung == "reuse":
        message += f"\n\n{messages.answer_note(90)}\n0 results"
    known, decision = wire_shapes.shape_named(shape) or "text", _DECISIONS[rung]
    is_late = decision == "warn" and known in wire_shapes.WARNED_WITH_RESULT
    return wire_shapes.render(
        known,
        decision,
        message,
        "call_7",
        "gpt-5",
        str(_SAMPLE.detail["tool"]),
        is_answer=rung == "reuse",
        moment="after" if is_late else "before",
    )
