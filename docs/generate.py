# ruff: noqa: INP001
"""Write everything in `docs/` that follows from code: `.venv/bin/python docs/generate.py`, or `--check` to only compare.

`settings.md` and the settings in `docker-compose.yml` come from the list of settings, the tables in `engine.md` from tool
classes and presets, those in `filters.md` from the lists of the console, the strips in `images/strips/` from small runs that the engine folds, and
`promises.md` from `promises.toml` and the marks at the tests.
"""

from __future__ import annotations

import ast
import inspect
import os
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
sys.path.insert(0, str(ROOT))
# Lists name tables. Nothing here connects to a server.
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "loopguard_site.settings")
os.environ.setdefault("LOOPGUARD_SECRET_KEY", "only to read the names of tables and columns")

import django  # noqa: E402

django.setup()

from detection.api.error_codes import ERROR_CODES  # noqa: E402
from detection.engine import fold  # noqa: E402
from detection.engine.calls import DECISIONS, Call, Message, Result  # noqa: E402
from detection.engine.detectors import DETECTORS, BaseDetector  # noqa: E402
from detection.engine.detectors.base import Example  # noqa: E402
from detection.engine.family import FamilyState  # noqa: E402
from detection.engine.field import AUTO, number_text  # noqa: E402
from detection.engine.fields import FIELDS, LADDERS, RUNGS, Field  # noqa: E402
from detection.engine.identity import Keyer  # noqa: E402
from detection.engine.memory import State  # noqa: E402
from detection.engine.policy import PRESETS, SESSION, environment_variables, resolve  # noqa: E402
from detection.engine.scopes import SCOPE_KINDS  # noqa: E402
from detection.engine.tool_classes import SHIPPED_CLASSES  # noqa: E402
from detection.engine.wire_shapes import ACTIONS  # noqa: E402
from detection.selectors.filters import FilterField, ListSpec  # noqa: E402
from detection.selectors.lists import LISTS  # noqa: E402
from detection.services.redaction.redaction import Redactor  # noqa: E402
from detection.services.redaction.secret_rules import RULES  # noqa: E402
from tests.services.redaction.secret_corpus import WITH_SECRET, WITHOUT_SECRET, halves  # noqa: E402

GROUPS = {"general": "General", "reactions": "Reactions"} | {one.kind: f"`{one.kind}`" for one in DETECTORS}


# Settings


def settings() -> str:
    """Return the settings reference."""
    lines = [
        "# Settings",
        "",
        "> Generated from the engine's list of settings by `.venv/bin/python docs/generate.py`.",
        "",
        f"An *override* sets some settings at a *scope*: {', '.join(SCOPE_KINDS)}, from the widest to the narrowest.",
        "For each setting the narrowest scope that sets it wins; `GET /api/v1/policy` names the scope that each value comes from. Values that",
        "no scope sets come from the preset. A change takes effect on the next call, on every process.",
        "",
        "An agent named `tag:NAME` stands for all agents with the [tag](api.md#tags-and-metadata), as in `PUT /agent-overrides/tag:checkout`. Such an",
        "override is wider than that of an agent itself; of several tags, the last in alphabetical order wins. Tags of sessions and keys do not count.",
        "",
        "A sub-agent, a session with a `parent_session`, also inherits from the session at the top of its tree (`top_session`) and from the",
        "agent of that session. The order is then, from the narrowest: its session, tool rules, its model, backend and agent, the top session,",
        "the agent of the top session, the project and the rest. A limit set for the agent that starts sub-agents holds for them, too.",
        "",
        "In the environment, the variable of a setting is `TOOL_LOOP_` and its name in capitals, as in `TOOL_LOOP_MAX_REPEATS`; that of",
        f"`enabled` is `{_variable('enabled')}`. LoopGuard does not start with a value that is not allowed, or with a variable that starts with",
        "`TOOL_LOOP_` and belongs to no setting; the message names it and the nearest one. An empty variable counts as absent.",
        f"{_names_of_one_scope()} A tool rule cannot contain {_names_not_of_tools()}.",
        "",
        "A limit *n* fires at the n-th occurrence. The column `standard` shows the value where no override sets one. The column `weaker` shows",
        "the direction that lets more calls through.",
        "",
        "A person who weakens detection in the console or the administration gives a reason, which is kept in the history and the audit.",
        "LoopGuard compares the effective settings before and after the change: a higher limit, a strict value removed, a preset with weaker",
        "values and a tool that becomes exempt all weaken detection. A program with a key of the scope `admin` may send a `note`; without one",
        "the audit says *no note given*. Settings of one session end with it and need no reason.",
        "",
        "An override or tool rule with an expiry ends by itself: the previously stored values take effect again, and the history says so.",
        "Every change can be tried on recorded sessions before it is saved; see [what-if.md](what-if.md).",
    ]
    for group, title in GROUPS.items():
        lines += [
            "",
            f"## {title}",
            "",
            "| setting | standard | allowed | weaker | meaning |",
            "| --- | --- | --- | --- | --- |",
        ]
        lines += [_setting(one) for one in FIELDS.values() if one.group == group]
    lines += ["", "## Named ladders", "", "| name | rungs |", "| --- | --- |"]
    lines += [f"| `{name}` | {', '.join(rungs)} |" for name, rungs in LADDERS.items()]
    lines += [
        "",
        f"Rungs, weakest first: {', '.join(f'`{rung}`' for rung in RUNGS)}; [reactions.md](reactions.md) describes them.",
        "",
        "`judge_or_ask` means the judge if one is configured, else a person if one attends, else a stop.",
    ]
    return "\n".join([*lines, ""])


