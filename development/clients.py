"""Runs the tests of the clients: those of the client itself here, those of each framework in an environment of its own.

Frameworks exclude each other's dependencies. Each has a file of pinned requirements; its environment is created with
`--install`, and without one its tests are skipped visibly.
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from development.environments import python_of
from development.test_server import running_server

TESTS = Path("clients/python/client_tests")
CLIENT = "client"


def run(root: Path, arguments: Sequence[str], running: Mapping[str, str] | None = None) -> int:
    """Run the tests of the clients against one server and return 1 if any failed.

    Parameters
    ----------
    root : Path
        The checkout.
    arguments : sequence of str
        `--install` creates missing environments and renews those of other requirements; names of frameworks, and
        `client` for the client itself, run only these; anything else is passed to pytest.
    running : mapping, optional
        What the ready file of a running server says; without one, a server of the checkout is started.
    """
    requirements = {
        file.stem: file for file in sorted((root / TESTS / "frameworks/requirements").glob("*.txt"))
    }
    chosen = [word for word in arguments if word in requirements]
    is_client = CLIENT in arguments or not chosen
    passed_on = [word for word in arguments if word not in (*requirements, CLIENT, "--install")]
    results: dict[str, str] = {}
    with contextlib.nullcontext(running) if running else running_server() as server:
        environment = {
            **os.environ,
            "LOOPGUARD_TEST_SERVER": json.dumps({"url": server["url"], "key": server["api_key"]}),
        }

        def test(python: str | Path, *what: str | Path) -> str:
            command = [python, "-m", "pytest", *what, *passed_on]
            status = subprocess.run(command, cwd=root, env=environment, check=False).returncode
            return "passed" if status == 0 else "FAILED"

        if is_client:
            results[CLIENT] = test(sys.executable, TESTS, f"--ignore={TESTS / 'frameworks'}")
        for name in chosen if CLIENT in arguments else chosen or requirements:
            python = python_of(name, requirements[name], install="--install" in arguments)
            results[name] = (
                test(python, TESTS / "frameworks" / f"test_{name}.py")
                if python
                else "SKIPPED: not installed; run `python3 manage.py test clients --install`"
            )
    print("\n".join(f"{name}: {result}" for name, result in results.items()), flush=True)
    return 1 if "FAILED" in results.values() else 0
