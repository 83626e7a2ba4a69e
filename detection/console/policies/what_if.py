"""What-ifs: try the form of a policy on the history, watch the replay, read what it found, and save the change."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.contrib import messages
from django.http import Http404, HttpResponse, HttpResponseRedirect
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST, require_safe

from detection.console import edits, formatting, permalinks
from detection.console.access import ProjectRequest, actor_of, in_project, missing_role, next_page
from detection.console.loops import incident_text
from detection.console.policies.replay_words import words_of
from detection.engine.calls import DECISIONS
from detection.engine.detectors import detector_for
from detection.engine.fields import FIELDS
from detection.engine.memory import BLOCKING
from detection.engine.reactions import ENDINGS
from detection.models import Role, WhatIf
from detection.models.incidents import IncidentLabel
from detection.selectors import policies, sessions
from detection.selectors import what_ifs as selector
from detection.selectors.incidents import get_incident
from detection.selectors.pages import BadCursor
from detection.services.errors import Invalid, NotFound, ServiceError
from detection.services.exceptions import exceptions
from detection.services.policies import overrides
from detection.services.policies.documents import RULE_FACTS
from detection.services.versions import ChangedMeanwhile, version_of
from detection.services.what_if import changes, what_ifs
from detection.services.what_if.changes import ChangeDocument, PolicyChange
from detection.web.forms import PREFIX, grouped_fields, typed_value

CAUSES = {
    "settings": "the settings were different then",
    "people": "people decided about calls",
    "other": "for another reason",
}
MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class ReplayedIncident:
    """An incident of a list, with its texts and its address."""

    item: dict[str, Any]
    title: str
    url: str
    chip: str
    chip_after: str

    @property
    def word(self) -> str:
        """The strictest reaction, in words."""
        return _reaction(self.item["decision"])

    @property
    def word_after(self) -> str:
        """The same under the changed policy."""
        return _reaction(self.item.get("decision_after", ""))

    @property
    def title_after(self) -> str:
        """Its title under the changed policy, where another detector may act."""
        return _title(self.item.get("kind_after", self.item["kind"]), self.item["tool"])

    @property
    def is_moved(self) -> bool:
        """Whether the changed policy finds it at another call."""
        return bool(
            self.item["found_at_call"] != self.item.get("found_at_call_after", self.item["found_at_call"])
        )

    @property
    def is_other_limit(self) -> bool:
        """Whether its limit is another one under the changed policy, which is why it may find it at another call."""
        return bool(self.item["limit"] != self.item.get("limit_after", self.item["limit"]))

    @property
    def is_other_cost(self) -> bool:
        """Whether it counts calls of another cost under the changed policy."""
        return bool(self.item["cost_usd"] != self.item.get("cost_usd_after", self.item["cost_usd"]))


class DayBars(NamedTuple):
    """The loops of a day that each policy blocks or stops, and the place of their bars in percent."""

    day: datetime
    before: int
    after: int
    x: str
    x_after: str
    width: str
    y_before: str
    y_after: str
    height_before: str
    height_after: str


def _reaction(decision: str) -> str:
    return "recorded only" if decision == "allow" else decision


def lines_of(text: str) -> list[str]:
    """Return the names in a text field, separated by lines or commas."""
    return [line.strip() for line in text.replace(",", "\n").splitlines() if line.strip()]


def change_of(request: ProjectRequest) -> PolicyChange:
    """Read the form of a policy, or of an exception, as the change that it would save."""
    given = request.POST
    if "exception_of" in given:
        incident = get_incident(request.project.pk, given["exception_of"][:64])
        if incident is None:
            raise Http404
        where = given.get("where", "")
        option = (
            exceptions.where(incident, where, given.get("reason", "")) if where in exceptions.PLACES else None
        )
        if option is None:
            raise Invalid("Nothing is saved for this choice, so there is nothing to try.", field="where")
        return option.change
    values = {
        (setting := name.removeprefix(PREFIX)): typed_value(FIELDS.get(setting), text)
        for name, text in ((name, str(text)) for name, text in given.items())
        if name.startswith(PREFIX) and text
    }
    scope, session = given.get("scope", ""), given.get("session", "")
    facts: dict[str, Any] = {}
    if scope == "tool":
        scope = f"tool:{given.get('pattern', '').strip()}"
        facts = {
            "tool_class": given.get("tool_class", ""),
            "ignore_arguments": lines_of(given.get("ignore_arguments", "")),
            "volatile_result_fields": lines_of(given.get("volatile_result_fields", "")),
            "exempt": bool(given.get("exempt")),
        }
    return changes.check(request.project.pk, scope, values, session=session, **facts)


@in_project(Role.OPERATOR)
@require_POST
def create(request: ProjectRequest) -> HttpResponse:
    """Try the form of a policy; scripts get only the fragment with the progress."""
    is_part = request.headers.get("HX-Request") == "true"
    try:
        days = request.POST.get("days", "")
        row = what_ifs.create_what_if(
            request.project.pk,
            change_of(request),
            actor_of(request),
            days=int(days) if days.isdecimal() and len(days) < 4 else 0,
        )
    except ServiceError as error:
        if is_part:
            return render(request, "policies/_what_if_error.html", {"error": error.detail})
        messages.error(request, error.detail)
        policies = reverse("console:policies", args=[request.project.slug])
        # `redirect` would take a word for the name of a page.
        return HttpResponseRedirect(next_page(request, policies))
    if is_part:
        return render(request, "policies/_what_if.html", _context(request, row, is_beside_form=True))
    return redirect("console:what_if", request.project.slug, row.public_id)


@in_project()
@require_safe
def page(request: ProjectRequest) -> HttpResponse:
    """List the what-ifs."""
    try:
        rows = selector.list_what_ifs(request.project.pk, cursor=request.GET.get("cursor", ""))
    except BadCursor as bad:
        raise Http404 from bad
    context = {
        "rows": [
            (
                row,
                formatting.source_name(_scope_name(row)),
                _settings(row.change),
                *formatting.job_state(row.state),
            )
            for row in rows.items
        ],
        "next_cursor": rows.next_cursor,
        "is_unavailable": not request.project.stores_payloads,
        "setting_groups": grouped_fields(),
    }
    return render(request, "policies/what_ifs.html", context)


@never_cache
@in_project()
@require_safe
def one(request: ProjectRequest, public_id: str) -> HttpResponse:
    """Show a what-if: its progress and its results. Scripts get only that part, to refresh it."""
    row = _existing(request, public_id)
    is_part = request.headers.get("HX-Request") == "true"
    context = _context(request, row, is_beside_form="beside" in request.GET)
    return render(request, "policies/_what_if.html" if is_part else "policies/what_if.html", context)


@in_project(Role.OPERATOR)
@require_POST
def cancel(request: ProjectRequest, public_id: str) -> HttpResponse:
    """Cancel a what-if."""
    try:
        what_ifs.cancel_what_if(request.project.pk, public_id, actor_of(request))
    except NotFound:
        raise Http404 from None
    except ServiceError as error:
        messages.error(request, error.detail)
    url = reverse("console:what_if", args=[request.project.slug, public_id])
    return HttpResponseRedirect(f"{url}?beside" if "beside" in request.GET else url)


@in_project(Role.OPERATOR)
@require_POST
def save(request: ProjectRequest, public_id: str) -> HttpResponse:
    """Save the change that was tried, as its form would."""
    row = _existing(request, public_id)
    version = request.POST.get("version")
    change, note = changes.read(row.change), request.POST.get("note", "")[: overrides.MAX_NOTE_CHARACTERS]
    if not change.session and not request.membership.allows(Role.ADMIN):
        return missing_role(request, Role.ADMIN)
    if change.scope.kind == "server" and not request.user.is_superuser:
        return missing_role(request, Role.ADMIN)
    try:
        where = None if change.scope.kind == "server" else request.project.pk
        what_ifs.save_change(where, change, actor_of(request), note, version=version)
        messages.success(request, "Change saved. It takes effect on the next call.")
    except ChangedMeanwhile as error:
        context = _context(request, row, is_beside_form=False) | {
            "note": note,
            "version": version_of(error.current),
            "conflict": _conflict(error, row.change),
        }
        return render(request, "policies/what_if.html", context, status=409)
    except ServiceError as error:
        messages.error(request, error.detail)
    return redirect("console:what_if", request.project.slug, public_id)


def _conflict(error: ChangedMeanwhile, change: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Compare a change with what is stored. A change contains the whole override: missing settings are inherited."""
    stored = {name: value for name, value in error.current.items() if name not in ("values", "note")}
    facts = {name: change[name] for name in RULE_FACTS if name in change}
    return edits.compare({**stored, **error.current.get("values", {})}, {**change["values"], **facts})