def _variable(name: str) -> str:
    return next(variable for variable, setting in environment_variables().items() if setting == name)


def _names_of_one_scope() -> str:
    limited = (FIELDS[name] for name in FIELDS if name not in environment_variables().values())
    return " ".join(
        f"`{one.name}` is set by the server and cannot be set anywhere."
        if one.scopes == ("environment",)
        else f"`{one.name}` can be set for a {' or a '.join(one.scopes)} only."
        for one in limited
    )


def _names_not_of_tools() -> str:
    names = environment_variables().values()
    return _list(name for name in names if "tool" not in FIELDS[name].scopes)


def _list(names: Iterable[str]) -> str:
    return " or ".join(f"`{name}`" for name in names)


def _setting(one: Field) -> str:
    standard = _standard()
    known = f" Also accepted as {', '.join(f'`{alias}`' for alias in one.aliases)}." if one.aliases else ""
    return f"| `{one.name}` | {_value(standard[one.name])} | {_allowed(one)} | {_weaker(one)} | {one.label}. {one.help}{known} |"


def _weaker(one: Field) -> str:
    if one.type == "ladder":
        return "weaker rungs"
    return " → ".join(one.strictest_first) or one.weakens or ""


def _standard() -> dict[str, Any]:
    return {field.name: field.default for field in FIELDS.values()} | dict(PRESETS["standard"])


def _allowed(one: Field) -> str:
    if one.type == "bool":
        return "true, false"
    if one.type == "choice":
        return ", ".join(one.choices)
    if one.type == "ladder":
        return "a ladder's name, or rungs"
    unit = f" {one.unit}" if one.unit else ""
    word = f", or `{AUTO}`" if one.auto is not None else ""
    return f"{number_text(one.minimum)} to {number_text(one.maximum)}{unit}{word}"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ", ".join(value)
    return f"{value}"


# Tables of engine.md


def classes() -> str:
    """Return the table of tools that have a class by name."""
    lines = ["| class | names |", "| --- | --- |"]
    lines += [
        f"| `{name}` | {', '.join(f'`{tool}`' for tool in sorted(tools))} |"
        for name, tools in SHIPPED_CLASSES.items()
    ]
    return "\n".join(lines)


def presets() -> str:
    """Return what each preset sets beyond the defaults."""
    lines = ["| preset | values |", "| --- | --- |"]
    for name, values in PRESETS.items():
        said = ", ".join(
            f"`{field}` {_value(value)}" for field, value in values.items() if value != FIELDS[field].default
        )
        lines.append(f"| `{name}` | {said or 'the defaults'} |")
    return "\n".join(lines)


