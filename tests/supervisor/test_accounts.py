"""Started by root: the accounts of what runs, and folders that these cannot enter."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from loopguard_site.supervisor.accounts import account_of_processes, account_of_servers
from loopguard_site.supervisor.homes import known_home
from tests.support.transcripts import claude_code, lines

from .running import ROOT, descendants, running_in

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root runs processes as other accounts")
CODE = ("manage.py", "loopguard_site", "detection", "templates", "static")


@pytest.fixture
def closed() -> Iterator[Path]:
    """A folder like the home of root, which no other account can enter."""
    folder = Path(tempfile.mkdtemp(prefix="lg-home-"))
    yield folder
    assert folder.stat().st_mode & 0o777 == 0o700
    for kind in ("data", "data/postgres", "data/valkey"):
        if (home := known_home(folder / kind)) != folder / kind:
            shutil.rmtree(home)
    shutil.rmtree(folder)


def uids(up: subprocess.Popen[bytes]) -> dict[str, int]:
    """Return the user of each process below the supervisor, by a word of its command."""
    found: dict[Any, Any] = {}
    for pid in descendants(up.pid)[1:]:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        names = [name for name in ("granian", "live", "worker", "beat", "postgres", "valkey-server") if
                 any(word.decode().endswith(name) for word in words)]  # fmt: skip
        found |= {name: Path(f"/proc/{pid}").stat().st_uid for name in names[:1]}
    return found


def copy_code(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    for name in CODE:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, folder / name)


def imported(ready: dict[str, str]) -> str:
    """Upload a transcript and return the state of the import when it has ended."""
    key = {"Authorization": f"Bearer {ready['api_key']}", "Content-Type": "application/x-ndjson"}
    with httpx.Client(base_url=f"{ready['url']}/api/v1", headers=key, timeout=30) as client:
        made = client.post(
            "/imports", params={"kind": "claude-code"}, content=lines(claude_code(["make test"] * 8))
        ).json()
        deadline = time.monotonic() + 60
        while (state := client.get(f"/imports/{made['id']}").json()["state"]) in ("waiting", "running"):
            assert time.monotonic() < deadline
            time.sleep(0.2)
    return state


def test_code_and_data_below_the_home_of_root_work_and_no_process_that_agents_reach_is_roots(closed):
    if subprocess.run(
        ["unshare", "--mount", "true"], capture_output=True, timeout=10, check=False
    ).returncode:
        pytest.skip("this account may not mount")
    copy_code(closed / "checkout")
    # Each of the processes would compile all of it: the suite's cache has the modules of this checkout only.
    compiler = [sys.executable, "-m", "compileall", "-q", closed / "checkout"]
    subprocess.run(compiler, timeout=120, check=True, umask=0o022)
    # What the processes of root left in the data folder of an older version.
    data = closed / "data"
    (data / "imports").mkdir(parents=True, mode=0o700)
    (data / "imports" / "arriving-1").write_text("half of a file")
    (data / "worker.heartbeat").touch(0o600)
    with running_in("lg-") as run:
        run.data, run.root, run.umask = data, closed / "checkout", 0o077
        up, ready = run.start()
        servers = account_of_servers().uid
        own = account_of_processes(account_of_servers()).uid
        time.sleep(1)  # beat is the last
        assert uids(up) == {
            **dict.fromkeys(("granian", "live", "worker", "beat"), own),
            **dict.fromkeys(("postgres", "valkey-server"), servers),
        }
        assert imported(ready) == "finished"
        assert httpx.get(f"{ready['url']}/static/css/frame.css", timeout=30).status_code == 200
        assert (known_home(data) / "imports" / "arriving-1").stat().st_uid == own
        assert not (data / "imports").exists()
        up.terminate()
        assert up.wait(60) == 0

        # The folder that was chosen is found again.
        up, again = run.start()
        with httpx.Client(headers={"Authorization": f"Bearer {ready['api_key']}"}, timeout=30) as client:
            assert len(client.get(f"{again['url']}/api/v1/imports").json()["items"]) == 1


def test_code_that_no_mount_can_open_is_refused_before_anything_is_made(closed, run):
    copy_code(closed)
    run.root = closed
    said = run.refused()
    assert f"cannot read {closed}." in said
    assert "as an ordinary user" in said
    assert not run.data.exists()


@pytest.mark.parametrize("kind", ["of root", "below a closed one", "not there yet, below a closed one"])
def test_a_folder_for_uploads_that_the_processes_cannot_use_is_refused_before_anything_is_made(
    closed, run, kind
):
    folder = closed if kind == "of root" else closed / "uploads"
    if kind == "below a closed one":
        folder.mkdir()
    said = run.refused(LOOPGUARD_IMPORT_FOLDER=str(folder))
    assert not run.data.exists()
    assert str(closed) in said
    assert "LOOPGUARD_IMPORT_FOLDER" in said


@pytest.mark.parametrize("named", ["", "/named"])
def test_compiled_modules_are_in_a_folder_of_the_account_unless_one_is_named(named):
    program = (
        "from types import SimpleNamespace as S; from loopguard_site.supervisor.runtime_folder import *\n"
        "print(process_environment(S(account=S(environment=dict)), Path('/runtime')).get('PYTHONPYCACHEPREFIX'))"
    )
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": named}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout.strip() == ("None" if named else "/runtime/bytecode")