def _existing(request: ProjectRequest, public_id: str) -> WhatIf:
    row = selector.find_what_if(request.project.pk, public_id)
    if row is None:
        raise Http404
    return row


def _scope_name(row: WhatIf) -> str:
    return f"session {row.change['session']}" if row.change.get("session") else row.change["scope"]


def _context(request: ProjectRequest, row: WhatIf, *, is_beside_form: bool) -> dict[str, Any]:
    chip, word = formatting.job_state(row.state)
    found, covered = row.result, selector.coverage(row)
    is_admin = request.membership.allows(Role.ADMIN)
    stored, version = what_ifs.replaced(request.project.pk, changes.read(row.change))
    context: dict[str, Any] = {
        "what_if": row,
        "chip": chip,
        "word": word,
        "share": round(100 * row.share),
        "where": formatting.source_name(_scope_name(row)),
        "differences": differences(request, row.change),
        "version": version,
        "changed_since": stored if stored is not None and stored.updated_at > row.created_at else None,
        "is_beside_form": is_beside_form,
        "may_save": is_admin or bool(row.change.get("session")),
        "is_outdated": selector.is_outdated(row),
    }
    if not found:
        return context
    recorded = found["recorded"]
    changed_items = _listed(request, found["changed"]["items"])
    lists = [
        (name, words, found[name], found["labels"].get(name, {}), _listed(request, found[name]["items"]))
        for name, words in (("lost", "Lost"), ("gained", "Gained"))
    ]
    return context | {
        "found": found,
        "replay": words_of(found),
        **_by_day(row),
        "lists": lists,
        "still_blocking": _still_blocking(
            [*lists[0][4], *changed_items], [*lists[1][4], *changed_items]
        ),
        "changed": found["changed"],
        "spent": _spent(found),
        "replaced": _replaced(found),
        "gained_blocks": any(one["decision"] in BLOCKING for one in found["gained"]["items"]),
        "blocked": (_blocked(found, "before"), _blocked(found, "after")),
        "changed_items": changed_items,
        "decisions": [
            (name, found["decisions"]["before"].get(name, 0), found["decisions"]["after"].get(name, 0))
            for name in DECISIONS[1:]
        ],
        "endings": [
            (name, *(found.get("endings", {}).get(when, {}).get(name, 0) for when in ("before", "after")))
            for name in ENDINGS
        ],
        "coverage": covered,
        "missing": [(calls, selector.MISSING_WORDS[name]) for name, calls in covered.missing.items()],
        "recorded": recorded,
        "disagreements": [
            *((count, f"recorded, and not found again: {CAUSES[why]}") for why, count in recorded["not_found"].items()),
            *((count, f"found, and not recorded: {CAUSES[why]}") for why, count in recorded["not_recorded"].items()),
        ],
    }  # fmt: skip


