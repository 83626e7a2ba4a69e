"""Tags and filters of the console's templates; the logic is in `detection.console`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo
from functools import cache, lru_cache
from typing import Any
from urllib.parse import urlencode

from django import template
from django.conf import settings
from django.contrib.staticfiles.storage import staticfiles_storage
from django.template.context import RequestContext
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

from detection.console import formatting, permalinks
from detection.console import listing as listings
from detection.console.icons import ICONS
from detection.console.insights.links import Link
from detection.console.integrations.integration_words import integration_words
from detection.console.listing import Listing
from detection.console.loops import incident_text
from detection.console.loops.loop_list import Trend
from detection.console.policies import change_here
from detection.console.sessions.session_map import Area, SessionMap
from detection.console.sessions.session_rows import STOPPED
from detection.engine import durations
from detection.engine.detectors import detector_for
from detection.engine.messages import as_sentence
from detection.filtering import language
from detection.integrations.reach import reach_words
from detection.selectors.strips import Strip, cells_of, small

_CODE = re.compile(r"`([^`]+)`")

KEPT_CHARACTERS = 12
"""Of a name that is cut: names of sessions differ at their end, most often by an id."""

register = template.Library()

for _name in (
    "visible",
    "visible_block",
    "clipped",
    "pretty",
    "number",
    "compact",
    "money",
    "cost",
    "ordinal",
):
    register.filter(_name, getattr(formatting, _name))
for _name in ("setting_value", "source_name", "word"):
    register.filter(_name, getattr(formatting, _name))
for _name in ("span", "milliseconds", "figure", "amount"):
    register.filter(_name, getattr(durations, _name))


register.filter("integration_words", integration_words)
register.filter("reach_words", reach_words)
register.filter("progress_words", incident_text.progress_words)
register.filter("as_sentence", as_sentence)


@register.filter
def marked(value: str, text: str | None) -> SafeString:
    """Return a text with each occurrence of another one marked, upper and lower case alike."""
    sought, within = (text or "").lower(), value.lower()
    parts: list[str | SafeString] = []
    end = 0
    # A few letters change their length with their case: then nothing is marked.
    while sought and len(within) == len(value) and (start := within.find(sought, end)) >= 0:
        parts += [value[end:start], format_html("<mark>{}</mark>", value[start : start + len(sought)])]
        end = start + len(sought)
    return format_html_join("", "{}", ((part,) for part in (*parts, value[end:])))


@register.filter
def with_code(text: object) -> SafeString:
    """Return a message with its names in backticks set as code, and invisible characters visible."""
    parts = _CODE.split(formatting.visible(text))
    return format_html_join(
        "",
        "{}",
        ((format_html("<code>{}</code>", part) if place % 2 else part,) for place, part in enumerate(parts)),
    )


@register.filter
def activity_words(action: str) -> str:
    """Return an action of a loop's activity in words."""
    return incident_text.ACTIVITY.get(action, formatting.word(action).capitalize())


@register.filter
def detector_label(kind: str) -> str:
    """Return the name of a detector for people."""
    return detector_for(kind).label


@register.filter
def share(value: float) -> str:
    """Return a share of one in percent."""
    return f"{value:.0%}"


@register.simple_tag
@cache
def icon(name: str) -> SafeString:
    """Write an icon; decoration only, so it is hidden from screen readers."""
    return format_html(
        '<svg width="16" height="16" viewBox="0 0 16 16" fill="none" stroke="currentColor" stroke-width="1.5"'
        ' stroke-linecap="round" stroke-linejoin="round" aria-hidden="true"><path d="{}"/></svg>',
        ICONS[name],
    )


@register.simple_tag(takes_context=True)
def moment(context: RequestContext, value: datetime | None, mode: str = "") -> SafeString | str:
    """Write a time; scripts turn it into the reader's own zone and keep relative ones moving.

    Parameters
    ----------
    value
        With zone.
    mode
        ``relative``, ``absolute`` or empty for the reader's preference.
    """
    if value is None:
        return "–"
    mode = mode or str(context.get("time_mode", "relative"))
    text = formatting.moment(value, timezone.now(), is_relative=mode == "relative")
    return _time(value, mode, text)


@register.simple_tag
def time_left(deadline: datetime, seconds: float) -> SafeString:
    """Write the time until a deadline; `countdown.js` counts it down."""
    return _time(deadline, "left", durations.left(seconds))


@register.simple_tag
def moment_as(value: datetime, text: str) -> SafeString:
    """Write a text that stands for a time, which is in the tooltip."""
    return _time(value, "offset", text)


def _time(value: datetime, mode: str, text: str) -> SafeString:
    iso = value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return format_html('<time datetime="{}" data-mode="{}" title="{}">{}</time>', iso, mode, iso, text)


