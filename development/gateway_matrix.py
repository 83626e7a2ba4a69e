"""Runs the clients of the gateway: real SDKs, each in an environment of its own, against a scripted model server.

Environments are created with `--install`; without one its clients are skipped visibly.
"""

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from development.environments import node_folder_of, python_of
from development.suite import kept_bytecode, pytest_command

TESTS = (
    "tests/gateway/test_client_matrix.py",
    "tests/gateway/test_client_faults.py",
    "tests/gateway/test_client_programs.py",
)
SDKS = Path("tests/gateway/sdks")
OF_CLIENTS = Path("clients/python/client_tests/frameworks/requirements")
# openai 3.x is a part of an environment that the tests of the clients have.
PYTHON_ENVIRONMENTS = {
    "openai_2": ("gateway_openai_2", SDKS / "environments" / "openai_2.txt"),
    "openai_3": ("openai_agents", OF_CLIENTS / "openai_agents.txt"),
    "anthropic": ("gateway_anthropic", SDKS / "environments" / "anthropic.txt"),
    "google": ("gateway_google", SDKS / "environments" / "google.txt"),
    "langchain": ("gateway_langchain", SDKS / "environments" / "langchain.txt"),
    "mini_swe": ("gateway_mini_swe", SDKS / "environments" / "mini_swe.txt"),
    "smolagents": ("gateway_smolagents", SDKS / "environments" / "smolagents.txt"),
    "instructor": ("gateway_instructor", SDKS / "environments" / "instructor.txt"),
}
AI_SDK = "ai_sdk"


def run(root: Path, arguments: Sequence[str]) -> int:
    """Run the matrix and return pytest's exit status.

    Parameters
    ----------
    root : Path
        The checkout.
    arguments : sequence of str
        `--install` creates missing environments and renews those of other requirements; names of environments run only
        these; anything else is passed to pytest.
    """
    names = [*PYTHON_ENVIRONMENTS, AI_SDK]
    chosen = [word for word in arguments if word in names] or names
    passed_on = [word for word in arguments if word not in names and word != "--install"]
    install = "--install" in arguments
    commands: dict[str, dict[str, object]] = {}
    for name in chosen:
        command = _ai_sdk(root, install=install) if name == AI_SDK else _python(root, name, install=install)
        if command:
            commands[name] = command
    status = 0
    if commands:
        environment = {**os.environ, **kept_bytecode(), "LOOPGUARD_GATEWAY_CLIENTS": json.dumps(commands)}
        pytest = pytest_command(root, [*TESTS, *passed_on])
        status = subprocess.run(pytest, cwd=root, env=environment, check=False).returncode
    missing = (
        "SKIPPED: not installed; run `python3 manage.py test gateway-matrix --install` (the AI SDK needs npm)"
    )
    result = "passed" if status == 0 else "part of a run that FAILED"
    print("\n".join(f"{name}: {result if name in commands else missing}" for name in chosen), flush=True)
    return status


def _python(root: Path, name: str, *, install: bool) -> dict[str, object] | None:
    """Return how the agents of a Python environment are started."""
    environment, requirements = PYTHON_ENVIRONMENTS[name]
    python = python_of(environment, root / requirements, install=install)
    script = root / SDKS / f"on_{name.split('_')[0]}.py"
    return {"command": [str(python), str(script)], "folder": str(root)} if python else None


def _ai_sdk(root: Path, *, install: bool) -> dict[str, object] | None:
    """Return how the agents on the AI SDK are started: Node.js finds packages from its working directory."""
    folder = node_folder_of("gateway_ai_sdk", root / SDKS / "environments" / "ai_sdk.json", install=install)
    script = (root / SDKS / "on_ai_sdk.mjs").read_text(encoding="utf-8")
    command = ["node", "--input-type=module", "--eval", script]
    return {"command": command, "folder": str(folder)} if folder else None