def _by_day(row: WhatIf) -> dict[str, object]:
    """Return the loops that each policy blocks or stops by day of the period, as bars in percent."""
    days: dict[str, list[int]] = row.result["days"]
    count = row.days + 1
    most = max((number for pair in days.values() for number in pair), default=0)
    if not most:
        return {}
    bars = []
    for place in range(count):
        day = row.since + timedelta(days=place)
        before, after = days.get(f"{day:%Y-%m-%d}", (0, 0))
        left, width = 100 * place / count, 40 / count
        bars.append(
            DayBars(
                day, before, after, f"{left:.2f}", f"{left + width:.2f}", f"{width:.2f}",
                f"{100 - 100 * before / most:.2f}", f"{100 - 100 * after / most:.2f}",
                f"{100 * before / most:.2f}", f"{100 * after / most:.2f}",
            )
        )  # fmt: skip
    changed = ", ".join(
        f"{bar.day:%d %b}: {bar.before}, then {bar.after}" for bar in bars if bar.before or bar.after
    )
    return {
        "by_day": bars,
        "by_day_top": most,
        "by_day_words": f"Loops blocked or stopped a day, now and changed. {changed}",
        "stopped": (sum(bar.before for bar in bars), sum(bar.after for bar in bars)),
        "last_day": bars[-1].day,
    }


