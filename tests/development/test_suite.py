"""How the suite is run: by which command, and which runs are shared among processes."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from development.suite import pytest_command
from tests.conftest import IN_TURN

ROOT = Path(__file__).resolve().parents[2]


def is_shared(*arguments: str) -> bool:
    command = pytest_command(ROOT, arguments)
    assert command[-len(arguments) :] == list(arguments) or not arguments
    return any(word.startswith("--numprocesses=") for word in command if word not in arguments)


@pytest.mark.parametrize(
    "arguments",
    [(), ("-q",), ("-m", "not browser"), ("-k", "cycle"), ("--last-failed",), ("-p", "no:cacheprovider")],
)
def test_the_whole_suite_is_shared_among_the_cores(arguments, monkeypatch):
    monkeypatch.delenv("REDIS_URL", raising=False)
    assert is_shared(*arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ("tests/engine",),
        ("tests/development/test_suite.py::test_the_whole_suite_is_shared_among_the_cores", "-q"),
        ("-n", "3"),
        ("-n0",),
        ("--numprocesses=2",),
        ("-p", "no:xdist"),
        ("-s",),
        ("--pdb",),
        ("--co", "-q"),
    ],
)
def test_named_tests_and_a_number_of_processes_that_is_given_are_left_alone(arguments, monkeypatch):
    monkeypatch.delenv("REDIS_URL", raising=False)
    assert not is_shared(*arguments)


@pytest.mark.parametrize(
    ("arguments", "is_in_turn"),
    [((), True), (("-q",), True), (("--all",), False), (("-k", "cycle"), False), (("tests/engine",), False)],
)
def test_slow_tests_take_turns_unless_a_person_chooses(arguments, is_in_turn):
    command = pytest_command(ROOT, arguments)
    assert ("--in-turn" in command) == is_in_turn
    assert "--all" not in command


def test_the_tests_that_take_turns_are_there():
    names = [line.split()[1] for line in IN_TURN.read_text(encoding="utf-8").splitlines() if line]
    assert names
    assert len(names) == len({*names})
    for name in names:
        file, _, function = name.partition("::")
        assert f"def {function.split('::')[-1]}(" in (ROOT / file).read_text(encoding="utf-8"), name


def test_a_broker_that_is_given_is_never_shared(monkeypatch):
    monkeypatch.setenv("REDIS_URL", "redis://127.0.0.1:6379/0")
    assert not is_shared("-q")


def test_ci_runs_the_suite_by_the_command_that_the_readme_gives():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.search(r"```sh\n(.+?)```", readme.split("## Run it\n")[1], re.DOTALL)[1].splitlines()
    assert shown == ["python3 manage.py up", "python3 manage.py test"]
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert re.search(rf"^suite\(\) {{ {re.escape(shown[1])}; }}$", script, re.MULTILINE)


STUB = """
import os, sys
words = sys.argv[1:]
with open("log", "a") as log: log.write(" ".join(words) + "\\n")
sys.exit((" ".join(words) + "\\n").startswith(os.environ["FAILS"]))
"""


MARK = "servers"
"""CI looks for files that contain it behind `mark.`, which this one does not."""


@pytest.mark.parametrize(
    "fails", ["check_all", "test", "package --test-clients", "test gateway-matrix", "nothing of these"]
)
def test_a_part_of_ci_that_fails_fails_all_of_it_and_runs_once(fails, tmp_path):
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci")
    programs = {
        ".ci/on_external_servers": '#!/bin/bash\nexec "${@:3}"\n',
        "bin/dpkg-query": "#!/bin/sh\n",
        "bin/npm": "#!/bin/sh\n",
        "clients/javascript/package.json": "{}",
        "manage.py": STUB,
        "tests/test_of_servers.py": f"mark.{MARK}",
    }
    for name, text in programs.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
        file.chmod(0o755)
    path = f"{tmp_path / 'bin'}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "FAILS": fails if fails != "test" else "test\n"}
    done = subprocess.run(
        ["bash", ".ci/run"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    called = [" ".join(line.split()[:2]) for line in (tmp_path / "log").read_text("utf-8").splitlines()]
    others = [] if fails == "check_all" else ["package --test-clients", "test", "test gateway-matrix"]
    assert sorted(called) == ["check_all --no-tests", *others], done.stderr
    assert (done.returncode != 0) == (fails != "nothing of these"), done.stdout


SHARED = """
import os, time
import pytest
from tests.support.sharing import Patience, Scheduling

def pytest_xdist_make_scheduler(config, log):
    config.pluginmanager.register(Patience(float(os.environ["PATIENCE"])))
    return Scheduling(config, log, lambda nodeid: nodeid)
"""
SOME = """
import os, time
import pytest

@pytest.mark.parametrize("number", range(40))
def test_one(number):
    if number in (7, 39):
        os._exit(1)  # as a test that hangs ends
"""
HANGS = """
import time

def test_quick(): pass

def test_slow(): time.sleep(500)
"""


@pytest.mark.parametrize(
    ("tests", "patience", "status", "says"),
    [(SOME, 60, 1, "2 failed, 38 passed"), (HANGS, 10, 1, "Timeout")],
    ids=["processes that die", "a process that hangs"],
)
def test_a_shared_run_ends_with_a_failure_whatever_its_processes_do(tests, patience, status, says, tmp_path):
    (tmp_path / "conftest.py").write_text(SHARED)
    (tmp_path / "test_some.py").write_text(tests)
    command = [sys.executable, "-m", "pytest", "-p", "no:randomly", "-p", "no:django", "-n", "2", "-q"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATIENCE": str(patience)}
    done = subprocess.run(
        [*command, "-c", "/dev/null", "--rootdir", tmp_path, tmp_path],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stdout + done.stderr
    assert says in done.stdout + done.stderr
