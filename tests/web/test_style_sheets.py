"""The style sheets of the console, as an installation serves them."""

import gzip
import re
from pathlib import Path
from typing import Any

import pytest
from django.conf import settings
from django.core.management import call_command
from django.template import Context, Template

STATIC = Path(__file__).resolve().parents[2] / "static"
LINKS = re.compile(r'href="/static/(css/[\w.]+)"')
MAX_BYTES = 15_000
"""Compressed; the design allows 14 KB, and a tenth more is reported, not chased."""


@pytest.fixture
def collected(settings, tmp_path):
    settings.STATIC_ROOT = tmp_path
    settings.STORAGES = settings.STORAGES | {
        "staticfiles": {"BACKEND": "loopguard_site.static_files.BundledStorage"}
    }
    call_command("collectstatic", interactive=False, verbosity=0)
    return tmp_path


def links():
    shown = Template(
        '{% load static console %}{% style_sheets as all %}{% for one in all %}href="{% static one %}"{% endfor %}'
    )
    return LINKS.findall(shown.render(Context()))


def test_an_installation_serves_all_sheets_as_one_small_file(collected):
    (name,) = links()
    text = (collected / name).read_text()
    assert "/*" not in text
    for sheet in settings.STYLE_SHEETS:
        source = re.sub(r"/\*.*?\*/", "", (STATIC / sheet).read_text(), flags=re.DOTALL)
        last = re.findall(r"\.([a-z][\w-]+)[^{}]*\{", source)
        assert not last or f".{last[-1]}" in text, sheet
    assert len(gzip.compress(text.encode(), 9)) <= MAX_BYTES
    assert (collected / f"{name}.gz").exists()


def test_what_is_served_selects_what_the_sheets_select(collected):
    """Without its space, `.a :is(b)` selects another element: the minifier takes it inside some rules."""
    (name,) = links()
    written = "".join((STATIC / sheet).read_text() for sheet in settings.STYLE_SHEETS)
    apart = re.compile(r"[\w\])*] :[a-z-]+\(")
    found = apart.findall(re.sub(r"/\*.*?\*/", "", written, flags=re.DOTALL))
    assert found
    assert apart.findall((collected / name).read_text()) == found


def test_tests_get_the_sheets_as_they_are_written_in_the_same_order():
    assert links() == settings.STYLE_SHEETS
    named = {f"css/{file.name}" for file in (STATIC / "css").glob("*.css")}
    assert named - set(settings.STYLE_SHEETS) == {"css/administration.css", "css/api-docs.css"}


def test_the_administration_loads_the_fonts_that_it_names():
    styles: Any = settings.UNFOLD["STYLES"]
    loaded = [style(None).removeprefix(settings.STATIC_URL) for style in styles]
    text = "".join((STATIC / sheet).read_text() for sheet in loaded)
    named = {*re.findall(r'--font-\w+: "([^"]+)"', text)}
    assert named == {"Geist", "Geist Mono"}
    assert named <= {*re.findall(r'@font-face \{\s+font-family: "([^"]+)"', text)}
