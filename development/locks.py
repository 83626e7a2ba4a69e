"""The lock files: creates and checks them.

Each contains all pins of the one before it, so one environment serves all of them.
"""

import itertools
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

GROUPS: dict[str, tuple[str, ...]] = {
    "requirements.lock": (),
    "requirements-dev.lock": ("dev",),
    "requirements-release.lock": ("dev", "release"),
}
"""Dependency groups of each lock file, smallest file first."""
_COMPILE = (
    "uv",
    "pip",
    "compile",
    "--quiet",
    "--universal",
    "--generate-hashes",
    "--no-annotate",
    "--no-header",
)
_INPUT = ("--python-version", "3.11", "--extra", "embedded", "pyproject.toml")
_PIN = re.compile(r"^([a-z0-9-]+)(?:\[.*?\])?==(\S+)", re.MULTILINE)


def renew(root: Path, *, upgrade: bool = False, packages: Sequence[str] = ()) -> int:
    """Compile all lock files from the ranges in `pyproject.toml` and print what changed.

    Parameters
    ----------
    root : Path
        The checkout.
    upgrade : bool
        Take the newest versions that the ranges allow; otherwise only what a changed range demands.
    packages : sequence of str
        Packages to upgrade alone.

    Returns
    -------
    int
        The exit status of the first call of uv that failed, else 0.
    """
    choice = ["--upgrade"] if upgrade else [word for name in packages for word in ("--upgrade-package", name)]
    constraints: list[str] = []
    for name, groups in GROUPS.items():
        before = pins((root / name).read_text(encoding="utf-8")) if (root / name).exists() else {}
        chosen = [word for group in groups for word in ("--group", group)]
        command = [sys.executable, "-m", *_COMPILE, *_INPUT, *chosen, *constraints, *choice, "-o", name]
        status = subprocess.run(command, cwd=root, check=False).returncode
        if status != 0:
            return status
        # The next file takes the versions of this one.
        constraints = ["--constraints", name]
        after = pins((root / name).read_text(encoding="utf-8"))
        for change in changes(before, after) if before else [f"{len(after)} packages"]:
            print(f"{name}: {change}")
    return 0


def pins(text: str) -> dict[str, str]:
    """Return version by package of a lock file's text; several versions are joined by a comma."""
    found: dict[str, list[str]] = {}
    for name, version in _PIN.findall(text):
        found.setdefault(name, []).append(version)
    return {name: ", ".join(sorted(versions)) for name, versions in found.items()}


def changes(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return one line per package that was added, removed or changed."""
    return [
        f"{name} {before.get(name, 'added')} -> {after.get(name, 'removed')}"
        for name in sorted(before.keys() | after.keys())
        if before.get(name) != after.get(name)
    ]


def problems(texts: Mapping[str, str]) -> list[str]:
    """Return what is wrong with the lock files, one sentence each.

    Parameters
    ----------
    texts : mapping
        Content by file name, smallest file first.
    """
    found = [
        f"{package}=={version} is in {smaller} and not in {larger}."
        for smaller, larger in itertools.pairwise(texts)
        for package, version in sorted(set(_PIN.findall(texts[smaller])) - set(_PIN.findall(texts[larger])))
    ]
    found += [f"{name} contains an address." for name, text in texts.items() if "://" in text]
    found += [f"{name} has no hashes." for name, text in texts.items() if "--hash=sha256:" not in text]
    return found


if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    sentences = problems({name: (root / name).read_text(encoding="utf-8") for name in GROUPS})
    print("\n".join(sentences) or "The lock files agree.")
    sys.exit(1 if sentences else 0)