@register.inclusion_tag("sessions/_strip.html")
def strip(stored: Sequence[Any], note: str = "") -> dict[str, Strip | str]:
    """Write the strip of a list row from what the session stores; its tooltip says what its marks mean, and `note`."""
    drawn = small(cells_of(stored))
    return {"strip": drawn, "words": " · ".join(filter(None, (drawn.label, note, drawn.key)))}


@register.inclusion_tag("integrations/_step.html")
def step(
    name: str, href: str, words: str, icon_name: str = "", key: str = "", is_short: bool = False
) -> dict[str, object]:
    """Write a button that leads to other calls of a run, disabled without an address."""
    return {
        "name": name,
        "href": href,
        "words": words,
        "icon_name": icon_name,
        "key": key,
        "is_short": is_short,
    }


@register.simple_tag
def waterfall(x: str, width: str, look: str = "") -> SafeString:
    """Write the bar of a line of a trace, in percent of the time that the trace covers."""
    return format_html(
        '<svg class="fall {}" aria-hidden="true"><rect x="{}" width="{}" height="8" rx="2"/></svg>',
        look.removeprefix("swatch").strip(),
        x,
        width,
    )


@register.inclusion_tag("sessions/_map.html")
def session_map(drawn: SessionMap, label: str, areas: Sequence[Area], view: Any = None) -> dict[str, object]:
    """Write a map of a run; `view` is the part that is shown in detail."""
    return {
        "map": drawn,
        "label": label,
        "areas": format_html_join(
            "\n",
            '<a href="{}" tabindex="-1"><rect class="area" x="{}" y="8" width="{}" height="62" />'
            "<title>{}</title></a>",
            ((area.href, area.x, area.width, area.title) for area in areas),
        ),
        "loops": format_html_join(
            "\n",
            '<a href="{}" tabindex="-1"><path class="bracket" d="{}" /><title>{}</title></a>',
            ((loop.href, loop.path, loop.title) for loop in drawn.loops),
        ),
        "view": view,
    }


@register.inclusion_tag("lists/_sort_header.html")
def sort_header(listing: Listing, name: str, words: str, classes: str = "") -> dict[str, object]:
    """Write the header of a column by which a list can be sorted."""
    return {"header": listings.sort_header(listing, name, words, classes)}


@register.simple_tag
def columns(*heads: str) -> SafeString:
    """Write the head of a table.

    Each head is its words, after its classes if it has any: `num hide-s: Cost`. The words of an `off-screen` one are
    for screen readers only.
    """
    return format_html(
        "<thead><tr>{}</tr></thead>", format_html_join("", "{}", ((_column(head),) for head in heads))
    )


def _column(head: str) -> SafeString:
    classes, _, words = head.rpartition(": ")
    if classes == "off-screen":
        return format_html('<th scope="col"><span class="off-screen">{}</span></th>', words)
    return format_html(
        '<th scope="col"{}>{}</th>', format_html(' class="{}"', classes) if classes else "", words
    )


@register.simple_tag
def empty_row(width: int, words: str, more: str = "") -> SafeString:
    """Write the only row of a table without rows, over all its columns."""
    advice = format_html("<p>{}</p>", more) if more else ""
    return format_html(
        '<tr><td colspan="{}"><div class="empty"><b>{}</b>{}</div></td></tr>', width, words, advice
    )


@register.filter
def in_zone(moment: datetime, zone: tzinfo) -> datetime:
    """Return a time in another zone, without it, for the filter `date`."""
    return moment.astimezone(zone).replace(tzinfo=None)


@register.filter
def term(value: object, field: str) -> str:
    """Return the term of the filter language that selects one value of a field."""
    return str(language.term(field, str(value)))


@register.simple_tag
def filter_by(
    field: str, value: object, words: object = None, classes: str = "", chip: str = "", state: str = ""
) -> SafeString:
    """Write the value of a cell as a button that adds its term to the filter of the page.

    It submits the form of the filter, so it works without scripts and is the same in every address: rows can be cached.
    """
    shown = formatting.visible(value if words is None else words)
    look = f"chip {chip}" if chip else f"state {state}" if state else ""
    return _filter_button(field, str(value), shown, f"term {classes} {look}".strip())


@register.simple_tag
def middle_cut(name: str) -> SafeString:
    """Write a name that loses its middle, and keeps its last characters, where it does not fit."""
    shown = formatting.visible(name)
    return format_html(
        '<bdi class="mid"><span>{}</span><span>{}</span></bdi>',
        shown[:-KEPT_CHARACTERS],
        shown[-KEPT_CHARACTERS:],
    )


