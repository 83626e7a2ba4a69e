"""A release: its checks, its files and its bill of materials. docs/releasing.md has the steps.

Does not belong here: tags and uploads, which a person does.
"""

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from detection import __version__
from development.package import build, installed, package
from development.vendoring import packages


def release(root: Path) -> int:
    """Check that the release is complete and write its files to `dist/`; return the exit status.

    Needs a package index and takes about two minutes.

    Parameters
    ----------
    root : Path
        The checkout.
    """
    if found := unready(root):
        print("\n".join(found), file=sys.stderr)
        return 1
    for step in (package, check_metadata, sbom):
        if status := step(root):
            return status
    print(f"LoopGuard {__version__} is ready. docs/releasing.md has the remaining steps.")
    return 0


def check_metadata(root: Path) -> int:
    """Check that a package index will accept and render what `package` built; return the exit status."""
    files = sorted((root / "dist").glob("loopguard_*"))
    return subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *files], check=False
    ).returncode


def sbom(root: Path) -> int:
    """Write the bill of materials of an installation to `dist/`; return the exit status."""
    with tempfile.TemporaryDirectory() as folder:
        wheel = build(root, Path(folder), "wheel")
        with installed(wheel, root / "requirements.lock") as environment:
            print(write_bill_of_materials(root, environment, root / "dist"))
    return 0


def unready(root: Path) -> list[str]:
    """Return why the checkout cannot be released yet, one sentence per reason."""
    found = []
    if not re.fullmatch(r"\d+\.\d+\.\d+", __version__):
        found.append(f"The version {__version__} in detection/__init__.py must be of the form 1.2.3.")
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if not changelog_section(changelog, __version__):
        found.append(f"CHANGELOG.md has no section `## {__version__} (YYYY-MM-DD)`.")
    if re.search(r"^## Unreleased\n\s*[^#\s]", changelog, re.MULTILINE):
        found.append(f"CHANGELOG.md has entries under `## Unreleased`: move them to {__version__}.")
    if _git(root, "status", "--porcelain"):
        found.append("The working tree has uncommitted changes.")
    if _git(root, "tag", "--list", f"v{__version__}"):
        found.append(f"The tag v{__version__} exists already.")
    return found


def changelog_section(text: str, version: str) -> str | None:
    """Return the entries of a version with a date; None where the changelog has no such section."""
    title = rf"^## {re.escape(version)} \(\d{{4}}-\d{{2}}-\d{{2}}\)\n(.*?)(?=^## |\Z)"
    section = re.search(title, text, re.MULTILINE | re.DOTALL)
    return section[1].strip() if section else None


def write_bill_of_materials(root: Path, environment: Path, folder: Path) -> Path:
    """Write the CycloneDX document of an installed environment, with the vendored browser code; return its path."""
    file = folder / f"loopguard-server-{__version__}.cdx.json"
    folder.mkdir(exist_ok=True)
    program = Path(sys.executable).with_name("cyclonedx-py")
    options: list[str | Path] = ["--pyproject", root / "pyproject.toml", "--output-reproducible", "-o", file]
    subprocess.run([program, "environment", environment / "bin" / "python", *options], check=True)
    document = json.loads(file.read_text(encoding="utf-8"))
    document["metadata"]["component"] |= {
        "version": __version__,
        "purl": f"pkg:pypi/loopguard-server@{__version__}",
    }
    vendored = list(vendored_components(root / "static"))
    document["components"] += vendored
    own = document["metadata"]["component"]["bom-ref"]
    for entry in document["dependencies"]:
        if entry["ref"] == own:
            entry["dependsOn"] = [*entry.get("dependsOn", []), *(one["bom-ref"] for one in vendored)]
    document["dependencies"] += [{"ref": one["bom-ref"]} for one in vendored]
    file.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return file


def vendored_components(static: Path) -> Iterator[dict[str, Any]]:
    """Yield a component for each package with vendored files, with these and their hashes."""
    for one in packages(static):
        yield {
            "type": "library",
            "bom-ref": one.purl,
            "name": one.name,
            "version": one.version,
            "purl": one.purl,
            "licenses": [{"license": {"id": one.licence}}],
            "components": [_file(static / path) for path in one.files if not path.endswith(".txt")],
        }


def _file(path: Path) -> dict[str, Any]:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return {"type": "file", "name": path.name, "hashes": [{"alg": "SHA-256", "content": digest}]}


def _git(root: Path, *arguments: str) -> str:
    command = ["git", *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.strip()