# Table of integrations.md


def actions() -> str:
    """Return what each integration does with each decision."""
    lines = [f"| `render` | {' | '.join(DECISIONS)} |", "| --- |" + " --- |" * len(DECISIONS)]
    lines += [
        f"| `{shape}` | {' | '.join(one.replace('_', ' ') for one in row)} |"
        for shape, row in ACTIONS.items()
    ]
    return "\n".join(lines)


# Tables of filters.md


def lists() -> str:
    """Return a section per list: its fields, orders and what words are searched for in."""
    return "\n\n".join(map(_list_section, LISTS.values()))


def _list_section(spec: ListSpec) -> str:
    names = ", ".join(f"`{key.name}`" for key in spec.sorts)
    orders = f" Orders: {names}; the first one, descending, is the standard." if len(spec.sorts) > 1 else ""
    standard = f" Without a filter in the address, it is `{spec.default_text}`." if spec.default_text else ""
    columns = {field.column: field.name for field in spec.fields}
    searched = ", ".join(columns.get(column, column) for column in spec.search)
    lines = [
        f"## {spec.words.capitalize()}",
        "",
        f"The range selects by *{spec.time_words.lower()}*. Words are searched for in: {searched}.{orders}{standard}",
        "",
        "| field | values | meaning |",
        "| --- | --- | --- |",
        *(f"| `{field.name}` | {_list_values(field)} | {field.help} |" for field in spec.fields),
    ]
    return "\n".join(lines)


def _list_values(field: FilterField) -> str:
    if field.type == "choice":
        return ", ".join(f"`{choice.value}`" for choice in field.choices)
    return "whole number" if field.is_whole else field.type


# Sections of detectors.md


def detectors() -> str:
    """Return a section per detector: documentation of its module, examples as pictures, settings."""
    return "\n\n".join(map(_section, DETECTORS))


def _section(detector: BaseDetector) -> str:
    title, _, text = (inspect.getdoc(sys.modules[type(detector).__module__]) or "").partition("\n")
    first, *others = [
        f"![{example.title}](images/strips/{name}.svg)" for name, example in detector.examples.items()
    ]
    standard = _standard()
    rows = [
        f"| `{one.name}` | {_value(standard[one.name])} | {one.label}. {one.help} |"
        for one in detector.settings
    ]
    table = "\n".join(["| setting | `standard` | meaning |", "| --- | --- | --- |", *rows])
    heading = f"## `{detector.kind}`: {title.strip().rstrip('.')}"
    return "\n\n".join([heading, first, text.strip("\n"), *others, table])


# Strips

EXAMPLES = {
    name: (detector, example) for detector in DETECTORS for name, example in detector.examples.items()
}
CELL, GAP, TOP = 22, 4, 8
HUES = (250, 20, 140, 320, 80, 190, 290, 50, 110, 220)
STYLE = (
    "text{font:600 11px system-ui,sans-serif;text-anchor:middle}.n{fill:#6b7280;font-weight:400;font-size:10px}"
    ".w{fill:none;stroke:#d97706;stroke-width:2}.s{fill:none;stroke:#dc2626;stroke-width:2.5}"
    ".new{fill:#16a34a}.same{fill:#9ca3af}.error{fill:#dc2626}.c{fill:#111827}"
    "@media(prefers-color-scheme:dark){.n{fill:#9ca3af}.w{stroke:#fbbf24}.s{stroke:#f87171}.new{fill:#4ade80}.error{fill:#f87171}}"
)


