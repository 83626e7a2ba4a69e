"""Policies at a glance: how strict, what differs where, which value applies, suggestions, and what is fine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlencode

from django.http import HttpResponse, HttpResponsePermanentRedirect
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_safe

from detection.console import formatting
from detection.console.access import ProjectRequest, in_project
from detection.console.formatting import ordinal
from detection.console.policies import exceptions, suggestions
from detection.console.policies.change_here import CallNames, change_url, verify_url
from detection.console.policies.replay_words import ReplayWords, words_of
from detection.engine.fields import DEFAULTS, FIELDS, LADDERS, Field
from detection.engine.policy import KeptSetting, layers
from detection.engine.presets import PRESETS
from detection.engine.scopes import ENVIRONMENT, PROJECT, Scope
from detection.engine.weakening import is_weaker
from detection.models import JobState, Project, WhatIf
from detection.selectors import dashboard
from detection.selectors.policies import ProjectOverrides, overrides_of
from detection.services.policies.documents import RULE_FACTS
from detection.web.forms import grouped_fields

MAIN_PRESETS: Final = ("strict", "standard", "lenient")
"""Those measured on recorded runs; others repeat what other systems do."""
MAX_COLUMNS: Final = 24
"""Scopes of the matrix; more are not legible side by side. All settings has every scope."""
MAX_WHAT_IFS: Final = 100


@dataclass(frozen=True, slots=True)
class PresetChoice:
    """A preset, what it does at identical calls, and what a replay of it found, if there was one."""

    name: str
    words: str
    is_current: bool
    url: str
    replay: ReplayWords | None


@dataclass(frozen=True, slots=True)
class MatrixCell:
    """A value in the matrix; empty where the scope does not set it."""

    value: str = ""
    url: str = ""
    is_weak: bool = False
    applies: bool = False
    is_beaten: bool = False

    @property
    def classes(self) -> str:
        """The classes of the cell."""
        marks = (("weak", self.is_weak), ("wins", self.applies), ("beaten", self.is_beaten))
        return " ".join(name for name, is_set in marks if is_set)


@dataclass(frozen=True, slots=True)
class MatrixRow:
    """A setting with its values by scope."""

    label: str
    preset: MatrixCell
    cells: tuple[MatrixCell, ...]


@dataclass(frozen=True, slots=True)
class AppliedValue:
    """The value that applies to a call, where it comes from, and what it beats."""

    field: Field
    value: str
    source: str
    beaten: tuple[tuple[str, str], ...]
    url: str
    verify_url: str
    layers: tuple[KeptSetting, ...]


@never_cache
@in_project()
@require_safe
def page(request: ProjectRequest) -> HttpResponse:
    """Show the overview; the query of the tester names a call and a setting."""
    project = request.project
    if {"scope", "agent", "backend"} & request.GET.keys() and "setting" not in request.GET:
        where = reverse("console:policy_settings", args=[project.slug])
        return HttpResponsePermanentRedirect(f"{where}?{request.META['QUERY_STRING']}")
    stored = overrides_of(project)
    names = _names(request.GET)
    field = FIELDS.get(request.GET.get("setting", ""))
    answer = _answer(request, stored, names, field) if field else None
    seen = dashboard.facets(project.pk)
    scopes = _columns(stored)
    exceptional = exceptions.saved(project)
    context = {
        **suggestions.open_context(request),
        "presets": _presets(project, stored),
        "columns": [formatting.source_name(str(scope)) for scope in scopes[:MAX_COLUMNS]],
        "more_columns": max(0, len(scopes) - MAX_COLUMNS),
        "rows": _matrix(project, stored, scopes[:MAX_COLUMNS], answer, request.path),
        "preset": _preset(stored),
        "names": names,
        "answer": answer,
        "setting_groups": grouped_fields(),
        "agents": _with(seen.agents, names.agent),
        "models": _with([f"{backend}/{model}" for backend, model in seen.pairs], _model(names)),
        "model": _model(names),
        "tools": _with(seen.tools, names.tool),
        "exceptional": exceptional,
    }
    return render(request, "policies/overview.html", context)


def _names(given: Mapping[str, str]) -> CallNames:
    """Return the names in the query of the tester; a model is written with its backend: `openai/gpt-5`."""
    backend, _, model = given.get("model", "")[:330].partition("/")
    return CallNames(given.get("agent", "")[:128], backend, model, given.get("tool", "")[:128])


def _model(names: CallNames) -> str:
    return f"{names.backend}/{names.model}" if names.model else ""


def _with(names: Iterable[str], chosen: str) -> list[str]:
    return list(dict.fromkeys((*names, *filter(None, [chosen]))))


def _answer(
    request: ProjectRequest, stored: ProjectOverrides, names: CallNames, field: Field
) -> AppliedValue:
    policy = stored.policy_for(names.agent, names.backend, names.model, {})
    found = layers(policy, field.name, names.tool)
    applied = found[-1]
    return AppliedValue(
        field,
        formatting.setting_value(applied.value, field.name),
        applied.source,
        tuple((formatting.setting_value(one.value, field.name), one.source) for one in reversed(found[:-1])),
        change_url(request.project.slug, field.name, applied.source, request.get_full_path(), names),
        verify_url(request.project.slug, field.name, names),
        found,
    )


def _preset(stored: ProjectOverrides) -> str:
    return str(stored.policy_for("", "", "", {}).values["preset"])


def _presets(project: Project, stored: ProjectOverrides) -> list[PresetChoice]:
    current = _preset(stored)
    replays = _replays_of_presets(project, stored)
    page = reverse("console:policies", args=[project.slug])
    return [
        PresetChoice(
            name,
            _preset_words(PRESETS[name]),
            name == current,
            f"{change_url(project.slug, 'preset', str(PROJECT), page)}&value={name}",
            replays.get(name),
        )
        for name in sorted(PRESETS, key=lambda one: (one not in MAIN_PRESETS, _place(one)))
    ]


def _place(name: str) -> int:
    return MAIN_PRESETS.index(name) if name in MAIN_PRESETS else len(MAIN_PRESETS)


def _preset_words(preset: Mapping[str, Any]) -> str:
    """Return what a preset does at identical calls."""
    values = {**DEFAULTS, **preset}
    limit, warn_at = values["max_repeats"], FIELDS["repeat_warn_at"].effective(values)
    reaction = values["mode"]
    rungs = values["graduated_rungs"] if reaction == "graduated" else LADDERS.get(reaction, (reaction,))
    words = ", ".join(
        "a second chance" if rung == "chance" else formatting.word(rung) for rung in dict.fromkeys(rungs)
    )
    if 0 < warn_at < limit:
        return f"Warns at the {ordinal(warn_at)} identical call; from the {ordinal(limit)}: {words}"
    return f"From the {ordinal(limit)} identical call: {words}"


def _replays_of_presets(project: Project, stored: ProjectOverrides) -> dict[str, ReplayWords]:
    """Return what the newest replays of a change of the preset alone found under the present policy."""
    own = {name: value for name, value in stored.values.get(PROJECT, {}).items() if name != "preset"}
    rows = WhatIf.objects.filter(
        project_id=project.pk,
        policy_version=project.policy_version,
        state=JobState.FINISHED,
        change__scope=str(PROJECT),
    ).order_by("pk")
    as_stored = {name: list(value) if isinstance(value, tuple) else value for name, value in own.items()}
    found = {}
    for row in rows[:MAX_WHAT_IFS]:
        values = dict(row.change["values"])
        preset = values.pop("preset", "")
        if preset and values == as_stored:
            found[preset] = words_of(row.result)
    return found


def _columns(stored: ProjectOverrides) -> list[Scope]:
    """Return the scopes that set something, widest first."""
    scopes = [scope for scope, own in stored.values.items() if own]
    rules = [rule.scope for rule in stored.tool_rules]
    return sorted([*scopes, *rules], key=lambda scope: (scope.rank, str(scope)))


def _matrix(
    project: Project,
    stored: ProjectOverrides,
    scopes: Sequence[Scope],
    answer: AppliedValue | None,
    came_from: str,
) -> list[MatrixRow]:
    """Return a row for each setting that a scope sets, and for each fact of a tool rule."""
    preset = {**DEFAULTS, **PRESETS[_preset(stored)]}
    own = {**stored.values, **{rule.scope: rule.values for rule in stored.tool_rules}}
    rows = []
    for name, field in FIELDS.items():
        if not any(name in own.get(scope, ()) for scope in scopes):
            continue
        at = answer if answer is not None and answer.field is field else None
        rows.append(
            MatrixRow(
                field.label,
                _cell(field, preset, preset[name], f"preset:{preset['preset']}", "", at),
                tuple(
                    _cell(
                        field, preset, own[scope][name], str(scope),
                        "" if scope == ENVIRONMENT else change_url(project.slug, name, str(scope), came_from), at,
                    )
                    if name in own.get(scope, ())
                    else MatrixCell()
                    for scope in scopes
                ),
            )
        )  # fmt: skip
    return [*rows, *_fact_rows(project, stored, scopes)]


def _cell(
    field: Field, preset: Mapping[str, Any], value: Any, source: str, url: str, answer: AppliedValue | None
) -> MatrixCell:
    weaker = is_weaker(field, field.effective(preset), field.effective({**preset, field.name: value}))
    sources = [one.source for one in answer.layers] if answer else []
    return MatrixCell(
        formatting.setting_value(value, field.name),
        url,
        is_weak=weaker,
        applies=bool(sources) and sources[-1] == source,
        is_beaten=source in sources[:-1],
    )


def _fact_rows(project: Project, stored: ProjectOverrides, scopes: Sequence[Scope]) -> list[MatrixRow]:
    """Return the facts of tool rules, each of which leads to its rule."""
    rules = {rule.scope: rule for rule in stored.tool_rules}
    rows = []
    for name in RULE_FACTS:
        cells = []
        for scope in scopes:
            value = getattr(rules[scope], name) if scope in rules else None
            url = f"{reverse('console:tool_rules', args=[project.slug])}?{_pattern(scope)}"
            is_weak = name == "exempt" or value in ("poll", "wait", "exempt")
            cells.append(MatrixCell(_fact(value), url, is_weak=is_weak) if value else MatrixCell())
        if any(cell.value for cell in cells):
            rows.append(MatrixRow(formatting.label_of(name), MatrixCell("–"), tuple(cells)))
    return rows


def _pattern(scope: Scope) -> str:
    return urlencode({"pattern": scope.pattern})


def _fact(value: Any) -> str:
    return ", ".join(value) if isinstance(value, tuple) else formatting.setting_value(value)