def _spent(found: dict[str, Any]) -> list[tuple[str, float]]:
    """Return what leads from the cost before to the cost after: of lost, gained and changed incidents."""
    changed = found["changed"].get("cost_usd_after", 0.0) - found["changed"].get("cost_usd", 0.0)
    return [
        ("lost −", found["lost"].get("cost_usd", 0.0)),
        ("gained +", found["gained"].get("cost_usd", 0.0)),
        (f"changed {'−' if changed < 0 else '+'}", abs(changed)),
    ]


def _replaced(found: dict[str, Any]) -> tuple[int, int]:
    """Count the listed changes where another detector acts then: all, and those that block."""
    changed = [one for one in found["changed"]["items"] if one["kind_after"] != one["kind"]]
    return len(changed), sum(one["decision_after"] in BLOCKING for one in changed)


def _still_blocking(
    before: Sequence[ReplayedIncident], remaining: Sequence[ReplayedIncident]
) -> list[ReplayedIncident]:
    """Return what the changed policy still blocks in the sessions of incidents that are not a loop."""
    spared = {one.item["session"] for one in before if one.item["label"] == IncidentLabel.FALSE_ALARM}
    return [
        one
        for one in remaining
        if one.item["session"] in spared
        and one.item.get("decision_after", one.item["decision"]) in BLOCKING
        and one.item["label"] != IncidentLabel.TRUE_LOOP
    ]


def _blocked(found: dict[str, Any], when: str) -> int:
    """Return how many calls the guard would not have let through at once."""
    return sum(found["decisions"][when].get(name, 0) for name in BLOCKING)


def _listed(request: ProjectRequest, items: list[dict[str, Any]]) -> list[ReplayedIncident]:
    slug = request.project.slug
    listed = []
    for item in items:
        if item["incident"]:
            url = reverse("console:incident", args=[slug, item["incident"]])
        else:
            url = permalinks.call_page_url(slug, item["session"], item["first_seq"])
        chips = incident_text.DECISION_CHIPS
        after = chips[item["decision_after"]] if "decision_after" in item else ""
        title = _title(item["kind"], item["tool"])
        listed.append(ReplayedIncident(item, title, url, chips[item["decision"]], after))
    return listed


def _title(kind: str, tool: str) -> str:
    return f"{detector_for(kind).label}: {tool}"


def _settings(change: dict[str, Any]) -> str:
    """Return the first settings of a change in words, so that two for one scope do not look alike."""
    values = dict(change["values"]) | {name: change[name] for name in RULE_FACTS if change.get(name)}
    words = [
        f"{formatting.label_of(name)}: {_value(name, value)}" for name, value in [*values.items()][:MAX_NAMED]
    ]
    return ", ".join([*words, *(["…"] if len(values) > MAX_NAMED else ())])


def differences(request: ProjectRequest, change: ChangeDocument) -> list[tuple[str, str, str]]:
    """Return label, current value and new value of every difference between a change and the stored state."""
    before: dict[str, Any] = {}
    if change["scope"].startswith("tool:"):
        rule = policies.rows_at(request.project.pk, changes.read(change).scope).in_effect().first()
        before = dict(rule.values) | {name: getattr(rule, name) for name in RULE_FACTS} if rule else {}
    elif change.get("session"):
        session = sessions.get_session(request.project.pk, change["session"])
        before = dict(session.policy_values) if session else {}
    else:
        scope = changes.read(change).scope
        before = dict(policies.overrides_of(request.project).values.get(scope, {}))
    after = change["values"] | {name: value for name, value in change.items() if name in RULE_FACTS}
    rows = []
    for name in {**before, **after}:
        old, new = _value(name, before.get(name)), _value(name, after.get(name))
        if old != new:
            rows.append((formatting.label_of(name), old, new))
    return rows


def _value(name: str, value: Any) -> str:
    if name in RULE_FACTS and not value:
        return "–"
    if isinstance(value, list | tuple) and name in RULE_FACTS:
        return ", ".join(map(str, value))
    return "inherited" if value is None else formatting.setting_value(value, name)