def strip(name: str) -> str:
    """Return a strip as SVG: a square per call, coloured by the call, with its result as a dot and its verdict as a frame."""
    example = EXAMPLES[name][1]
    cells = list(_cells(*EXAMPLES[name]))
    width = len(cells) * (CELL + GAP) + GAP
    hues = {
        letter: HUES[place % len(HUES)] for place, letter in enumerate(dict.fromkeys(one[0] for one in cells))
    }
    often = {letter for letter in hues if sum(1 for one in cells if one[0] == letter) > 1}
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="58" viewBox="0 0 {width} 58" role="img">',
        f"<title>{example.title}</title><style>{STYLE}</style>",
    ]
    for place, (letter, decision, result) in enumerate(cells):
        x = GAP + place * (CELL + GAP)
        fill = f"hsl({hues[letter]} 70% 78%)" if letter in often else "#d1d5db"
        parts.append(f'<rect x="{x}" y="{TOP}" width="{CELL}" height="{CELL}" rx="4" fill="{fill}"/>')
        parts.append(f'<text class="c" x="{x + CELL / 2:g}" y="{TOP + 15}">{letter}</text>')
        if decision != "allow":
            frame = "w" if decision == "warn" else "s"
            parts.append(
                f'<rect class="{frame}" x="{x - 1}" y="{TOP - 1}" width="{CELL + 2}" height="{CELL + 2}" rx="5"/>'
            )
            parts.append(f'<text class="n" x="{x + CELL / 2:g}" y="54">{decision}</text>')
        if result in ("new", "same", "error"):
            parts.append(f'<circle class="{result}" cx="{x + CELL / 2:g}" cy="{TOP + CELL + 7}" r="2.5"/>')
    return "\n".join([*parts, "</svg>", ""])


def _cells(detector: BaseDetector, example: Example) -> Iterator[tuple[str, str, str]]:
    policy = resolve([(SESSION, {detector.switch: True, **(example.values or {})})])
    keyer, family, states = Keyer(b"docs"), FamilyState("parent"), dict[str, State]()
    for number, one in enumerate(example.calls):
        state = states.setdefault(one.session, fold.new_state())
        if one.session:
            family.enter(one.session, "parent", one.session, (state.whole.ordinal + 1, 0, 0.0))
            state.family = family
        if not one.tool:
            said = Message(float(number), "assistant", number, str(one.arguments))
            yield one.letter, fold.observe_message(state, said, policy, keyer).verdict.decision, ""
            continue
        call = Call(
            number, one.tool, one.arguments, float(number), f"call-{number}", f"round-{number}", one.run,
            agent=one.agent,
        )  # fmt: skip
        before = fold.observe_call(state, call, policy, keyer)
        decision, result = before.verdict.decision, "pending"
        if one.result is not None and decision in ("allow", "warn"):
            after = fold.observe_result(
                state, Result(call.call_id, one.result, one.is_error, call.at, number), policy, keyer
            )
            result = after.cell.result if after.cell else "pending"
            decision = decision if decision != "allow" else after.verdict.decision
        yield one.letter, decision, result


# Writing


def pages() -> dict[Path, str]:
    """Return every generated file with its text."""
    engine = (DOCS / "engine.md").read_text()
    engine = _between(_between(engine, "tool classes", classes()), "presets", presets())
    page = (DOCS / "detectors.md").read_text()
    return {
        DOCS / "detectors.md": _between(page, "detectors", detectors()),
        DOCS / "errors.md": errors(),
        DOCS / "settings.md": settings(),
        DOCS / "redaction.md": _between((DOCS / "redaction.md").read_text(), "rules", redaction_rules()),
        DOCS / "engine.md": engine,
        DOCS / "integrations.md": _between((DOCS / "integrations.md").read_text(), "actions", actions()),
        DOCS / "filters.md": _between((DOCS / "filters.md").read_text(), "fields", lists()),
        DOCS / "promises.md": promises(),
        ROOT / "docker-compose.yml": containers(),
        **{DOCS / "images" / "strips" / f"{name}.svg": strip(name) for name in EXAMPLES},
    }


def errors() -> str:
    """Return the page of error codes."""
    lines = [
        "# Error codes",
        "",
        "The `code` of an [error of the API](api.md#errors), or of a rejected event of a batch, which is answered with 202. Codes are",
        "stable. The [gateway](gateway.md#what-is-forwarded) has codes of its own.",
        "",
        "| code | status | meaning |",
        "| --- | --- | --- |",
        *(f"| `{code}` | {status} | {text} |" for code, (status, text) in sorted(ERROR_CODES.items())),
    ]
    return "\n".join(lines) + "\n"


