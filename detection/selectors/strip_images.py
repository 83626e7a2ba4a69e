"""Strips as standalone images: for alerts, files and other programs.

They contain no style sheet, script, link or text of a client, only shapes, their colours and a sentence of counts. The
colours are those of the console's light theme, in a notation that mail readers and image tools know, on white.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from detection.engine.detectors import detector_for
from detection.models import Incident
from detection.selectors import sessions
from detection.selectors.strips import Cell, Strip, large, small

MAX_BYTES = 4096
"""Limit of an image in a notification; a larger strip shows fewer calls."""
CONTEXT_CALLS, CALLS_AFTER = 48, 8
CELL_WIDTH = 11
_SCALE = 2
_MARGIN, _MARGIN_ABOVE = 5, 3
"""Space at the sides of the cells and above their dots."""
_FULL = (
    "#009acd", "#af5fc7", "#00a590", "#7575e9", "#349f3a", "#008fe1", "#978900", "#00a1b1", "#966add", "#00a467",
    "#4483eb", "#719600",
)  # fmt: skip
_PALE = (
    "#97d6eb", "#debde9", "#96dacf", "#c1c6f8", "#b0d7ae", "#a2d1f4", "#d1ce99", "#93d9de", "#d0c1f3", "#a1d9be",
    "#b0ccf9", "#c1d3a1",
)  # fmt: skip
_WAITING = (
    "#d0eaf3", "#eddff2", "#d0ece6", "#e0e3f9", "#d9ead8", "#d4e8f7", "#e7e6d0", "#cfebed", "#e7e1f6", "#d4ebdf",
    "#d9e5f9", "#e0e8d3",
)  # fmt: skip
_WAITING_EDGE = (
    "#4badca", "#b98ac7", "#48b3a4", "#9297dc", "#77af76", "#62a6d7", "#a8a255", "#40b1b9", "#a790d4", "#5eb28c",
    "#7a9fdd", "#91a962",
)  # fmt: skip
_FIXED = {
    "u": 'fill="#d0cec8"',
    "n": 'fill="none" stroke="#8f8c84"',
    "dot": 'fill="#8f4c00"',
    "end": 'fill="#26241f"',
    "bracket": 'fill="none" stroke="#b81f54" stroke-width="2"',
}


def of_message(stored: Sequence[Sequence[str]]) -> str:
    """Draw the calls of a message, the newest right, in at most `MAX_BYTES`; empty where there are none.

    Parameters
    ----------
    stored
        Key and flags of each call.
    """
    cells = [Cell(place, key, flags) for place, (key, flags) in enumerate(stored)]
    while cells:
        drawn = as_svg(small(cells), scale=_SCALE)
        if len(drawn) <= MAX_BYTES:
            return drawn
        cells = cells[len(cells) // 2 :]
    return ""


def of_incident(incident: Incident) -> str:
    """Draw the calls around the loop of an incident with a bracket below the loop; two queries."""
    cells = cells_around(incident)
    return as_svg(large(cells, cell_width=CELL_WIDTH, loop=span_of(incident, cells)))


def span_of(incident: Incident, cells: Sequence[Cell]) -> tuple[int, int]:
    """Return the first and last call of a loop; of one without calls, the call before it."""
    if not detector_for(incident.kind).judges_texts:
        return incident.first_seq, incident.last_seq
    before = [cell.seq for cell in cells if cell.seq < incident.first_seq] or [cell.seq for cell in cells[:1]]
    return (before[-1], before[-1]) if before else (incident.first_seq, incident.last_seq)


def cells_around(incident: Incident) -> list[Cell]:
    """Return the calls around the loop, from the session if it still has them, otherwise from the evidence."""
    cells: list[Cell] = []
    if incident.session is not None and not incident.is_of_family:
        calls = sessions.session_calls(
            incident.session, before_seq=incident.last_seq + 1, limit=CONTEXT_CALLS
        )
        after = sessions.session_calls(incident.session, after_seq=incident.last_seq, limit=CALLS_AFTER)
        cells = [
            Cell(row.seq, row.call_key[:6], row.flags, row.tool, row.call_number)
            for row in (*calls.items, *after.items)
        ]
    return cells or [
        Cell(
            call["seq"],
            str(call.get("call_key", ""))[:6],
            call.get("flags", ""),
            call.get("tool", ""),
            call.get("number", 0),
        )
        for call in incident.evidence.get("calls", [])
    ]


def as_svg(strip: Strip, scale: float = 1) -> str:
    """Render a strip as a standalone file: ASCII, well-formed, without external resources."""
    width, height = strip.width + 2 * _MARGIN, strip.height + 2 * _MARGIN_ABOVE
    drawn = "".join(
        f'<path {_paint(look, is_small=not strip.is_large)} d="{path}"/>' for look, path in strip.paths
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width * scale:g}" height="{height * scale:g}"'
        f' viewBox="{-_MARGIN} {-_MARGIN_ABOVE} {width:g} {height:g}" role="img"><title>{escape(strip.label)}</title>'
        f'<rect x="{-_MARGIN}" y="{-_MARGIN_ABOVE}" width="{width:g}" height="{height:g}" fill="#fff"/>{drawn}</svg>'
    )


def _paint(look: str, *, is_small: bool) -> str:
    """Return fill and stroke of a look. Small cells are drawn half a pixel inside, and their stroke rounds them."""
    if look in _FIXED:
        return _FIXED[look] + (' stroke="#d0cec8"' if look == "u" and is_small else "")
    kind, _, hue = look.partition(" h")
    place = int(hue)
    if kind == "q":
        return f'fill="{_WAITING[place]}" stroke="{_WAITING_EDGE[place]}" stroke-dasharray="2 1.5"'
    colour = (_PALE if kind == "p" else _FULL)[place]
    if kind == "o":
        return f'fill="none" stroke="{colour}"'
    return f'fill="{colour}"' + (f' stroke="{colour}"' if is_small else "")
