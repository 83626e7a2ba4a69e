"""Strips as files of their own: whole, small, and without a word that an agent chose."""

from __future__ import annotations

import math
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from detection.selectors import strip_images
from detection.selectors.strips import HUES, Cell, large, small

SVG = "{http://www.w3.org/2000/svg}"
EVIL = '"/><script>alert(1)</script><image href="http://evil.example"/>]]>&x;'
LOOKS = ["", "^", "!", "e", "?", "w", "b", "h", "s", "^w", "!b"]


def cells(count, keys=12):
    return [Cell(n, f"{n % keys:06x}", LOOKS[n % len(LOOKS)]) for n in range(count)]


def tags(svg):
    return {one.tag.removeprefix(SVG) for one in ET.fromstring(svg).iter()}


def test_a_picture_holds_shapes_and_a_sentence_only_whatever_the_cells_are_called():
    hostile = [[EVIL, EVIL], [EVIL, "b"], [f"{EVIL}2", "h"], ["\x00\ud800", "\x1b^"]] * 8
    drawn = strip_images.of_message(hostile)
    assert tags(drawn) == {"svg", "title", "rect", "path"}
    assert drawn.isascii()
    for word in ("script", "evil", "href", "style", "url("):
        assert word not in drawn


@pytest.mark.parametrize("strip", [small(cells(60)), large(cells(56), cell_width=11, loop=(3, 9))])
def test_every_look_has_its_own_paint(strip):
    drawn = strip_images.as_svg(strip)
    assert tags(drawn) == {"svg", "title", "rect", "path"}
    paths = ET.fromstring(drawn).findall(f"{SVG}path")
    paints = [tuple(sorted((name, value) for name, value in one.items() if name != "d")) for one in paths]
    assert len(set(paints)) == len(paints)
    assert all(one.get("fill") for one in paths)


@pytest.mark.parametrize("count", [1, 4, 60, 2000])
def test_a_picture_in_a_message_has_a_bound_and_shows_the_newest(count):
    drawn = strip_images.of_message([[one.key, one.flags] for one in cells(count, keys=count)])
    assert 0 < len(drawn) <= strip_images.MAX_BYTES
    assert strip_images.of_message([]) == ""
    marked = strip_images.of_message([["a", ""]] * count + [["b", "s"]])
    assert strip_images._FIXED["end"] in marked


def as_hex(lightness, chroma, angle):
    """What a screen shows of an oklch colour."""
    a, b = chroma * math.cos(math.radians(angle)), chroma * math.sin(math.radians(angle))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    middle = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * middle + 1.7076147010 * short,
    )
    clipped = (max(0.0, min(1.0, one)) for one in linear)
    shown = (12.92 * one if one <= 0.0031308 else 1.055 * one ** (1 / 2.4) - 0.055 for one in clipped)
    return "#" + "".join(f"{round(one * 255):02x}" for one in shown)


@pytest.mark.parametrize(
    ("rule", "colours"),
    [
        (r"--full: ", strip_images._FULL),
        (r"--pale: ", strip_images._PALE),
        (r"\.strip \.q \{ fill: ", strip_images._WAITING),
        (r"\.strip \.q \{ fill: [^;]*; stroke: ", strip_images._WAITING_EDGE),
    ],
)
def test_the_colours_are_those_of_the_console(rule, colours):
    css = " ".join((Path(__file__).parents[2] / "static" / "css" / "strip.css").read_text().split())
    angles = {int(hue): float(angle) for hue, angle in re.findall(r"\.h(\d+) \{ --h: (\d+)", css)}
    light = re.search(rule + r"light-dark\( ?oklch\(([.\d]+) ([.\d]+) var\(--h\)\)", css)
    lightness, chroma = float(light.group(1)), float(light.group(2))
    assert colours == tuple(as_hex(lightness, chroma, angles[hue]) for hue in range(HUES))
