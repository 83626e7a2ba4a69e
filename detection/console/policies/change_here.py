"""Change here: one setting at one scope, tried on history before it is saved, and seen in effect afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from django import forms
from django.contrib import messages
from django.http import Http404, HttpResponse, HttpResponseRedirect, QueryDict
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.http import url_has_allowed_host_and_scheme
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_safe

from detection.console import formatting, permalinks
from detection.console.access import ProjectRequest, actor_of, in_project, missing_role
from detection.console.policies.policy_pages import expiry_of
from detection.console.policies.replay_words import ReplayWords, words_of_quick
from detection.console.policies.setting_changes import REACTIONS
from detection.engine.fields import FIELDS, LADDERS, Field
from detection.engine.policy import (
    KeptSetting,
    Policy,
    PolicyError,
    layers,
    resolve,
    stored_values,
)
from detection.engine.scopes import PROJECT, SERVER, SESSION, STORED_KINDS, Scope
from detection.engine.weakening import weakened
from detection.models import Role, Session, StoredSettings
from detection.selectors import dashboard
from detection.selectors.ancestors import top_of
from detection.selectors.policies import overrides_of, stored_rows
from detection.selectors.sessions import first_call_since
from detection.services.errors import Invalid, ServiceError
from detection.services.policies import overrides
from detection.services.policies.documents import RULE_FACTS, document_of, settings_of
from detection.services.sessions import actions
from detection.services.sessions.session_names import find_session
from detection.services.versions import ChangedMeanwhile
from detection.services.what_if import changes, quick, what_ifs
from detection.services.what_if.changes import PolicyChange
from detection.web.forms import form_field, shown_value, typed_value

MAX_CHARACTERS: Final = 300
"""Of a name in an address; the longest that a session may have is 256."""
RAN: Final = {
    "allow": "ran",
    "warn": "ran with a warning",
    "block": "was blocked",
    "hold": "was held",
    "stop": "was stopped",
}
"""What became of a call, by its decision."""
MAX_SCOPES: Final = 100
"""Scopes that are offered; others have an address, and a row in All settings."""
ACTIONS: Final = ("try", "details", "save", "remove")


class CallNames(NamedTuple):
    """The names of the calls that a setting is explained for; empty ones stand for any."""

    agent: str = ""
    backend: str = ""
    model: str = ""
    tool: str = ""
    session: str = ""

    @property
    def words(self) -> str:
        """The names for people."""
        names = (self.session, self.agent, self.model and f"{self.backend} / {self.model}", self.tool)
        return ", ".join(formatting.visible(name) for name in names if name)


@dataclass(frozen=True, slots=True)
class ScopeOption:
    """A scope at which the setting can be set."""

    scope: Scope
    own: Any
    expires_at: datetime | None
    version: str

    @property
    def words(self) -> str:
        """The scope for people."""
        return "this session" if self.scope == SESSION else formatting.source_name(str(self.scope))


@dataclass(frozen=True, slots=True)
class Effect:
    """What saving a value would do.

    Attributes
    ----------
    value
        The value as people read it.
    beaten_by
        The scope whose value still applies to these calls; empty where the new one does.
    weaker
        Labels of what it weakens.
    replay_problem
        Why nothing was replayed.
    """

    value: str
    beaten_by: str = ""
    weaker: tuple[str, ...] = ()
    is_changed: bool = True
    replay: ReplayWords | None = None
    replay_problem: str = ""


def _value_form(field: Field, text: str) -> forms.Form:
    """Return the form of a value of a setting."""
    form = forms.Form(initial={"value": text})
    made = form_field(field)
    if isinstance(made, forms.ChoiceField):
        made.choices = [*made.choices][1:]  # type: ignore[misc]
    made.required = True
    made.widget.attrs["id"] = "change-value"
    form.fields["value"] = made
    return form


class _Subject:
    """The setting, the calls and the scope that a request names."""

    def __init__(self, request: ProjectRequest, given: QueryDict) -> None:
        self._request, self._given = request, given
        name = given.get("setting", "")
        if name not in FIELDS:
            raise Http404
        self.field = FIELDS[name]
        names = {part: given.get(part, "")[:MAX_CHARACTERS] for part in CallNames._fields}
        self.source = given.get("scope", "")[:MAX_CHARACTERS]
        stored = _stored_scope(self.source, names["session"])
        for part in ("agent", "backend", "model"):
            names[part] = names[part] or getattr(stored, part, "")
        names["agent"] = names["agent"] if not names["agent"].startswith("tag:") else ""
        if stored and stored.kind == "tool" and not names["tool"] and _is_name(stored.pattern):
            names["tool"] = stored.pattern
        self.session: Session | None = None
        if names["session"]:
            self.session = find_session(request.project, names["session"])
            if self.session is None:
                raise Http404
            for part in ("agent", "backend", "model"):
                names[part] = names[part] or getattr(self.session, part)
        self.call = CallNames(**names)
        self.scope: Scope = stored or self._narrowest()

    def _narrowest(self) -> Scope:
        """Return the narrowest scope of these calls that outlives their session."""
        found = [one for one in self._scopes_of_call() if one.kind in self.field.scopes and one != SESSION]
        return found[0] if found else PROJECT

    @property
    def only_tries(self) -> bool:
        """Whether the person came to see what a value would have done, not to save one."""
        return bool(self._given.get("tries"))

    @property
    def came_from(self) -> str:
        """The address to return to, if it is one of this site."""
        wanted = self._given.get("from", "")
        return wanted if url_has_allowed_host_and_scheme(wanted, {self._request.get_host()}) else ""

    def layers(self, change: PolicyChange | None = None) -> tuple[KeptSetting, ...]:
        """Return the values of the setting for these calls, weakest first."""
        stored = overrides_of(self._request.project)
        values: Mapping[str, Any] = self.session.policy_values if self.session else {}
        top = top_of(self.session) if self.session else None
        if change is not None:
            stored = change.applied(stored)
            own = change.settings_of(self.call.session)
            values = values if own is None else own
        policy = stored.policy_for(self.call.agent, self.call.backend, self.call.model, values, top)
        found = layers(policy, self.field.name, self.call.tool)
        # Without the name of a tool, a rule is explained for the tools that it names.
        if self.scope.kind == "tool" and not self.call.tool:
            rules = [rule for rule in stored.tool_rules if rule.scope == self.scope]
            own_of_rule = [rule.values[self.field.name] for rule in rules if self.field.name in rule.values]
            found = (*found, *(KeptSetting(self.field.name, own, str(self.scope)) for own in own_of_rule))
        return found

    def options(self) -> list[ScopeOption]:
        """Return the scopes at which a person may set it, the present one first."""
        scopes = dict.fromkeys(scope for scope in self._scopes() if scope.kind in self.field.scopes)
        return [self._option(scope) for scope in scopes if self._may_set(scope)][:MAX_SCOPES]

    def _scopes(self) -> Iterator[Scope]:
        yield self.scope
        yield from self._scopes_of_call()
        yield PROJECT
        if not any(self.call):
            yield from sorted(self._rows, key=lambda scope: (scope.rank, str(scope)))
            seen = dashboard.facets(self._request.project.pk)
            yield from (Scope.of(agent=agent) for agent in seen.agents)
            yield from (Scope.of(backend=backend, model=model) for backend, model in seen.pairs)
        yield SERVER

    def _scopes_of_call(self) -> Iterator[Scope]:
        """Yield the scopes that apply to these calls alone, the narrowest first."""
        if self.call.session:
            yield SESSION
        if self.call.tool and _is_name(self.call.tool):
            yield Scope("tool", pattern=self.call.tool)
        if self.call.backend and self.call.model:
            yield Scope.of(backend=self.call.backend, model=self.call.model)
        if self.call.backend:
            yield Scope.of(backend=self.call.backend)
        if self.call.agent:
            yield Scope.of(agent=self.call.agent)

    @cached_property
    def _rows(self) -> dict[Scope, StoredSettings]:
        return stored_rows(self._request.project.pk)

    def _option(self, scope: Scope) -> ScopeOption:
        if scope == SESSION:
            values = self.session.policy_values if self.session else {}
            return ScopeOption(scope, values.get(self.field.name), None, actions.policy_version(self.session))
        row = self.row(scope)
        own = row.values.get(self.field.name) if row else None
        return ScopeOption(scope, own, row.expires_at if row else None, overrides.override_version(row))

    def row(self, scope: Scope) -> StoredSettings | None:
        """Return what is stored at a scope and applies now."""
        return self._rows.get(scope)

    def _may_set(self, scope: Scope) -> bool:
        return scope != SERVER or bool(self._request.user.is_superuser)

    def change(self, scope: Scope, value: Any) -> PolicyChange:
        """Return the whole override or tool rule of a scope with a value of this setting; None inherits it."""
        pk = self._request.project.pk
        if scope == SESSION:
            values = dict(self.session.policy_values if self.session else {})
            return changes.check(pk, "session", {**values, self.field.name: value}, session=self.call.session)
        settings = settings_of(document_of(self.row(scope)))
        own = {name: settings[name] for name in FIELDS if name in settings}
        facts = {name: settings[name] for name in RULE_FACTS if name in settings}
        return changes.check(pk, str(scope), {**own, self.field.name: value}, **facts)

    def effect(self, scope: Scope, value: Any, *, with_replay: bool) -> Effect:
        """Return what saving a value would do; with the replay it takes about a second."""
        change = self.change(scope, value)
        new = change.values.get(self.field.name)
        before, after = self._policies(scope, change)
        applied = self.layers(change)[-1]
        effect = Effect(
            formatting.setting_value(after.values[self.field.name], self.field.name),
            "" if applied.source in (str(scope), "session") or new is None else applied.source,
            tuple(
                FIELDS[name].label if name in FIELDS else "Preset" for name in self._weakened(before, after)
            ),
            is_changed=before.values != after.values,
        )
        if not (with_replay and effect.is_changed):
            return effect
        try:
            words = words_of_quick(quick.replay(self._request.project, change))
            return Effect(effect.value, effect.beaten_by, effect.weaker, replay=words)
        except ServiceError as error:
            return Effect(effect.value, effect.beaten_by, effect.weaker, replay_problem=error.detail)

    def _weakened(self, before: Policy, after: Policy) -> list[str]:
        return weakened(before, after, frozenset({self.field.name}))

    def _policies(self, scope: Scope, change: PolicyChange) -> tuple[Policy, Policy]:
        """Return the policy of a scope as it is and as it would be."""
        stored = overrides_of(self._request.project)
        where = (
            Scope("session", self.call.agent, self.call.backend, self.call.model)
            if scope == SESSION
            else scope
        )
        below = stored.below(where)
        own = self.session.policy_values if scope == SESSION and self.session else {}
        if scope != SESSION:
            row = self.row(scope)
            own = row.values if row else {}
        return tuple(  # type: ignore[return-value]
            resolve([*below, (scope, stored_values(values))]) for values in (own, change.values)
        )

    @property
    def hidden(self) -> list[tuple[str, str]]:
        """What the form repeats."""
        found = [("setting", self.field.name), ("from", self.came_from), *self.call._asdict().items()]
        return [*found, ("tries", "1")] if self.only_tries else found

    @property
    def tester_url(self) -> str:
        """Return the page that says which value applies to these calls."""
        call, query = self.call, {"setting": self.field.name}
        query |= {
            "agent": call.agent,
            "model": f"{call.backend}/{call.model}" if call.model else "",
            "tool": call.tool,
        }
        return f"{reverse('console:policies', args=[self._request.project.slug])}?{urlencode(query)}"

    def verify_url(self, since: datetime | None = None) -> str:
        """Return the page that waits for the next of these calls."""
        return verify_url(self._request.project.slug, self.field.name, self.call, since)


def _is_name(pattern: str) -> bool:
    """Return whether a pattern of tools matches one name only."""
    return not any(mark in pattern for mark in "*?[")


def _stored_scope(source: str, session: str) -> Scope | None:
    """Return the scope at which a value from this source is changed; None for a preset and the environment."""
    try:
        scope = Scope.parse(source)
        scope.check_names()
    except PolicyError:
        return None
    if scope == SESSION and session:
        return scope
    return scope if scope.kind in (*STORED_KINDS, "tool") else None


def change_url(
    slug: str, setting: str, source: str, came_from: str = "", call: CallNames | None = None
) -> str:
    """Return the address at which a setting is changed at the scope that it came from."""
    names = {name: value for name, value in (call or CallNames())._asdict().items() if value}
    query = {"setting": setting, "scope": source, **names, **({"from": came_from} if came_from else {})}
    return f"{reverse('console:change_setting', args=[slug])}?{urlencode(query)}"


def verify_url(slug: str, setting: str, call: CallNames, since: datetime | None = None) -> str:
    """Return the address that waits for the next call of these names."""
    names = {name: value for name, value in call._asdict().items() if value}
    query = {"setting": setting, **names, **({"since": since.isoformat()} if since else {})}
    return f"{reverse('console:verify_setting', args=[slug])}?{urlencode(query)}"


@never_cache
@in_project(write_role=Role.OPERATOR)
@require_http_methods(["GET", "HEAD", "POST"])
def page(request: ProjectRequest) -> HttpResponse:
    """Show a setting at a scope, try a value on history, save it, or inherit it again."""
    is_post = request.method == "POST"
    given = request.POST if is_post else request.GET
    if not given.get("setting"):
        return redirect("console:policies", request.project.slug)
    subject = _Subject(request, given)
    if not is_post:
        return _show(request, subject, value=request.GET.get("value"))
    action = request.POST.get("action", "try")
    if action not in ACTIONS:
        raise Http404
    typed = request.POST.get("value", "")[:MAX_CHARACTERS]
    value = typed_value(subject.field, typed) if action != "remove" else None
    if action in ("save", "remove") and (denied := _denied(request, subject.scope)):
        return denied
    try:
        if action == "details":
            row = what_ifs.create_what_if(
                request.project.pk, subject.change(subject.scope, value), actor_of(request), days=quick.DAYS
            )
            return redirect("console:what_if", request.project.slug, row.public_id)
        if action == "try":
            return _show(
                request, subject, value=typed, effect=subject.effect(subject.scope, value, with_replay=True)
            )
        return _save(request, subject, value)
    except ChangedMeanwhile as error:
        theirs = settings_of(error.current).get(subject.field.name)
        return _show(request, subject, value=typed, theirs=theirs, has_conflict=True, status=409)
    except ServiceError as error:
        return _show(request, subject, value=typed, error=error, status=422)


def _denied(request: ProjectRequest, scope: Scope) -> HttpResponse | None:
    if scope == SESSION:
        return None
    is_allowed = request.membership.allows(Role.ADMIN) and (scope != SERVER or request.user.is_superuser)
    return None if is_allowed else missing_role(request, Role.ADMIN)


def _save(request: ProjectRequest, subject: _Subject, value: Any) -> HttpResponse:
    """Save a value, or inherit it again with None, and return to where the person came from."""
    scope, project, name = subject.scope, request.project, subject.field.name
    if scope.kind not in subject.field.scopes:
        raise Http404
    effect = subject.effect(scope, value, with_replay=False)
    version = request.POST.get(f"version {scope}")
    if scope == SESSION:
        actions.set_policy(
            project.pk, subject.call.session, {name: value}, actor_of(request), version=version
        )
    else:
        row = subject.row(scope)
        overrides.set_value(
            None if scope == SERVER else project.pk,
            scope,
            name,
            value,
            actor_of(request),
            request.POST.get("note", "")[: overrides.MAX_NOTE_CHARACTERS],
            expiry_of(request, row.expires_at if row else None),
            version=version,
        )
    where = "this session" if scope == SESSION else formatting.source_name(str(scope))
    messages.success(
        request, f"{subject.field.label} is now {effect.value} for {where}. It takes effect on the next call."
    )
    return HttpResponseRedirect(subject.came_from or subject.tester_url)


def _show(
    request: ProjectRequest,
    subject: _Subject,
    *,
    value: str | None,
    effect: Effect | None = None,
    theirs: Any = None,
    has_conflict: bool = False,
    error: ServiceError | None = None,
    status: int = 200,
) -> HttpResponse:
    field, found = subject.field, subject.layers()
    applied = found[-1]
    options = subject.options()
    chosen = next((one for one in options if one.scope == subject.scope), options[0] if options else None)
    current = chosen.own if chosen is not None and chosen.own is not None else applied.value
    form = _value_form(field, shown_value(field, current) if value is None else value)
    if error is not None:
        detail = error.errors.get(field.name, error.detail) if isinstance(error, Invalid) else error.detail
        context_error = {"field": error.field, "detail": detail}
    else:
        context_error = {}
    may_change = subject.scope == SESSION and request.membership.allows(Role.OPERATOR)
    context = {
        "subject": subject,
        "field": field,
        "applied": applied,
        "applied_value": formatting.setting_value(applied.value, field.name),
        "beaten": _words_of_layers(reversed(found[:-1])),
        "options": options,
        "chosen": chosen,
        "form": form,
        "effect": effect,
        "error": context_error,
        "has_conflict": has_conflict,
        "theirs": formatting.setting_value(theirs, field.name) if theirs is not None else "inherited",
        "note": request.POST.get("note", ""),
        "expires": request.POST.get("expires", ""),
        "may_change": may_change or request.membership.allows(Role.ADMIN),
        "tries_on": "load, " if request.method == "GET" and value is not None else "",
        "save_value": effect.value if effect else "",
        "policies_url": reverse("console:policies", args=[request.project.slug]),
        "days": quick.DAYS,
        "ladders": [*REACTIONS, *LADDERS],
    }
    is_part = (
        request.headers.get("HX-Request") == "true" and request.headers.get("HX-Target") == "change-effect"
    )
    if is_part:
        return render(request, "policies/_change_effect.html", {**context, "is_part": True})
    return render(request, "policies/change.html", context, status=status)


def _words_of_layers(found: Iterable[KeptSetting]) -> list[tuple[str, str]]:
    """Return (value, source) of each."""
    return [(formatting.setting_value(one.value, one.setting), one.source) for one in found]


@never_cache
@in_project()
@require_safe
def verify(request: ProjectRequest) -> HttpResponse:
    """Show what applies to calls now, and the next of them as soon as it arrives."""
    if not request.GET.get("setting"):
        return redirect("console:policies", request.project.slug)
    subject = _Subject(request, request.GET)
    applied = subject.layers()[-1]
    since = _since(request.GET.get("since", "")) or _changed_at(subject, applied.source)
    call = first_call_since(request.project.pk, since, **subject.call._asdict())
    then = (
        call.verdict.policy.get(subject.field.name) if call is not None and call.verdict is not None else None
    )
    context = {
        "subject": subject,
        "field": subject.field,
        "applied": applied,
        "applied_value": formatting.setting_value(applied.value, subject.field.name),
        "since": since,
        "call": call,
        "call_url": permalinks.call_page_url(request.project.slug, call.session.external_id, call.seq)
        if call
        else "",
        "ran": RAN[call.decision] if call is not None else "",
        "call_value": formatting.setting_value(then.get("value"), subject.field.name) if then else "",
        "policies_url": reverse("console:policies", args=[request.project.slug]),
        "again_url": subject.verify_url(since),
    }
    is_part = request.headers.get("HX-Request") == "true" and request.headers.get("HX-Target") == "next-call"
    return render(request, "policies/_next_call.html" if is_part else "policies/verify.html", context)


def _since(text: str) -> datetime | None:
    try:
        found = parse_datetime(text)
    except ValueError:
        return None
    return found if found is not None and found.tzinfo is not None else None


def _changed_at(subject: _Subject, source: str) -> datetime:
    """Return when the value that applies was saved; now where it comes from a preset or the session."""
    scope = _stored_scope(source, "")
    row = subject.row(scope) if scope is not None and str(scope) == source else None
    return row.updated_at if row is not None else timezone.now()
