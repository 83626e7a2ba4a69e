#!/usr/bin/env python3
"""LoopGuard's command line.

Run it with any Python from 3.11 on: it makes its own `.venv` from the lock file when that is
missing or out of date, goes on inside it, and hands over to the command. Only the standard
library may be used before that. `LOOPGUARD_BOOTSTRAP=0` makes it run as it was started.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import sysconfig
import urllib.request
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
RUNTIME_LOCK = ROOT / "requirements.lock"
DEVELOPMENT_LOCK = ROOT / "requirements-dev.lock"
RELEASE_LOCK = ROOT / "requirements-release.lock"
# Each lock holds everything that the one before it holds.
LOCKS = (RUNTIME_LOCK, DEVELOPMENT_LOCK, RELEASE_LOCK)
DEVELOPMENT_COMMANDS = {
    **dict.fromkeys(("test", "check_all", "coverage", "package"), DEVELOPMENT_LOCK),
    **dict.fromkeys(("lock", "sbom", "release"), RELEASE_LOCK),
}
# For a Python that brings no pip of its own, as on a bare Debian: this very file from the package index.
PIP_WHEEL = "pip-26.3-py3-none-any.whl"
PIP_WHEEL_SHA256 = "f3b60b20ffaadd4415ed7957212a38ac63fa4c5fa375bd0f4a797777940fad13"


def main() -> None:
    """Set up what is missing and run the command."""
    command = sys.argv[1] if len(sys.argv) > 1 else "help"
    if os.environ.get("LOOPGUARD_BOOTSTRAP") != "0":
        enter_environment(DEVELOPMENT_COMMANDS.get(command, RUNTIME_LOCK))
    # Child processes are already in the right environment.
    os.environ["LOOPGUARD_BOOTSTRAP"] = "0"
    if command in DEVELOPMENT_COMMANDS:
        from development.commands import COMMANDS

        sys.exit(COMMANDS[command](sys.argv[2:]))
    from loopguard_site.command_line import main as run_command

    run_command()


def enter_environment(lock: Path) -> None:
    """Make `.venv` hold what `lock` names and go on in it; returns only when already inside."""
    if sys.version_info < (3, 11):
        sys.exit(f"LoopGuard needs Python 3.11 or newer; this is {sys.version.split()[0]}.")
    # Locking the folder itself leaves no file behind; whoever comes second finds the work done.
    folder = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if not is_installed(lock):
            install(lock)
    finally:
        os.close(folder)
    if not is_inside():
        sys.stdout.flush()
        os.execv(PYTHON, [str(PYTHON), *sys.argv])


def is_inside() -> bool:
    """Tell whether this process runs in `.venv`."""
    return VENV.exists() and Path(sys.prefix).samefile(VENV)


def is_installed(lock: Path) -> bool:
    """Tell whether `.venv` was made from this very lock file and still has its packages."""
    stamp = stamp_of(lock)
    if not (PYTHON.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == digest_of(lock)):
        return False
    # A system update may have put another Python under the same name, which looks in another folder.
    return not is_inside() or Path(sysconfig.get_path("purelib")).is_dir()


def install(lock: Path) -> None:
    """Make `.venv`, or bring it up to date, from a lock file with hashes."""
    print(f"Setting up {VENV} from {lock.name} (about 20 s the first time) ...", file=sys.stderr, flush=True)
    if not python_is_whole():
        venv.create(VENV, clear=VENV.exists(), symlinks=True)  # without pip: that is half the time
    command = [
        *pip_command(),
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "--no-input",
        "--no-compile",
    ]
    command += ["-r", lock]
    if subprocess.run(command, env={**os.environ, "PIP_USER": "0"}, check=False).returncode != 0:
        sys.exit("The packages could not be installed; pip said why. Start again to go on from there.")
    for done in LOCKS[: LOCKS.index(lock) + 1]:
        stamp_of(done).write_text(digest_of(done), encoding="utf-8")


def python_is_whole() -> bool:
    """Tell whether `.venv` has a Python that runs and finds its own packages."""
    script = "import os, sys, sysconfig; sys.exit(not os.path.isdir(sysconfig.get_path('purelib')))"
    return PYTHON.exists() and quietly(PYTHON, "-c", script)


def pip_command() -> list[str | Path]:
    """Return how to call a pip that installs into `.venv`: its own, a known one, or the one Python brings.

    The known one is twice as fast as what older Pythons bring, and some bring none.
    """
    if quietly(PYTHON, "-m", "pip", "--version"):
        return [PYTHON, "-m", "pip"]
    wheel = VENV / PIP_WHEEL
    if wheel.exists() or fetch_pip(wheel):
        return [PYTHON, wheel / "pip"]  # a wheel of pip runs as it is
    if quietly(PYTHON, "-m", "ensurepip"):
        return [PYTHON, "-m", "pip"]
    sys.exit(
        "This Python has no pip, and none could be fetched. Install python3-venv (or python3-pip) and start again."
    )


def fetch_pip(wheel: Path) -> bool:
    """Take one known version of pip from the package index; tell whether that went well."""
    index = os.environ.get("PIP_INDEX_URL", "https://pypi.org/simple").rstrip("/")
    request = urllib.request.Request(
        f"{index}/pip/", headers={"Accept": "application/vnd.pypi.simple.v1+json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            address = next(
                file["url"] for file in json.load(answer)["files"] if file["filename"] == PIP_WHEEL
            )
        with urllib.request.urlopen(address, timeout=10) as answer:
            content = answer.read()
    except (OSError, ValueError, LookupError, StopIteration):
        return False
    if hashlib.sha256(content).hexdigest() != PIP_WHEEL_SHA256:
        return False
    partial = wheel.with_name(f"{wheel.name}.partial")
    partial.write_bytes(content)
    partial.replace(wheel)
    return True


def quietly(*command: str | Path) -> bool:
    """Run a command without its output; tell whether it went well."""
    return (
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode
        == 0
    )


def stamp_of(lock: Path) -> Path:
    """Return the file in `.venv` that says which content of `lock` was installed."""
    return VENV / f"{lock.name}.installed"


def digest_of(lock: Path) -> str:
    """Return the digest of a lock file."""
    return hashlib.sha256(lock.read_bytes()).hexdigest()


if __name__ == "__main__":
    main()