@lru_cache(maxsize=2048, typed=True)
def _filter_button(field: str, value: str, words: str, classes: str) -> SafeString:
    # The rows of a list share most of their values. A safe text is equal to an unsafe one, but is not escaped.
    text = str(language.term(field, value))
    return format_html(
        '<button class="{}" form="filter-form" name="term" value="{}" title="Show only {}">{}</button>',
        classes,
        text,
        formatting.visible(text),
        words,
    )


@register.simple_tag
def names_of(field: str, names: Sequence[tuple[str, int]]) -> SafeString:
    """Write the first two names of a cell as buttons like those of `filter_by`, and how many more there are."""
    more = f" +{len(names) - 2}" if len(names) > 2 else ""
    buttons = format_html_join(", ", "{}", ((filter_by(field, name),) for name, _ in names[:2]))
    return format_html("{}{}", buttons, more)


@register.simple_tag
def sentence(parts: Sequence[incident_text.Part]) -> SafeString:
    """Write a sentence with its emphasized parts; those may contain invisible characters."""
    return format_html_join(
        "",
        "{}",
        (
            (format_html("<b>{}</b>", formatting.visible(part.text)) if part.strong else part.text,)
            for part in parts
        ),
    )


@register.simple_tag
def trend_bars(trend: Trend) -> SafeString:
    """Write the bars of a loop's row."""
    return format_html(
        '<svg class="trend" width="{0}" height="{1}" viewBox="0 0 {0} {1}" role="img" aria-label="{2}">'
        '<title>{2}</title><path class="base" d="M0 {1}h{0}" /><path d="{3}" /></svg>',
        trend.width,
        trend.height,
        trend.label,
        trend.path,
    )


@register.simple_tag
def linked(words: object, link: Link | str | None) -> SafeString | str:
    """Write a number as a link to its rows, if there are any; a missing link is an empty text."""
    if link is None or isinstance(link, str) or not link.count or words == "0":
        return str(words)
    return format_html('<a class="link" href="{}" title="{}">{}</a>', link.url, link.title, words)


@register.simple_tag
def session_url(project: Any, name: str) -> str:
    """Return the permalink of a session."""
    return permalinks.session_url(project.slug, name)


@register.simple_tag
def loop_url(project: Any, public_id: str) -> str:
    """Return the permalink of a loop."""
    return permalinks.loop_url(project.slug, public_id)


@register.simple_tag
def run_url(project: Any, loop: str, incident: str) -> str:
    """Return the permalink of a run of a loop."""
    return permalinks.run_url(project.slug, loop, incident)


@register.simple_tag
def run_of(project: Any, incident: Any) -> str:
    """Return the permalink of an incident as a run of its loop; the loop is read with it, not one by one."""
    return permalinks.run_url(project.slug, incident.loop.public_id, incident.public_id)


@register.simple_tag
def incident_url(project: Any, public_id: str) -> str:
    """Return the permalink of an incident."""
    return permalinks.incident_url(project.slug, public_id)


@register.filter
def stopped_sessions(tag: str) -> list[str]:
    """Return the sessions that the stop of a message reached, for its Undo; none of another message."""
    kind, *names = tag.split("\n")
    return names if kind == STOPPED else []


@register.simple_tag
def undo_url(project: Any, ids: str) -> str:
    """Return where a change of these incidents or loops is undone."""
    return permalinks.undo_url(project.slug, ids)


@register.simple_tag(takes_context=True)
def query(context: RequestContext, **changes: Any) -> str:
    """Return the page's query string with some values changed; an empty value is removed."""
    values = context["request"].GET.copy()
    for name, value in changes.items():
        if value in (None, ""):
            values.pop(name, None)
        else:
            values[name] = str(value)
    if "cursor" not in changes:
        values.pop("cursor", None)
    return f"?{values.urlencode()}"


@register.simple_tag
def call_url(project: Any, session: Any, seq: int) -> str:
    """Return the address of a call's details, to be loaded beside the strip."""
    return permalinks.call_url(project.slug, session.external_id, seq)


@register.simple_tag
def change_url(project: Any, setting: str, scope: str, came_from: str) -> str:
    """Return the address at which a setting is changed at a scope."""
    return change_here.change_url(project.slug, setting, scope, came_from)


@register.simple_tag
def pattern_query(pattern: str) -> str:
    """Return the query that names a tool rule."""
    return urlencode({"pattern": pattern})


@register.simple_tag
def style_sheets() -> Sequence[str]:
    """Return the style sheets of a page: one where they were collected, and as they are written in tests."""
    return getattr(staticfiles_storage, "style_sheets", settings.STYLE_SHEETS)
