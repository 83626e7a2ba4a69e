"""The environment that `manage.py` runs in: `.venv`, created from a lock file.

Runs before anything is installed, so it imports the standard library alone.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import urllib.request
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
MEGABYTES = {"requirements.lock": 250, "requirements-dev.lock": 700, "requirements-release.lock": 750}
"""What the packages of each lock file take on the disk, rounded up."""
# Each lock contains everything in the one before it.
LOCKS = tuple(ROOT / name for name in MEGABYTES)
# For a Python without pip, as on a bare Debian: this file is downloaded from the package index.
PIP_WHEEL = "pip-26.3-py3-none-any.whl"
PIP_WHEEL_SHA256 = "f3b60b20ffaadd4415ed7957212a38ac63fa4c5fa375bd0f4a797777940fad13"


def enter_environment(name: str) -> None:
    """Install the packages of a lock file into `.venv` and continue in it; returns only when already inside."""
    if sys.version_info < (3, 11):
        sys.exit(f"LoopGuard needs Python 3.11 or newer; this is {sys.version.split()[0]}.")
    lock = ROOT / name
    # Locking the folder itself leaves no file behind; a second start finds the work done.
    folder = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if not is_installed(lock):
            try:
                install(lock)
            except OSError as problem:
                sys.exit(f"The packages could not be installed: {problem}.")
    finally:
        os.close(folder)
    if not is_inside():
        sys.stdout.flush()
        os.execv(PYTHON, [str(PYTHON), *sys.argv])


def is_inside() -> bool:
    """Tell whether this process runs in `.venv`."""
    return VENV.exists() and Path(sys.prefix).samefile(VENV)


def is_installed(lock: Path) -> bool:
    """Tell whether `.venv` was created from this lock file and still has its packages."""
    stamp = stamp_of(lock)
    if not (PYTHON.exists() and stamp.exists() and stamp.read_text(encoding="utf-8") == digest_of(lock)):
        return False
    # A system update may have replaced Python by a version that looks in another folder.
    return not is_inside() or Path(sysconfig.get_path("purelib")).is_dir()


def install(lock: Path) -> None:
    """Create or update `.venv` from a lock file with hashes."""
    print(f"Setting up {VENV} from {lock.name} (about 20 s the first time) ...", file=sys.stderr, flush=True)
    if not python_is_whole():
        free = shutil.disk_usage(ROOT).free // 1024**2
        if free < MEGABYTES[lock.name]:
            sys.exit(
                f"The disk of {ROOT} has {free} MB of free space, and the packages need {MEGABYTES[lock.name]} MB. "
                "Free some space and start again."
            )
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
        sys.exit("The packages could not be installed; see pip's message above. The next start tries again.")
    for done in LOCKS[: LOCKS.index(lock) + 1]:
        stamp_of(done).write_text(digest_of(done), encoding="utf-8")


def python_is_whole() -> bool:
    """Tell whether the Python in `.venv` runs and finds its packages."""
    script = "import os, sys, sysconfig; sys.exit(not os.path.isdir(sysconfig.get_path('purelib')))"
    return PYTHON.exists() and quietly(PYTHON, "-c", script)


def pip_command() -> list[str | Path]:
    """Return a command that runs a pip for `.venv`: its own, a downloaded one, or that of ensurepip.

    The downloaded one is twice as fast as those of older Pythons.
    """
    if quietly(PYTHON, "-m", "pip", "--version"):
        return [PYTHON, "-m", "pip"]
    wheel = VENV / PIP_WHEEL
    if wheel.exists() or fetch_pip(wheel):
        return [PYTHON, wheel / "pip"]  # pip runs from its wheel
    if quietly(PYTHON, "-m", "ensurepip"):
        return [PYTHON, "-m", "pip"]
    sys.exit(
        "This Python has no pip, and none could be downloaded. Install python3-venv (or python3-pip) and start again."
    )


def fetch_pip(wheel: Path) -> bool:
    """Download the pinned version of pip from the package index; tell whether that succeeded."""
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
    """Run a command without its output; tell whether it succeeded."""
    return (
        subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode
        == 0
    )


def stamp_of(lock: Path) -> Path:
    """Return the file in `.venv` with the digest of the installed `lock`."""
    return VENV / f"{lock.name}.installed"


def digest_of(lock: Path) -> str:
    """Return the digest of a lock file."""
    return hashlib.sha256(lock.read_bytes()).hexdigest()
