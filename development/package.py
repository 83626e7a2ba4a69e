"""The distribution: build, inspect, install into an empty environment and run it.

Does not belong here: the content of the distribution, which pyproject.toml names.
"""

import contextlib
import re
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import httpx

from development import clients
from development.own_environment import pip_command
from development.test_server import running_server

PACKAGES = ("detection", "loopguard_site")
ASSETS = ("templates", "static")
CLIENT = Path("clients/python")
CLIENT_IN_WHEEL = "loopguard_site/assets/client/loopguard_client-"
_SECONDS = 20.0


def package(root: Path, tested: Sequence[str] | None = None) -> int:
    """Build sdist and wheel of server and client into `dist/`, then install and run them; return the exit status.

    Needs a package index. Takes about a minute, most of it for the installation.

    Parameters
    ----------
    root : Path
        The checkout.
    tested : sequence of str, optional
        Arguments of `test clients`, which then runs on the installed server.
    """
    dist = root / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    client = build(root / CLIENT, dist)
    wheel = build(root, dist)
    if found := problems(root, wheel):
        print("\n".join(found), file=sys.stderr)
        return 1
    with installed(wheel, root / "requirements.lock", client) as environment:
        status = try_out(root, environment, tested)
    if status == 0:
        print(f"In {dist}: {', '.join(sorted(file.name for file in dist.iterdir()))}")
    return status


def build(root: Path, folder: Path, *targets: str) -> Path:
    """Build into `folder` and return the wheel.

    Parameters
    ----------
    root : Path
        The checkout, or an unpacked sdist.
    folder : Path
        Created when missing.
    targets : str
        `wheel`, `sdist` or both; both by default.
    """
    chosen = [word for target in targets for word in ("-t", target)]
    subprocess.run([sys.executable, "-m", "hatchling", "build", "-d", folder, *chosen], cwd=root, check=True)
    return max(folder.glob("*.whl"), key=lambda file: file.stat().st_mtime_ns)


def problems(root: Path, wheel: Path) -> list[str]:
    """Return what is missing from the wheel or should not be in it, one sentence per file."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        packed = {
            name for name in names if ".dist-info/" not in name and not name.startswith(CLIENT_IN_WHEEL)
        }
        packed_client = [name for name in names if name.startswith(CLIENT_IN_WHEEL)]
    expected = set(source_files(root, PACKAGES))
    expected |= {f"loopguard_site/assets/{name}" for name in source_files(root, ASSETS)}
    return [
        *(f"{name} is missing from the wheel." for name in sorted(expected - packed)),
        *(f"{name} should not be in the wheel." for name in sorted(packed - expected)),
        *([] if len(packed_client) == 1 else ["The wheel must contain one wheel of the client."]),
    ]


def source_files(root: Path, folders: Iterable[str]) -> list[str]:
    """Return the files in some folders of the checkout, as paths relative to it, without bytecode."""
    return [
        str(file.relative_to(root))
        for folder in folders
        for file in sorted((root / folder).rglob("*"))
        if file.is_file() and "__pycache__" not in file.parts
    ]


@contextlib.contextmanager
def installed(wheel: Path, lock: Path, *others: Path) -> Iterator[Path]:
    """Install a wheel with the locked dependencies, and wheels without any, into a new environment; removed at the end.

    Raises
    ------
    subprocess.CalledProcessError
        pip failed, or a requirement of the wheel is not in the lock.
    """
    folder = Path(tempfile.mkdtemp(prefix="loopguard-package-"))
    folder.chmod(0o711)  # the servers' unprivileged account must pass through
    try:
        environment = folder / "environment"
        venv.create(environment, symlinks=True)
        pip = [*pip_command(), "--python", environment / "bin" / "python", "--quiet"]
        install = ["install", "--no-compile"]  # most modules are never imported
        for arguments in ([*install, "-r", lock], [*install, "--no-deps", wheel, *others], ["check"]):
            subprocess.run([*pip, *arguments], check=True)
        yield environment
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def try_out(root: Path, environment: Path, tested: Sequence[str] | None = None) -> int:
    """Start and stop an installation from an empty folder, and run the client's command; return the exit status.

    Parameters
    ----------
    root : Path
        The checkout.
    environment : Path
        The environment with server and client.
    tested : sequence of str, optional
        Arguments of `test clients`, which runs on this installation.
    """
    empty = environment.parent / "empty"
    empty.mkdir()
    with running_server([environment / "bin" / "loopguard-server"], empty) as server:
        found = list(defects(server))
        status = clients.run(root, tested, server) if tested and not found else 0
    with contextlib.suppress(httpx.TransportError):
        httpx.get(f"{server['url']}/healthz")
        found.append("The server still answers after it ended.")
    help_text: list[str | Path] = [environment / "bin" / "loopguard", "--help"]
    status = status or subprocess.run(help_text, cwd=empty, stdout=subprocess.DEVNULL, check=False).returncode
    if left := [file.name for file in empty.iterdir()]:
        found.append(f"Files were left in the working folder: {', '.join(left)}.")
    if found:
        print("\n".join(found), file=sys.stderr)
        return 1
    return status


def defects(server: Mapping[str, str]) -> Iterator[str]:
    """Yield what a new installation does wrong with identical calls and with the style sheet of its sign-in page."""
    with httpx.Client(base_url=server["url"], follow_redirects=True, timeout=_SECONDS) as client:
        decisions = []
        for number in range(4):
            call = {"call_id": f"call_{number}", "tool": "search_web", "arguments": {"q": "reset password"}}
            answer = client.post(
                "/api/v1/guard",
                json={"session": "fresh", "calls": [call]},
                headers={"Authorization": f"Bearer {server['api_key']}"},
            )
            decisions.append(answer.raise_for_status().json()["decision"])
        print(f"Decisions about four identical calls: {', '.join(decisions)}.", flush=True)
        if decisions != ["allow", "allow", "allow", "block"]:
            yield "The fourth of four identical calls must be blocked, and no other."
        sheet = re.search(r'/static/css/[a-z]+[^"]*\.css', client.get("/").raise_for_status().text)
        if not sheet or "{" not in client.get(sheet[0]).raise_for_status().text:
            yield "The sign-in page has no style sheet."