def redaction_rules() -> str:
    """Return the table of the rules of redaction, and how they do on the corpus."""
    lines = ["| mark | finds |", "| --- | --- |"]
    lines += [f"| `{rule.name}` | {rule.finds.replace('|', chr(92) + '|')} |" for rule in RULES]
    lines += [
        "| `field` | values of JSON fields whose name says so, of pairs of fields for a name and a value, and of the names of the project |",
        "| `seed-phrase` | seed phrases of wallets: 12 to 24 words of the English list of BIP 39 with a right checksum |",
        "| `base64` | base64 of a text in which one of the rules above finds a secret |",
        "| `pattern` | what a pattern of the project finds |",
    ]
    redactor = Redactor(b"k" * 32)
    pairs = [halves(text) for text in WITH_SECRET]
    found = sum(secret not in redactor.content(text) for text, secret in pairs)
    altered = sum(redactor.content(text) != text for text in WITHOUT_SECRET)
    lines += [
        "",
        f"On the corpus of the tests, `secret_corpus.py`, {found} of {len(pairs)} secrets are replaced (recall {found / len(pairs):.0%}) and",
        f"{altered} of {len(WITHOUT_SECRET)} texts without one are altered (false positives {altered / len(WITHOUT_SECRET):.0%}).",
    ]
    return "\n".join(lines)


def promises() -> str:
    """Return the page of promises: each with the tests whose mark names it."""
    proofs = tests_of_promises()
    rows = tomllib.loads((DOCS / "promises.toml").read_text())["promise"]
    page = (DOCS / "promises.md").read_text()
    for kind in ("rel", "sec", "j"):
        listed = [row for row in rows if row["id"].lower().startswith(f"{kind}-")]
        head = ["", "when", "then", "shown by"] if "when" in listed[0] else ["", "promise", "shown by"]
        lines = [_row(head), _row(["---"] * len(head))]
        for row in listed:
            shown = ". ".join(filter(None, [", ".join(proofs.pop(row["id"], [])), row.get("note", "")]))
            lines.append(_row([row[key] for key in ("id", "when", "then") if key in row] + [shown]))
        page = _between(page, kind, "\n".join(lines))
    if proofs:
        raise SystemExit(f"promises without a row: {', '.join(sorted(proofs))}")
    return page


def tests_of_promises() -> dict[str, list[str]]:
    """Return by promise the tests that are marked with it, in order of files and lines."""
    found: dict[str, list[str]] = {}
    for folder in (ROOT / "tests", ROOT / "clients" / "python" / "client_tests"):
        for file in sorted(folder.rglob("test_*.py")):
            text = file.read_text(encoding="utf-8")
            if "mark.promise(" not in text:
                continue
            base = ROOT / "tests" if folder.parent == ROOT else ROOT
            for node in ast.walk(ast.parse(text)):
                if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                    continue
                for mark in node.decorator_list:
                    if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.promise":
                        for promise in map(ast.literal_eval, mark.args):
                            found.setdefault(promise, []).append(f"`{file.relative_to(base)}::{node.name}`")
    return found


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |".replace("|  |", "| |")


def containers() -> str:
    """Return the environment of the containers, with the variable of every setting."""
    page = (ROOT / "docker-compose.yml").read_text()
    variables = "\n".join(f"    {name}:" for name in environment_variables())
    return _between(page, "settings", variables, "    # {}")


def _between(page: str, name: str, text: str, comment: str = "<!-- {} -->") -> str:
    before, mark, rest = page.partition(f"{comment.format(name)}\n")
    _, end, after = rest.partition(f"\n{comment.format(f'end {name}')}")
    if not mark or not end:
        raise SystemExit(f"a page lacks the marks named {name}")
    return f"{before}{mark}{text}{end}{after}"


def main() -> None:
    """Write the files, or compare them."""
    stale = [path for path, text in pages().items() if not path.exists() or path.read_text() != text]
    if "--check" not in sys.argv:
        for path, text in pages().items():
            path.write_text(text)
        return
    for path in stale:
        print(f"out of date: {path.relative_to(ROOT)}")
    sys.exit(1 if stale else 0)


if __name__ == "__main__":
    main()
