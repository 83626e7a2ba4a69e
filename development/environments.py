"""Environments of packages whose dependencies conflict: each has pinned requirements; `--install` creates it."""

import json
import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

from development.own_environment import pip_command


def environment_folder(name: str) -> Path:
    """Return the folder of an environment, in `.venv` or where `LOOPGUARD_FRAMEWORKS` says."""
    return Path(os.environ.get("LOOPGUARD_FRAMEWORKS") or Path(sys.prefix, "frameworks")) / name


def python_of(name: str, requirements: Path, *, install: bool) -> Path | None:
    """Return the Python of an environment, if it is installed.

    Parameters
    ----------
    name : str
        The environment.
    requirements : Path
        Its pinned packages.
    install : bool
        Create it, if it is missing or has other requirements.
    """
    folder = environment_folder(name)
    python, stamp = folder / "bin" / "python", folder / "requirements.txt"
    if install and not (stamp.exists() and stamp.read_bytes() == requirements.read_bytes()):
        venv.create(folder, clear=True, symlinks=True)
        pip = [*pip_command(), "--python", python, "--quiet", "install", "--no-compile", "-r", requirements]
        subprocess.run(pip, check=True)
        stamp.write_bytes(requirements.read_bytes())
    return python if python.exists() else None


def node_folder_of(name: str, requirements: Path, *, install: bool) -> Path | None:
    """Return a folder with `node_modules`, if it is installed and there is a Node.js.

    Parameters
    ----------
    name : str
        The environment.
    requirements : Path
        Its `package.json`.
    install : bool
        Create it with npm, if it is missing or has other requirements. Without npm nothing is installed.
    """
    folder = environment_folder(name)
    stamp, npm = folder / "requirements.json", shutil.which("npm")
    if install and npm and not (stamp.exists() and stamp.read_bytes() == requirements.read_bytes()):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        (folder / "package.json").write_text(
            json.dumps(json.loads(requirements.read_text())), encoding="utf-8"
        )
        subprocess.run(
            [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=folder, check=True
        )
        stamp.write_bytes(requirements.read_bytes())
    return folder if stamp.exists() and shutil.which("node") else None
