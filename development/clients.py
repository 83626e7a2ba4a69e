"""Runs the tests of the clients: those of the client itself here, those of each framework in an environment of its own.

Frameworks exclude each other's dependencies. Each has a file of pinned requirements; its environment is created with
`--install`, and without one its tests are skipped visibly. So are those of the JavaScript client and of its frameworks,
which need Node.js and npm.
"""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from development.environments import python_of
from development.test_server import running_server

TESTS = Path("clients/python/client_tests")
CLIENT = "client"
JAVASCRIPT = {
    "javascript": Path("clients/javascript"),
    "javascript_frameworks": Path("clients/javascript/frameworks"),
}
"""Folders with a `package.json`, in the order in which they are built."""
SKIPPED = "SKIPPED: not installed; run `python3 manage.py test clients --install`"


def run(root: Path, arguments: Sequence[str], running: Mapping[str, str] | None = None) -> int:
    """Run the tests of the clients against one server and return 1 if any failed.

    Parameters
    ----------
    root : Path
        The checkout.
    arguments : sequence of str
        `--install` creates missing environments and renews those of other requirements; names of frameworks,
        `client` for the client itself, `javascript` and `javascript_frameworks` run only these; anything else is passed
        to pytest.
    running : mapping, optional
        What the ready file of a running server says; without one, a server of the checkout is started.
    """
    requirements = {
        file.stem: file for file in sorted((root / TESTS / "frameworks/requirements").glob("*.txt"))
    }
    known = (*requirements, *JAVASCRIPT)
    chosen = [word for word in arguments if word in known]
    is_client = CLIENT in arguments or not chosen
    is_install = "--install" in arguments
    passed_on = [word for word in arguments if word not in (*known, CLIENT, "--install")]
    results: dict[str, str] = {}
    with contextlib.nullcontext(running) if running else running_server() as server:
        environment = {
            **os.environ,
            "LOOPGUARD_TEST_SERVER": json.dumps(
                {"url": server["url"], "key": server["api_key"], "model_url": server["model_url"]}
            ),
        }

        def test(python: str | Path, *what: str | Path) -> str:
            command = [python, "-m", "pytest", *what, *passed_on]
            status = subprocess.run(command, cwd=root, env=environment, check=False).returncode
            return "passed" if status == 0 else "FAILED"

        # First the client in JavaScript: the cases that clients share need what it builds.
        for name in chosen if CLIENT in arguments else chosen or (*JAVASCRIPT, *requirements):
            if name in JAVASCRIPT:
                results[name] = _test_javascript(root / JAVASCRIPT[name], environment, install=is_install)
                continue
            python = python_of(name, requirements[name], install=is_install)
            results[name] = test(python, TESTS / "frameworks" / f"test_{name}.py") if python else SKIPPED
        if is_client:
            results[CLIENT] = test(sys.executable, TESTS, f"--ignore={TESTS / 'frameworks'}")
    print("\n".join(f"{name}: {result}" for name, result in results.items()), flush=True)
    return 1 if "FAILED" in results.values() else 0


def _test_javascript(folder: Path, environment: Mapping[str, str], *, install: bool) -> str:
    """Run the tests of a folder with a `package.json`, and say what became of them."""
    npm = shutil.which("npm")
    if npm is None:
        return "FAILED" if install and "CI" in os.environ else "SKIPPED: `npm` is not on the PATH"
    commands = [["test"]]
    if install and not _is_built(folder):
        commands = [["ci", "--no-audit", "--no-fund"], ["run", "--if-present", "build"], *commands]
    elif not (folder / "node_modules").is_dir():
        return SKIPPED
    for command in commands:
        if subprocess.run([npm, *command], cwd=folder, env=environment, check=False).returncode != 0:
            return "FAILED"
    return "passed"


def _is_built(folder: Path) -> bool:
    """Return whether what npm installs and builds is newer than what it is made of: CI builds it first."""
    made = [folder / "node_modules" / ".package-lock.json"]
    sources = [folder / "package-lock.json", *(folder / "src").rglob("*")]
    if len(sources) > 1:
        made.append(folder / "dist" / "index.js")
    if not all(one.exists() for one in made):
        return False
    return max(one.stat().st_mtime for one in sources) < min(one.stat().st_mtime for one in made)
