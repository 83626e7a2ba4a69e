"""Phrases that the project does not use: each has a plain word that everything else uses instead."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BOUNDARY = r"\b"
INSTEAD_OF = {
    r"doorbells?": "background publisher",
    r"(?<!control )\brooms?\b": "package, or space",
    r"known already": "duplicate",
    r"\bmilder\b": "weaker",
    r"\bloosens?\b": "weaken",
    r"\btaken? back\b": "undo",
    r"\bput(s|ting)? back\b": "restore",
    r"\bbrings? (the|a) default back\b": "restore the default",
    r"\btells? of\b": "is about",
    r"\bset aside\b": "quarantined",
    r"\bput aside\b": "snooze, or quarantined",
    r"\bpoison(ous)?\b": "quarantined",
    r"\bparked\b": "quarantined",
    r"\bequal calls?\b": "identical calls",
    r"\bholds from\b": "takes effect",
    r"\bfrom (now|the next \w+) on\b": "takes effect",
    r"\bleave[sn]? out\b|\bleft out\b": "omit, exclude or skip",
    r"\bmakes it so\b": "describe the effect",
    r"\bwhat holds\b": "the effective policy",
    r"\bthere is no such\b": "not found",
    r"\bgoes_on\b": "continue_matching",
    r"\brepeat_hours\b": "repeat_interval_hours",
    r"\bgather for\b": "group wait",
    r"\btell(s|ing)? again\b": "repeat interval",
    r"\bleft (by the agent )?itself\b": "recovered",
    r"\bwaiting since \d": "waiting for",
    r"\bname the session\b": "`session` is required",
    r"\bwho may come in\b": "authentication",
    r"\bthe face of every\b": "base class",
    r"\bleft_lying\b|\bleftlying\b": "unclaimed approvals",
    r"\bswitch(es|ed)? (it )?(on|off)\b": "enable, disable",
    r"\bsay why\b": "give a reason",
    r"\bhow (he|she|it|they) fares?\b": "health",
    r"\bfar behind\b": "lagging",
    r"\bcome back in \d": "retry in",
    r"\btiers?\b": "override, scope or source",
    r"\bnobody (is|was) asked\b|\bis asked about\b": "approval",
    r"\bhas been asked whether\b": "approval",
    r"\blook(s|ed)? at the\b": "open, read or check",
    r"\blook at (it|them|a|an)\b": "get",
    r"\bmake it\b": "create",
    r"\bas (it|they) stands?\b": "the current state",
    r"\bin the same breath\b": "in the same transaction",
    r"\bfor ever\b": "permanently",
    r"\bdoors?\b": "entry point, or integration",
    r"(?<!//)\bnews\b": "alert event, or new result",
    r"\bhears?\b": "is notified of",
    r"\btold\b": "gets a message, or is notified",
    r"\bsomebody\b": "a person, or another process",
    r"\bnobody answers\b": "nobody decides",
    r"\bwording\b": "message template",
    r"\bstrangers?\b": "untrusted",
    r"\b(goes|went) on\b": "continues",
    r"\b(came|comes) of\b": "outcome",
    r"\bof ours\b": "of LoopGuard",
    r"\bgiven out\b": "issued",
    r"\b(event|call|request|value|body)s? (is|are|was|were) refused\b": "rejected, or blocked",
    r"\bopen questions?\b|\bquestions? waits?\b": "approval",
    r"\bself-explain": "describe it",
}
"""Regular expressions, matched with lines in lower case at the beginning of words, and what to write instead."""
NOT_OURS = ("docs/openapi.json",)
"""Generated from what is checked."""
ALLOWED = {
    (
        "development/measuring/entry_points/reports.py",
        r"\bdoors?\b",
    ): "a field of the format of reported runs",
    (
        "development/measuring/entry_points/reports.py",
        r"\bgoes_on\b",
    ): "a field of the format of reported runs",
    ("development/measuring/scenario_files.py", r"\bdoors?\b"): "a field of the format of reported runs",
    ("detection/engine/tables/answers.toml", r"(?<!control )\brooms?\b"): "what a tool of hotels answers",
    ("docs/conformance.md", r"\bdoors?\b"): "a field of the format of reported runs",
    ("detection/demo/stuck.py", r"\bthere is no such\b"): "what a scripted agent writes",
}
"""Exceptions by file and expression, with the reason."""


def files():
    listed = subprocess.run(
        ["git", "ls-files", "detection", "loopguard_site", "templates", "static", "docs", "*.md"],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=True,
    ).stdout.split()  # fmt: skip
    for name in listed:
        is_text = name.endswith((".py", ".html", ".js", ".css", ".md", ".txt", ".toml"))
        is_history = name.startswith("detection/migrations/") or name == "CHANGELOG.md"
        if is_text and not is_history and "/vendor/" not in name and name not in NOT_OURS:
            yield name


def test_no_phrase_of_the_list_is_used():
    # All at once, and without `re.IGNORECASE`: this way, most places of a text cost one step.
    any_phrase = re.compile(rf"\b(?:{'|'.join(phrase.removeprefix(BOUNDARY) for phrase in INSTEAD_OF)})")
    found = []
    for name in files():
        text = (ROOT / name).read_text().lower()
        if not any_phrase.search(text):
            continue
        for number, line in enumerate(text.splitlines(), start=1):
            found += [
                f"{name}:{number}: {line.strip()[:120]}: write {instead!r} instead"
                for phrase, instead in INSTEAD_OF.items()
                if (name, phrase) not in ALLOWED and re.search(phrase, line)
            ]
    assert found == []
