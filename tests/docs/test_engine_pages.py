"""What the documentation says about the engine is what the code says, and its examples run."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from detection.engine.detectors import DETECTORS, KINDS
from detection.engine.fields import FIELDS
from detection.engine.policy import PROJECT, environment_override, environment_variables, validate
from detection.engine.presets import PRESETS

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def test_generated_pages_are_up_to_date():
    """If this fails, run `.venv/bin/python docs/generate.py`."""
    stale = [
        path.name for path, text in loaded(DOCS / "generate.py").pages().items() if path.read_text() != text
    ]
    assert stale == []


def test_every_detector_has_its_section_with_settings_and_pictures():
    text = (DOCS / "detectors.md").read_text()
    for detector in DETECTORS:
        section = text.partition(f"## `{detector.kind}`")[2].partition("\n## ")[0]
        assert all(f"images/strips/{name}.svg" in section for name in detector.examples)
        assert all(f"| `{field.name}` |" in section for field in detector.settings)


@pytest.mark.parametrize("page", ["detectors.md", "evaluation.md", "engine.md", "settings.md"])
def test_pages_name_only_settings_that_exist_and_link_only_to_what_is_there(page):
    text = (DOCS / page).read_text()
    prefixes = tuple(f"{detector.kind}_" for detector in DETECTORS)
    for word in re.findall(r"`([a-z_]+)`", text):
        if word.startswith((*prefixes, "max_", "scattered_", "poll_")) and "_" in word:
            assert word in FIELDS or word in PRESETS or word in KINDS or page == "settings.md", word
    for link in re.findall(r"\]\(([^)#:]+)\)", text):
        if link.endswith((".svg", ".py")):
            assert (DOCS / link).exists(), link


def test_every_name_and_variable_on_the_settings_page_is_accepted():
    page = (DOCS / "settings.md").read_text()
    rows = re.findall(r"^\| `([a-z_]+)` \| .* \| (.*) \|$", page, re.MULTILINE)
    assert {name for name, _ in rows} >= set(FIELDS)
    for name, meaning in rows:
        for alias in re.findall(r"`([a-z_]+)`", meaning.partition("Also accepted as ")[2]):
            assert validate(PROJECT, {alias: FIELDS[name].default}) == {name: FIELDS[name].default}
    assert environment_override({"TOOL_LOOP_DETECTION_ENABLED": "no", "TOOL_LOOP_WINDOW_CALLS": "20"}) == {
        "enabled": False,
        "window_calls": 20,
    }
    assert set(re.findall(r"`(TOOL_LOOP_[A-Z_]+[A-Z])`", page)) <= set(environment_variables())


def test_the_example_agent_is_warned_and_finds_another_way():
    done = subprocess.run(
        [sys.executable, str(DOCS / "examples" / "agent.py")],
        env={"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert "WARNING" in done.stdout
    assert "Account, Security" in done.stdout


def test_the_engine_needs_no_django():
    code = "import sys; from detection.engine import Guard; Guard().call('t', {}); sys.exit('django' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": str(ROOT)}, timeout=30, check=True)


def test_the_snippet_on_the_page_runs():
    page = (DOCS / "engine.md").read_text()
    snippet = page.partition("```python\n")[2].partition("```")[0]
    exec(compile(snippet, "engine.md", "exec"), {})
