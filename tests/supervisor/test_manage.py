"""`manage.py` makes its own environment. Tried on a tree with empty lock files, away from any package index."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .running import volume

ROOT = Path(__file__).resolve().parents[2]
SAY_WHERE = "import sys\ndef where(arguments):\n    print(sys.prefix, *arguments)\n    return 7\n"
COMMAND_LINE = f"{SAY_WHERE}def main():\n    sys.exit(where(sys.argv[2:]))\n"
LOCKS = ("requirements.lock", "requirements-dev.lock", "requirements-release.lock")
DEVELOPMENT = f"{SAY_WHERE}COMMANDS = dict.fromkeys(('test', 'lock'), where)\n"


@pytest.fixture(scope="module")
def first_run(tmp_path_factory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A checkout whose commands print their environment, and its first run: on an environment whose Python is gone."""
    folder = tmp_path_factory.mktemp("checkout")
    shutil.copy(ROOT / "manage.py", folder)
    for file, text in (
        ("loopguard_site/command_line.py", COMMAND_LINE),
        ("development/commands.py", DEVELOPMENT),
    ):
        folder.joinpath(file).parent.mkdir()
        folder.joinpath(file).write_text(text)
    shutil.copy(ROOT / "development" / "own_environment.py", folder / "development")
    for lock in LOCKS:
        folder.joinpath(lock).write_text("# nothing\n")
    # An update of the system's Python leaves such a link.
    folder.joinpath(".venv", "bin").mkdir(parents=True)
    folder.joinpath(".venv", "bin", "python").symlink_to("/nowhere/python3")
    return folder, run(folder, "up")


@pytest.fixture
def tree(first_run) -> Path:
    return first_run[0]


def run(tree: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k != "LOOPGUARD_BOOTSTRAP"}
    base = Path(sys.base_prefix, "bin", f"python{sys.version_info.major}.{sys.version_info.minor}")
    return subprocess.run(
        [base, tree / "manage.py", *arguments],
        env={**clean, "PIP_INDEX_URL": "http://127.0.0.1:9", **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_an_environment_whose_python_is_gone_is_rebuilt(first_run):
    _, done = first_run
    assert done.returncode == 7
    assert "Setting up" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="only root mounts volumes")
@pytest.mark.parametrize("megabytes", [1, 100])
def test_a_disk_without_space_for_the_packages_is_named_before_anything_is_downloaded(tree, megabytes):
    with volume(megabytes) as folder:
        for name in ("manage.py", "loopguard_site", "development", *LOCKS):
            subprocess.run(["cp", "-r", tree / name, folder], timeout=10, check=True)
        done = run(folder, "up")
        assert (done.returncode, done.stdout) == (1, "")
        assert (
            f"The disk of {folder} has {megabytes - 1} MB of free space, and the packages need 250 MB."
            in done.stderr
        )
        assert not (folder / ".venv").exists()


def test_a_command_runs_inside_with_its_arguments_and_its_status(tree):
    done = run(tree, "up", "--port", "0")
    assert done.stdout.split() == [str(tree / ".venv"), "--port", "0"]
    assert done.returncode == 7


def test_nothing_is_installed_twice(tree):
    assert run(tree, "up").stderr == ""


def test_the_suite_installs_its_own_packages_and_a_changed_lock_is_noticed(tree):
    tree.joinpath("requirements-dev.lock").write_text("# something else\n")
    assert "from requirements-dev.lock" in run(tree, "test").stderr
    assert run(tree, "test").stderr == ""
    tree.joinpath("requirements.lock").write_text("# something else\n")
    assert "from requirements.lock" in run(tree, "up").stderr
    assert run(tree, "up").stderr == ""


def test_the_environment_of_a_larger_lock_serves_commands_of_a_smaller_one(tree):
    tree.joinpath("requirements-release.lock").write_text("# something else\n")
    tree.joinpath("requirements-dev.lock").write_text("# something new\n")
    assert "from requirements-release.lock" in run(tree, "lock").stderr
    assert run(tree, "test").stderr == ""
    assert run(tree, "up").stderr == ""


def test_a_failed_install_is_tried_again(tree):
    lock = tree / "requirements.lock"
    before = lock.read_text()
    lock.write_text("no-such-package==1.0 --hash=sha256:" + "0" * 64 + "\n")
    failed = run(tree, "up", PIP_RETRIES="0")
    assert failed.returncode == 1
    assert "could not be installed" in failed.stderr
    lock.write_text(before + "# and more\n")
    assert run(tree, "up").returncode == 7


def test_a_variable_keeps_it_out_of_its_environment(tree):
    done = run(tree, "up", LOOPGUARD_BOOTSTRAP="0")
    assert done.stdout.split()[0] != str(tree / ".venv")
    assert done.returncode == 7


def test_it_can_be_called_from_anywhere_and_through_a_link(tree, tmp_path, monkeypatch):
    link = tmp_path / "link"
    link.symlink_to(tree)
    monkeypatch.chdir(tmp_path)
    assert run(link, "up").stdout.split() == [str(tree / ".venv")]
