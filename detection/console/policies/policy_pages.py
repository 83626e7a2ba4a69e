"""Pages of settings: the override of each scope with inherited values, tool rules, and the history with restore."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any, cast
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from detection.console import edits, formatting
from detection.console.access import ProjectRequest, actor_of, in_project, missing_role
from detection.console.policies import setting_changes
from detection.console.policies.setting_changes import REACTIONS
from detection.console.policies.what_if import lines_of
from detection.engine.fields import FIELDS, LADDERS
from detection.engine.policy import Policy, PolicyError
from detection.engine.scopes import PROJECT, SERVER, STORED_KINDS, Scope
from detection.engine.tool_classes import TOOL_CLASSES
from detection.models import Role, StoredSettings, ToolOverride
from detection.models.incidents import IncidentLabel
from detection.selectors import dashboard
from detection.selectors import incidents as incident_selector
from detection.selectors.audit import author_of
from detection.selectors.policies import ProjectOverrides, overrides_of, rows_at
from detection.services.audit import noted
from detection.services.errors import ServiceError
from detection.services.policies import overrides as service
from detection.services.policies.documents import RULE_FACTS
from detection.services.versions import ChangedMeanwhile
from detection.web.forms import OverrideForm, form_settings

CLASS_HELP = {
    "read": "reads data",
    "change": "changes data",
    "poll": "asks for a state that changes elsewhere",
    "wait": "only waits",
    "message": "sends a message to someone",
    "fallible": "often fails in normal use, like a shell",
    "exempt": "never evaluated",
    "other": "none of the above",
}
EXPIRIES = {
    "1h": timedelta(hours=1),
    "1d": timedelta(days=1),
    "7d": timedelta(days=7),
    "30d": timedelta(days=30),
}
SAVED = "Override saved. It takes effect on the next call."
DELETED_STALE = "This was changed in the meantime and was not deleted. Its current values are shown."


@dataclass(frozen=True, slots=True)
class Node:
    """A line of the tree of scopes."""

    name: str
    url: str
    level: int
    own: int
    is_current: bool


def _scope(request: ProjectRequest) -> Scope:
    """Return the scope in the address: `?scope=model:openai/gpt-5`; the project without one."""
    try:
        if "scope" in request.GET:
            scope = Scope.parse(request.GET["scope"])
        else:
            names = {name: request.GET.get(name, "").strip() for name in ("agent", "backend", "model")}
            scope = Scope.of(**names)
        scope.check_names()
    except PolicyError:
        raise Http404 from None
    if scope.kind not in STORED_KINDS:
        raise Http404
    return scope


def _url(slug: str, scope: Scope) -> str:
    return f"{reverse('console:policies', args=[slug])}?{urlencode({'scope': str(scope)})}"


def _tree(
    request: ProjectRequest, stored: ProjectOverrides, current: Scope | None
) -> list[tuple[str, list[Node]]]:
    """Group the scopes that have an override, and those of agents and models with recent calls, under titles."""
    seen = dashboard.facets(request.project.pk)
    known = {scope for scope in stored.values if scope.kind in STORED_KINDS} | {SERVER, PROJECT}
    known |= {Scope.of(agent=agent) for agent in seen.agents}
    known |= {Scope.of(backend=backend, model=model) for backend, model in seen.pairs}
    known |= {current} if current else set()
    known |= {Scope.of(backend=scope.backend) for scope in known if scope.backend}

    def node(scope: Scope) -> Node:
        name = scope.model or scope.backend or scope.agent
        return Node(
            name or ("Server" if scope == SERVER else "This project"),
            _url(request.project.slug, scope),
            1 if scope.model else 0,
            len(stored.values.get(scope, ())),
            scope == current,
        )

    ordered = sorted(known, key=lambda scope: (scope.agent, scope.backend, scope.model, scope.rank))
    groups = [
        ("Scopes", [one for one in ordered if one in (SERVER, PROJECT)]),
        ("Agents", [one for one in ordered if one.agent]),
        ("Backends and models", [one for one in ordered if one.backend]),
    ]
    return [(title, [node(scope) for scope in scopes]) for title, scopes in groups if scopes]


def tree_context(
    request: ProjectRequest, stored: ProjectOverrides | None = None, scope: Scope | None = None
) -> dict[str, Any]:
    """Return the context of the tree of scopes, rules and lists."""
    stored = overrides_of(request.project) if stored is None else stored
    return {
        "tree": _tree(request, stored, scope),
        "rules": _rules(request),
        "exceptions": incident_selector.exceptions(request.project.pk).count(),
    }


def _rules(request: ProjectRequest) -> list[ToolOverride]:
    rows = ToolOverride.objects.filter(project=request.project).in_effect()
    return list(rows.select_related("updated_by")[:200])


@in_project()
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: ProjectRequest) -> HttpResponse:
    """Show the override of a scope, or save it."""
    project, scope = request.project, _scope(request)
    is_server = scope == SERVER
    stored = overrides_of(project)
    row = _row(request, scope)
    may_change = request.membership.allows(Role.ADMIN) and (not is_server or request.user.is_superuser)
    form = OverrideForm(
        request.POST or None,
        scope=scope,
        own=(own := row.values if row else {}),
        inherited=stored.inherited(scope, own),
    )
    status = 200
    if request.method == "POST":
        if not may_change:
            return missing_role(request, Role.ADMIN)
        action = request.POST.get("action")
        if action == "delete":
            _delete(request, scope)
            return redirect(_url(project.slug, scope))
        if action == setting_changes.DIFF:
            return setting_changes.respond(request, form, partial(stored.inherited, scope))
        if form.is_valid() and _save(request, scope, form, row):
            messages.success(request, SAVED)
            return redirect(_url(project.slug, scope))
        status = 422 if form.conflict is None else 409
    context = {
        "version": _version(request, form, service.override_version(row)),
        "stored_version": service.override_version(row),
        "conflict": form.conflict,
        "changed_by": author_of(row),
        "scope": scope,
        **tree_context(request, stored, scope),
        "override": row,
        "stored": row,
        "form": form,
        "settings": form_settings(form),
        "may_change": may_change,
        "is_server": is_server,
        **reaction_values(form.inherited),
    }
    return render(request, "policies/policies.html", context, status=status)


def reaction_values(inherited: Policy | None = None) -> dict[str, dict[str, str]]:
    """Return what a reaction can be set to: single reactions and named sequences, each with its words.

    `graduated` has the rungs of the policy above, where that is known.
    """
    named = {name: ", then ".join(rungs) for name, rungs in LADDERS.items() if name not in REACTIONS}
    own = inherited.values["graduated_rungs"] if inherited else ""
    if own and not isinstance(own, str):
        named["graduated"] = ", then ".join(own)
    return {"reactions": REACTIONS, "sequences": {**named, "judge_or_ask": "judge, else ask, else stop"}}


def expiry_of(request: ProjectRequest, known: datetime | None = None) -> datetime | None:
    """Read when a change is to expire; `keep` stands for the time that is stored."""
    chosen = request.POST.get("expires", "")
    return known if chosen == "keep" else timezone.now() + EXPIRIES[chosen] if chosen in EXPIRIES else None


def _version(request: ProjectRequest, form: OverrideForm, stored: str) -> str:
    """Return the version for the form: the version it was filled with, until a conflict has been shown."""
    return stored if form.conflict is not None else request.POST.get("version", stored)


def _row(request: ProjectRequest, scope: Scope) -> StoredSettings | None:
    """Return the override or tool rule that applies now."""
    return rows_at(request.project.pk, scope).in_effect().select_related("updated_by").first()


def _save(
    request: ProjectRequest,
    scope: Scope,
    form: OverrideForm,
    row: StoredSettings | None,
    facts: service.RuleFacts | None = None,
) -> bool:
    note, facts = form.cleaned_data["note"], facts or {}
    try:
        service.save_override(
            None if scope == SERVER else request.project.pk,
            scope,
            form.values,
            actor_of(request),
            note,
            expiry_of(request, row.expires_at if row else None),
            version=request.POST.get("version"),
            **facts,
        )
    except ChangedMeanwhile as error:
        form.conflict = edits.compare(_flat(error.current), {**facts, "note": note, **form.values})
        return False
    except ServiceError as error:
        form.add_service_error(error)
        return False
    return True


def _delete(request: ProjectRequest, scope: Scope) -> bool:
    """Delete an override or tool rule and say so; returns whether its page is still of use."""
    noun = "Tool rule" if scope.kind == "tool" else "Override"
    note = request.POST.get("note", "")[: service.MAX_NOTE_CHARACTERS]
    project_id = None if scope == SERVER else request.project.pk
    try:
        service.delete_override(
            project_id, scope, actor_of(request), note, version=request.POST.get("version")
        )
    except ChangedMeanwhile:
        messages.error(request, DELETED_STALE)
        return True
    except ServiceError as error:
        messages.error(request, error.detail)
        return error.field == "note"
    messages.success(request, f"{noun} deleted. It takes effect on the next call.")
    return False


class ToolRuleForm(OverrideForm):
    """A tool rule."""

    pattern = forms.CharField(max_length=128)
    tool_class = forms.ChoiceField(
        required=False,
        choices=[("", "built in"), *((name, f"{name}: {CLASS_HELP[name]}") for name in TOOL_CLASSES)],
    )
    ignore_arguments = forms.CharField(
        required=False, max_length=2000, widget=forms.Textarea(attrs={"rows": 3})
    )
    volatile_result_fields = forms.CharField(
        required=False, max_length=2000, widget=forms.Textarea(attrs={"rows": 3})
    )
    exempt = forms.BooleanField(required=False)


@in_project(write_role=Role.ADMIN)
@require_http_methods(["GET", "HEAD", "POST"])
def tool_rule(request: ProjectRequest) -> HttpResponse:
    """Show one tool rule or an empty one, save it, or delete it."""
    project, pattern = request.project, request.GET.get("pattern", "")[:128]
    stored = overrides_of(project)
    scope = Scope("tool", pattern=pattern or "*")
    rule = cast("ToolOverride | None", _row(request, scope)) if pattern else None
    if pattern and rule is None and request.method == "GET" and "new" not in request.GET:
        raise Http404
    if pattern and request.POST.get("action") == "delete":
        if _delete(request, scope):
            return redirect(_rule_url(request, pattern))
        return redirect("console:policies", project.slug)
    form = ToolRuleForm(
        request.POST or None,
        scope=scope,
        own=(own := rule.values if rule else {}),
        inherited=stored.inherited(scope, own),
        initial={
            "pattern": rule.pattern if rule else pattern,
            "tool_class": rule.tool_class if rule else "",
            "ignore_arguments": "\n".join(rule.ignore_arguments) if rule else "",
            "volatile_result_fields": "\n".join(rule.volatile_result_fields) if rule else "",
            "exempt": rule.exempt if rule else False,
        },
    )
    if request.POST.get("action") == setting_changes.DIFF:
        before = {name: getattr(rule, name) if rule else default for name, default in RULE_FACTS.items()}
        after = _facts(form) if form.is_valid() else before
        return setting_changes.respond(request, form, partial(stored.inherited, scope), (before, after))
    if (
        request.method == "POST"
        and form.is_valid()
        and _save(request, Scope("tool", pattern=form.cleaned_data["pattern"]), form, rule, _facts(form))
    ):
        messages.success(request, SAVED.replace("Override", "Tool rule"))
        return redirect(_rule_url(request, form.cleaned_data["pattern"]))
    context = {
        **tree_context(request, stored),
        "rule": rule,
        "stored": rule,
        "version": _version(request, form, service.override_version(rule)),
        "stored_version": service.override_version(rule),
        "conflict": form.conflict,
        "changed_by": author_of(rule),
        "form": form,
        "settings": form_settings(form),
        "may_change": request.membership.allows(Role.ADMIN),
        **reaction_values(form.inherited),
    }
    return render(
        request,
        "policies/tool_rule.html",
        context,
        status=409 if form.conflict is not None else 422 if form.errors else 200,
    )


def _facts(form: ToolRuleForm) -> service.RuleFacts:
    """Return the fields of a valid tool rule form other than settings."""
    given = form.cleaned_data
    return {
        "tool_class": given["tool_class"],
        "ignore_arguments": lines_of(given["ignore_arguments"]),
        "volatile_result_fields": lines_of(given["volatile_result_fields"]),
        "exempt": given["exempt"],
    }


def _rule_url(request: ProjectRequest, pattern: str) -> str:
    url = reverse("console:tool_rule", args=[request.project.slug])
    return f"{url}?{urlencode({'pattern': pattern})}"


@in_project(write_role=Role.ADMIN)
@require_http_methods(["GET", "HEAD", "POST"])
def history(request: ProjectRequest) -> HttpResponse:
    """Show the changes of settings, and restore one."""
    project = request.project
    if request.method == "POST":
        entry = request.POST.get("entry", "")
        try:
            service.restore(
                project.pk, int(entry) if entry.isdecimal() and len(entry) < 19 else 0, actor_of(request)
            )
            messages.success(
                request, "The state before that change is restored. It takes effect on the next call."
            )
        except ServiceError as error:
            messages.error(request, error.detail)
        return redirect("console:policy_history", project.slug)
    entries = service.history(project.pk)
    context = {
        **tree_context(request),
        "entries": [(entry, formatting.source_name(entry.subject), changes_of(entry)) for entry in entries],
    }
    return render(request, "policies/history.html", context)


def changes_of(entry: Any) -> list[tuple[str, str, str]]:
    """Return (label, before, after) of every value that a change altered."""
    before, after = _flat(entry.before), _flat(entry.after)
    rows = []
    for name in {**before, **after}:
        label = formatting.label_of(name)
        old, new = _value(name, before.get(name)), _value(name, after.get(name))
        says_nothing = before.get(name) is None and not after.get(name) and name not in FIELDS
        if old != new and name != "note" and not says_nothing:
            rows.append((label, old, new))
    return rows


_VERBATIM = frozenset(
    {"tool", "session", "agent", "name", "scope", "email", "query", "destination", "exception"}
)
"""Parts of audit entries that are names or text: their underscores stay."""
_ID = re.compile(r"[a-z]{3}_[a-z0-9]{12,}")


def _flat(document: dict[str, Any] | None) -> dict[str, Any]:
    """Return the values of an audit entry, with a tool rule's settings on the same level as its other fields."""
    document = dict(document or {})
    values = document.pop("values", None)
    return {**document, **values} if isinstance(values, dict) else document


def _value(name: str, value: Any) -> str:
    if isinstance(value, str) and name.endswith(("_at", "_until")):
        with suppress(ValueError):  # a time of day
            moment = datetime.fromisoformat(value)
            if moment.tzinfo is not None:
                return noted(moment)
    if isinstance(value, list) and value and name not in FIELDS:
        return ", ".join(str(part) for part in value)
    if isinstance(value, dict) and value and name not in FIELDS:
        return ", ".join(
            f"{formatting.label_of(key)} {_value(key, part)}" for key, part in _flat(value).items()
        )
    if name == "label":
        return dict(IncidentLabel.choices).get(value, value) if value else "–"
    if isinstance(value, str) and (name in _VERBATIM or _ID.fullmatch(value)):
        return value or "–"
    return formatting.setting_value(value, name)
