"""Static files that are collected again, while servers run from the same checkout."""

import os
from contextlib import contextmanager
from pathlib import Path

import pytest
from django.core.management import call_command
from whitenoise import WhiteNoise

from loopguard_site import collected_files, layout


@pytest.fixture
def sources(settings, tmp_path):
    sources = tmp_path / "sources"
    sources.mkdir()
    settings.STATIC_FOLDERS = tmp_path / "collected"
    settings.STATICFILES_DIRS, settings.STATICFILES_FINDERS = (
        [sources],
        ["django.contrib.staticfiles.finders.FileSystemFinder"],
    )
    settings.STORAGES = settings.STORAGES | {
        "staticfiles": {"BACKEND": "loopguard_site.static_files.BundledStorage"}
    }
    return sources


def collected(sources, text):
    """Change a source, and return the folder that a process which starts now serves."""
    (sources / "sheet.css").write_text(text)
    call_command("prepare", "--static")
    return layout.collected_static_folder(sources.with_name("collected"))


@contextmanager
def served(settings, folder):
    """What a running server serves: it has looked at its folder when it started."""
    settings.STATIC_ROOT = folder
    handle = collected_files.hold()
    try:
        yield WhiteNoise(None, root=str(folder))
    finally:
        os.close(handle)


def texts(server):
    return {Path(file.alternatives[-1][1]).read_text() for file in server.files.values()}


def test_a_running_server_keeps_its_files_when_others_start_with_other_sources(sources, settings):
    first = collected(sources, "a { color: red }")
    with served(settings, first) as server:
        assert "a { color: red }" in texts(server)
        later = [collected(sources, f"a {{ color: red; order: {number} }}") for number in range(4)]
        assert "a { color: red }" in texts(server)
        assert len({first, *later}) == 5
        # Of the others, those that nobody serves: all but the current one and the one before.
        kept = {one for one in first.parent.iterdir() if one.is_dir()}
        assert kept == {first, *later[-2:]}
    collected(sources, "a { color: blue }")
    assert not first.exists()


def test_what_has_not_changed_is_not_collected_again(sources):
    first = collected(sources, "a { color: red }")
    state = (first / "sheet.css").stat()
    call_command("prepare", "--static")
    assert (first / "sheet.css").stat() == state
    assert layout.collected_static_folder(first.parent) == first


def test_a_folder_that_was_begun_by_a_killed_start_is_made_anew(sources, settings):
    partial = Path(settings.STATIC_FOLDERS) / "partial"
    partial.mkdir(parents=True)
    (partial / "old.css").write_text("")
    assert not (collected(sources, "a { color: red }") / "old.css").exists()
    assert not partial.exists()
