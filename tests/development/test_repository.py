"""Files for people who work on the project: links, changelog, hooks, templates."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from detection import __version__
from development.commands import COMMANDS
from development.release import changelog_section, unready

ROOT = Path(__file__).resolve().parents[2]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob(".github/*.md"), *(ROOT / "docs").rglob("*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_and_sections_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)", page.read_text()):
        file = (page.parent / target) if target else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{target}#{anchor}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_documented_commands_exist(page):
    commands = dict.fromkeys(COMMANDS) | dict.fromkeys(
        ["up", "live", "help", "shell", "createsuperuser", "changepassword", "check"]
    )
    for folder in ("detection", "loopguard_site", "development"):
        commands |= {file.stem: None for file in (ROOT / folder / "management" / "commands").glob("*.py")}
    used = re.findall(r"(?:manage\.py|`loopguard-server) ([a-z][a-z_-]*)", page.read_text())
    assert {name.replace("-", "_") for name in used} <= {name.replace("-", "_") for name in commands}


def test_the_changelog_has_unreleased_first_and_versions_in_descending_order():
    titles = re.findall(r"^## (.+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert titles[0] == "Unreleased"
    versions = [tuple(map(int, title.split()[0].split("."))) for title in titles[1:]]
    assert versions == sorted(versions, reverse=True)


def test_a_version_has_a_section_only_with_a_date():
    text = "## Unreleased\n\n## 1.2.3 (2026-11-22)\n\n- One thing.\n\n## 1.2.0 (soon)\n\n- Another.\n"
    assert changelog_section(text, "1.2.3") == "- One thing."
    assert changelog_section(text, "1.2.0") is None
    assert changelog_section(text, "1.2") is None


@pytest.mark.parametrize(("unreleased", "is_ready"), [("", True), ("- Another thing.\n\n", False)])
def test_a_release_leaves_no_entry_unreleased(tmp_path, unreleased, is_ready):
    text = f"# Changelog\n\n## Unreleased\n\n{unreleased}## {__version__} (2026-11-22)\n\n- One thing.\n"
    (tmp_path / "CHANGELOG.md").write_text(text)
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True, timeout=60)
    (tmp_path / ".gitignore").write_text("*\n")
    found = unready(tmp_path)
    assert [one for one in found if "Unreleased" in one] == found
    assert (found == []) == is_ready


def test_the_hooks_are_valid_and_their_programs_are_installed():
    file = ROOT / ".pre-commit-config.yaml"
    hooks = yaml.safe_load(file.read_text())["repos"][0]["hooks"]
    programs = Path(sys.executable).parent
    subprocess.run([programs / "pre-commit", "validate-config", file], timeout=60, check=True)
    for hook in hooks:
        assert (programs / Path(hook["entry"].split()[0]).name).exists(), hook["entry"]


@pytest.mark.parametrize("file", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda file: file.name)
def test_templates_for_issues_are_valid_forms(file):
    form = yaml.safe_load(file.read_text())
    if file.name == "config.yml":
        assert set(form) == {"blank_issues_enabled"}
        return
    assert set(form) == {"name", "description", "labels", "body"}
    for field in form["body"]:
        assert field["type"] in {"textarea", "input", "dropdown"}
        assert field["attributes"]["label"]
