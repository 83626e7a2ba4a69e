"""Pages of settings: those of each scope with inherited values, presets, tool rules, and the history with restore."""

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
from django.http import Http404, HttpResponse, HttpResponseRedirect, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from detection import strict_json
from detection.console import edits, formatting
from detection.console.access import ProjectRequest, actor_of, in_project, missing_role, next_page
from detection.console.policies import setting_changes
from detection.console.policies.setting_changes import REACTIONS
from detection.console.policies.what_if import lines_of
from detection.engine.fields import DEFAULTS, FIELDS, LADDERS
from detection.engine.policy import Policy, PolicyError
from detection.engine.presets import PRESETS
from detection.engine.scopes import PROJECT, SERVER, STORED_KINDS, Scope
from detection.engine.tool_classes import TOOL_CLASSES
from detection.engine.weakening import is_weaker
from detection.models import Project, Role, StoredSettings, ToolOverride
from detection.models.incidents import IncidentLabel
from detection.selectors import dashboard
from detection.selectors.audit import author_of
from detection.selectors.policies import ProjectOverrides, overrides_of, rows_at
from detection.services.audit import noted
from detection.services.errors import ServiceError
from detection.services.policies import overrides as service
from detection.services.policies import transfer
from detection.services.policies.documents import RULE_FACTS
from detection.services.versions import ChangedMeanwhile
from detection.strict_json import JsonProblem
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
MAX_RULES = 500
"""Tool rules of the list."""
MAX_IMPORT_CHARACTERS = 1_000_000
"""Of an imported document; `strict_json` also bounds its parts."""
SAVED = "Override saved. It takes effect on the next call."
DELETED_STALE = "This was changed in the meantime and was not deleted. Its current values are shown."


@dataclass(frozen=True, slots=True)
class PresetDifference:
    """A setting that a preset has another value of than applies at a scope."""

    label: str
    now: str
    in_preset: str
    is_weaker: bool


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
    return f"{reverse('console:policy_settings', args=[slug])}?{urlencode({'scope': str(scope)})}"


def _scopes(
    project: Project, stored: ProjectOverrides, current: Scope
) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return the scopes to choose from in groups: those that set something, and those of recent calls."""
    seen = dashboard.facets(project.pk)
    own = [scope for scope, values in stored.values.items() if values and scope.kind in STORED_KINDS]
    recent = [Scope.of(agent=agent) for agent in seen.agents]
    recent += [Scope.of(backend=backend, model=model) for backend, model in seen.pairs]
    recent += [Scope.of(backend=backend) for backend in seen.backends]
    set_here = sorted({PROJECT, SERVER, current, *own}, key=lambda scope: (scope.rank, str(scope)))
    others = sorted({*recent} - {*set_here}, key=lambda scope: (scope.rank, str(scope)))
    groups = (("Set", set_here), ("Recent calls", others))
    return [(title, [(str(scope), scope.label) for scope in scopes]) for title, scopes in groups if scopes]


@in_project()
@require_http_methods(["GET", "HEAD", "POST"])
def all_settings(request: ProjectRequest) -> HttpResponse:
    """Show all settings of a scope with their values and sources, or save its override."""
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
        "change_scope": str(scope),
        "scopes": _scopes(project, stored, scope),
        **_presets(request, form),
        "override": row,
        "stored": row,
        "form": form,
        "settings": form_settings(form),
        "may_change": may_change,
        "is_server": is_server,
        **reaction_values(form.inherited),
    }
    return render(request, "policies/settings.html", context, status=status)


def _presets(request: ProjectRequest, form: OverrideForm) -> dict[str, object]:
    """Return the presets, and what one of them would change of the values that apply at the scope."""
    chosen = request.GET.get("preset", "")
    context: dict[str, object] = {"presets": [*PRESETS]}
    if chosen not in PRESETS or form.inherited is None:
        return context
    now = {**form.inherited.values, **form.own}
    then = {**DEFAULTS, **PRESETS[chosen]}
    rows = [
        PresetDifference(
            field.label,
            formatting.setting_value(now[name], name),
            formatting.setting_value(then[name], name),
            is_weaker(field, field.effective(now), field.effective(then)),
        )
        for name, field in FIELDS.items()
        if name != "preset" and formatting.setting_value(now[name]) != formatting.setting_value(then[name])
    ]
    return context | {"compared": chosen, "differences": rows}


@in_project()
@require_safe
def export(request: ProjectRequest) -> HttpResponse:
    """Download the overrides and tool rules of the project as JSON."""
    response = JsonResponse(transfer.export_policies(request.project.pk), json_dumps_params={"indent": 2})
    response["Content-Disposition"] = f'attachment; filename="policies-{request.project.slug}.json"'
    return response


@in_project(Role.ADMIN)
@require_POST
def import_json(request: ProjectRequest) -> HttpResponse:
    """Save the scopes of a JSON document over those of the project."""
    note = request.POST.get("note", "")[: service.MAX_NOTE_CHARACTERS]
    try:
        document = strict_json.loads(request.POST.get("document", "")[:MAX_IMPORT_CHARACTERS])
        count = transfer.import_policies(request.project.pk, document, actor_of(request), note)
        messages.success(
            request, f"{count} scope{'' if count == 1 else 's'} imported. Takes effect on the next call."
        )
    except (JsonProblem, ServiceError) as error:
        messages.error(request, f"Nothing was imported: {error.detail}")
        context = {"document": request.POST.get("document", ""), "note": note, "problem": error.detail}
        return render(request, "policies/import.html", context, status=422)
    return redirect("console:policy_settings", request.project.slug)


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
def tool_rules(request: ProjectRequest) -> HttpResponse:
    """List the tool rules; or show one or an empty one, save it, or delete it."""
    project, pattern = request.project, request.GET.get("pattern", "")[:128]
    if request.method != "POST" and not {"pattern", "new"} & request.GET.keys():
        rules = ToolOverride.objects.filter(project=project).in_effect().select_related("updated_by")
        return render(request, "policies/tools.html", {"rules": rules[:MAX_RULES]})
    stored = overrides_of(project)
    scope = Scope("tool", pattern=pattern or "*")
    rule = cast("ToolOverride | None", _row(request, scope)) if pattern else None
    if pattern and rule is None and request.method == "GET" and "new" not in request.GET:
        raise Http404
    if pattern and request.POST.get("action") == "delete":
        if _delete(request, scope):
            return redirect(_rule_url(request, pattern))
        return redirect("console:tool_rules", project.slug)
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
        "rule": rule,
        "change_scope": str(rule.scope) if rule else "",
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
    url = reverse("console:tool_rules", args=[request.project.slug])
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
        return HttpResponseRedirect(
            next_page(request, reverse("console:policy_history", args=[project.slug]))
        )
    entries = service.history(project.pk)
    context = {
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
