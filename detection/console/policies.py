"""The settings of every tier: what each sets itself, what it inherits and from where, its history, and putting it back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.http import Http404, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from detection.console import formatting
from detection.console.access import ProjectRequest, actor_of, in_project, missing_role
from detection.engine import policy
from detection.engine.fields import FIELDS
from detection.engine.policy import Policy
from detection.engine.tool_classes import TOOL_CLASSES
from detection.forms import SettingsForm, form_rows
from detection.models import PolicyTier, Role, TierScope, ToolRule
from detection.selectors import dashboard
from detection.selectors.policies import Tiers, tiers_of
from detection.services.errors import ServiceError
from detection.services.policies import overrides as service

CLASS_HELP = {
    "read": "looks at something",
    "change": "alters something",
    "poll": "asks for a state that others change",
    "wait": "only lets time pass",
    "message": "speaks to someone",
    "fallible": "fails in the course of honest work, like a shell",
    "exempt": "never judged",
    "other": "nothing special",
}


@dataclass(frozen=True, slots=True)
class Place:
    """A tier as the address names it."""

    scope: str
    backend: str = ""
    model: str = ""

    @property
    def title(self) -> str:
        """The tier for people."""
        words = {
            TierScope.SERVER: "Server",
            TierScope.PROJECT: "Project",
            TierScope.BACKEND: f"Backend {self.backend}",
            TierScope.MODEL: f"Model {self.backend} / {self.model}",
        }
        return words[TierScope(self.scope)]


@dataclass(frozen=True, slots=True)
class Node:
    """A line of the tree."""

    words: str
    url: str
    level: int
    own: int
    is_current: bool


def _place(request: ProjectRequest) -> Place:
    scope = request.GET.get("scope", TierScope.PROJECT)
    backend, model = request.GET.get("backend", "").strip(), request.GET.get("model", "").strip()
    if scope == "new":
        scope = TierScope.MODEL if model else TierScope.BACKEND
    fits = {
        TierScope.SERVER: not backend and not model,
        TierScope.PROJECT: not backend and not model,
        TierScope.BACKEND: bool(backend) and not model,
        TierScope.MODEL: bool(backend) and bool(model),
    }
    if scope not in fits or not fits[TierScope(scope)] or len(backend) > 128 or len(model) > 200:
        raise Http404
    if "\x00" in backend + model:
        raise Http404
    return Place(scope, backend, model)


def _url(slug: str, place: Place) -> str:
    given = {"scope": place.scope, "backend": place.backend, "model": place.model}
    return f"{reverse('console:policies', args=[slug])}?{urlencode({k: v for k, v in given.items() if v})}"


def _below(tiers: Tiers, place: Place) -> Policy:
    """Return what holds in a place without its own tier."""
    own = {
        TierScope.SERVER: ("server", "", ""),
        TierScope.PROJECT: ("project", "", ""),
        TierScope.BACKEND: ("backend", place.backend, ""),
        TierScope.MODEL: ("model", place.backend, place.model),
    }[TierScope(place.scope)]
    stack = tiers.stack(place.backend, place.model, {})[:-1]
    order = ["environment", "server", "project", f"backend:{place.backend}"]
    wanted = {"server": 1, "project": 2, "backend": 3, "model": 4}[own[0]]
    return policy.resolve([tier for tier in stack if tier[0] in order[:wanted]])


def _tree(request: ProjectRequest, tiers: Tiers, current: Place | None) -> list[Node]:
    slug = request.project.slug
    known = {(backend, model) for _, backend, model in tiers.by_place if backend}
    known |= set(dashboard.facets(request.project.pk).pairs)
    if current and current.backend:
        known.add((current.backend, current.model))
    known |= {(backend, "") for backend, _ in known}

    def node(words: str, place: Place, level: int) -> Node:
        stored = tiers.by_place.get((place.scope, place.backend, place.model))
        return Node(words, _url(slug, place), level, len(stored[1]) if stored else 0, place == current)

    nodes = [node("Server", Place("server"), 0), node("This project", Place("project"), 0)]
    for backend, model in sorted(known):
        if model:
            nodes.append(node(model, Place("model", backend, model), 2))
        else:
            nodes.append(node(backend, Place("backend", backend), 1))
    return nodes


def _rules(request: ProjectRequest) -> list[ToolRule]:
    return list(ToolRule.objects.filter(project=request.project).select_related("updated_by")[:200])


@in_project()
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: ProjectRequest) -> HttpResponse:
    """Show one tier, or save it."""
    project, place = request.project, _place(request)
    tiers = tiers_of(project.pk, project.policy_version)
    stored = PolicyTier.objects.select_related("updated_by").filter(
        project=None if place.scope == TierScope.SERVER else project, backend=place.backend, model=place.model
    ).first()  # fmt: skip
    may_change = request.membership.allows(Role.ADMIN) and (
        place.scope != TierScope.SERVER or request.user.is_superuser
    )
    below = _below(tiers, place)
    form = SettingsForm(request.POST or None, own=stored.values if stored else {}, inherited=below)
    status = 200
    if request.method == "POST":
        if not may_change:
            return missing_role(request, Role.ADMIN)
        answer = _save(request, place, form) if form.is_valid() else None
        if answer is not None:
            return answer
        status = 422
    context = {
        "place": place,
        "tree": _tree(request, tiers, place),
        "rules": _rules(request),
        "tier": stored,
        "form": form,
        "groups": form_rows(form),
        "may_change": may_change,
        "is_server": place.scope == TierScope.SERVER,
        "ladders": policy.LADDERS,
    }
    return render(request, "console/policies.html", context, status=status)


def _save(request: ProjectRequest, place: Place, form: SettingsForm) -> HttpResponse | None:
    project_id = None if place.scope == TierScope.SERVER else request.project.pk
    try:
        service.save_tier(
            project_id,
            place.scope,
            place.backend,
            place.model,
            form.values,
            actor_of(request),
            form.cleaned_data["note"],
        )
    except ServiceError as error:
        _blame(form, error)
        return None
    messages.success(request, f"{place.title}: saved. It holds from the next call on.")
    return redirect(_url(request.project.slug, place))


def _blame(form: SettingsForm, error: ServiceError) -> None:
    form.add_error(error.field if error.field in form.fields else None, error.detail)


class ToolRuleForm(SettingsForm):
    """What is special about some tools."""

    pattern = forms.CharField(max_length=128)
    tool_class = forms.ChoiceField(
        required=False,
        choices=[("", "as shipped"), *((name, f"{name}: {CLASS_HELP[name]}") for name in TOOL_CLASSES)],
    )
    ignore_arguments = forms.CharField(
        required=False, max_length=2000, widget=forms.Textarea(attrs={"rows": 3})
    )
    volatile_result_fields = forms.CharField(
        required=False, max_length=2000, widget=forms.Textarea(attrs={"rows": 3})
    )
    exempt = forms.BooleanField(required=False)


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.replace(",", "\n").splitlines() if line.strip()]


@in_project(write_role=Role.ADMIN)
@require_http_methods(["GET", "HEAD", "POST"])
def tool_rule(request: ProjectRequest) -> HttpResponse:
    """Show one tool rule or an empty one, save it, or remove it."""
    project, pattern = request.project, request.GET.get("pattern", "")[:128].replace("\x00", "")
    tiers = tiers_of(project.pk, project.policy_version)
    rule = ToolRule.objects.select_related("updated_by").filter(project=project, pattern=pattern).first()
    if pattern and rule is None and request.method == "GET" and "new" not in request.GET:
        raise Http404
    if request.method == "POST" and request.POST.get("action") == "remove":
        return _remove_rule(request, pattern)
    initial = {
        "pattern": rule.pattern if rule else pattern,
        "tool_class": rule.tool_class if rule else "",
        "ignore_arguments": "\n".join(rule.ignore_arguments) if rule else "",
        "volatile_result_fields": "\n".join(rule.volatile_result_fields) if rule else "",
        "exempt": rule.exempt if rule else False,
        "note": rule.note if rule else "",
    }
    form = ToolRuleForm(
        request.POST or None, own=rule.values if rule else {}, inherited=_below(tiers, Place("model"))
    )
    form.initial = {**form.initial, **initial}
    if request.method == "POST" and form.is_valid():
        answer = _save_rule(request, form)
        if answer is not None:
            return answer
    context = {
        "tree": _tree(request, tiers, None),
        "rules": _rules(request),
        "rule": rule,
        "form": form,
        "groups": form_rows(form),
        "may_change": request.membership.allows(Role.ADMIN),
        "ladders": policy.LADDERS,
    }
    return render(request, "console/tool_rule.html", context, status=422 if form.errors else 200)


def _remove_rule(request: ProjectRequest, pattern: str) -> HttpResponse:
    note = request.POST.get("note", "").replace("\x00", "")[: service.MAX_NOTE_CHARACTERS]
    try:
        service.delete_tool_rule(request.project.pk, pattern, actor_of(request), note)
    except ServiceError as error:
        messages.error(request, error.detail)
        if error.field == "note":
            return redirect(_rule_url(request, pattern))
    else:
        messages.success(request, "The rule is removed.")
    return redirect("console:policies", request.project.slug)


def _rule_url(request: ProjectRequest, pattern: str) -> str:
    url = reverse("console:tool_rule", args=[request.project.slug])
    return f"{url}?{urlencode({'pattern': pattern})}"


def _save_rule(request: ProjectRequest, form: ToolRuleForm) -> HttpResponse | None:
    given = form.cleaned_data
    try:
        service.save_tool_rule(
            request.project.pk,
            given["pattern"],
            tool_class=given["tool_class"],
            ignore_arguments=_lines(given["ignore_arguments"]),
            volatile_result_fields=_lines(given["volatile_result_fields"]),
            values=form.values,
            exempt=given["exempt"],
            note=given["note"],
            actor=actor_of(request),
        )
    except ServiceError as error:
        _blame(form, error)
        return None
    messages.success(request, f"Rule for {given['pattern']} saved. It holds from the next call on.")
    return redirect(_rule_url(request, given["pattern"]))


@in_project(write_role=Role.ADMIN)
@require_http_methods(["GET", "HEAD", "POST"])
def history(request: ProjectRequest) -> HttpResponse:
    """Show what was changed in settings, and put one change back."""
    project = request.project
    if request.method == "POST":
        entry = request.POST.get("entry", "")
        try:
            service.restore(
                project.pk, int(entry) if entry.isdigit() and len(entry) < 19 else 0, actor_of(request)
            )
            messages.success(request, "Put back. It holds from the next call on.")
        except ServiceError as error:
            messages.error(request, error.detail)
        return redirect("console:policy_history", project.slug)
    entries = service.history(project.pk)
    context = {
        "tree": _tree(request, tiers_of(project.pk, project.policy_version), None),
        "rules": _rules(request),
        "entries": [(entry, formatting.source_name(entry.subject), changes_of(entry)) for entry in entries],
    }
    return render(request, "console/policy_history.html", context)


def changes_of(entry: Any) -> list[tuple[str, str, str]]:
    """Return (label, before, after) of every value that an audit entry tells of."""
    before, after = entry.before or {}, entry.after or {}
    nested_before, nested_after = before.get("values"), after.get("values")
    if isinstance(nested_before, dict) or isinstance(nested_after, dict):
        before = {**{k: v for k, v in before.items() if k != "values"}, **(nested_before or {})}
        after = {**{k: v for k, v in after.items() if k != "values"}, **(nested_after or {})}
    rows = []
    for name in {**before, **after}:
        if name == "note" or before.get(name) == after.get(name):
            continue
        label = FIELDS[name].label if name in FIELDS else formatting.word(name).capitalize()
        old, new = formatting.setting_value(before.get(name)), formatting.setting_value(after.get(name))
        if old != new:
            rows.append((label, old, new))
    return rows
