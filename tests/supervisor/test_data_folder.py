"""The data folder and the claim on it."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

from loopguard_site import layout
from loopguard_site.supervisor import children, data_folder
from loopguard_site.supervisor.data_folder import DataFolder, write_private
from loopguard_site.supervisor.errors import AlreadyRunning, SupervisorError


def mode(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_only_its_owner_can_look_into_a_new_folder(tmp_path):
    with DataFolder(tmp_path / "deep" / "data") as folder:
        assert mode(folder.path) == (0o711 if os.geteuid() == 0 else 0o700)


def test_the_secret_key_is_made_once_and_readable_to_its_owner_only(tmp_path):
    with DataFolder(tmp_path) as folder:
        key = folder.secret_key()
        assert len(key) >= 50
        assert mode(tmp_path / "secret_key") == 0o600
    with DataFolder(tmp_path) as folder:
        assert folder.secret_key() == key


def test_a_second_claim_is_told_who_holds_it(tmp_path):
    with DataFolder(tmp_path) as first:
        first.note_running("http://127.0.0.1:8300", {}, [])
        with pytest.raises(
            AlreadyRunning, match=rf"already running at http://127\.0\.0\.1:8300 \(process {os.getpid()}"
        ):
            DataFolder(tmp_path).__enter__()


def test_a_second_claim_during_the_first_start_says_so(tmp_path):
    with DataFolder(tmp_path), pytest.raises(AlreadyRunning, match="Another LoopGuard is starting"):
        DataFolder(tmp_path).__enter__()


def test_a_folder_let_go_can_be_claimed_again(tmp_path):
    with DataFolder(tmp_path) as folder:
        folder.note_running("http://127.0.0.1:8300", {}, [])
    with DataFolder(tmp_path) as again:
        assert again.is_held()
    assert not DataFolder(tmp_path).is_held()


def test_children_do_not_keep_the_claim_of_a_dead_supervisor(tmp_path):
    with DataFolder(tmp_path / "data"):
        child = children.launch(["sleep", "30"], cwd=tmp_path)
    try:
        with DataFolder(tmp_path / "data"):
            pass
    finally:
        children.kill_group(child.pid)
        child.wait(10)


def test_what_a_killed_supervisor_left_is_ended_by_the_next_claim(tmp_path, monkeypatch):
    monkeypatch.setattr(data_folder, "_LEFTOVER_TIMEOUT_SECONDS", 1.0)

    def start(command, mark):
        return subprocess.Popen(
            command, env={**os.environ, **mark}, start_new_session=True, stdout=subprocess.PIPE, text=True
        )

    ours, of_others = DataFolder(tmp_path).mark(), DataFolder(tmp_path / "other").mark()
    sleeping, frozen, bystander = (start(["sleep", "60"], mark) for mark in (ours, ours, of_others))
    frozen.send_signal(signal.SIGSTOP)
    leader = start(["sh", "-c", "sleep 60 >/dev/null & echo $!; kill -9 $$"], ours)
    helper = int(leader.stdout.readline())
    leader.wait(10)
    try:
        with DataFolder(tmp_path):
            assert (sleeping.wait(5), frozen.wait(5)) == (-signal.SIGTERM, -signal.SIGTERM)
            assert children.wait_until_gone(helper, 5)
            assert bystander.poll() is None
    finally:
        for process in (sleeping, frozen, bystander):
            process.kill()
            process.wait(10)
            process.stdout.close()
        leader.stdout.close()


def test_other_commands_get_the_surroundings_of_what_runs_and_only_while_it_runs(tmp_path):
    with DataFolder(tmp_path) as folder:
        folder.note_running("http://127.0.0.1:8300", {"DATABASE_URL": "postgresql:///x"}, [])
        assert DataFolder(tmp_path).running_environment() == {"DATABASE_URL": "postgresql:///x"}
        assert mode(tmp_path / "running.json") == 0o600
    assert DataFolder(tmp_path).running_environment() is None


@pytest.mark.parametrize("text", ["", "{", "[]", '"text"'])
def test_a_spoiled_note_does_not_stop_a_start(tmp_path, text):
    (tmp_path / "running.json").write_text(text)
    with DataFolder(tmp_path):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SupervisorError, match="cannot be used"):
        DataFolder(tmp_path / "file" / "data").__enter__()


def test_a_private_file_is_replaced_whole(tmp_path):
    file = tmp_path / "ready.json"
    file.write_text("old")
    file.chmod(0o644)
    write_private(file, "new")
    assert (file.read_text(), mode(file)) == ("new\n", 0o600)
    assert list(tmp_path.iterdir()) == [file]


def test_commands_name_a_data_folder_that_is_not_the_default(tmp_path, monkeypatch):
    monkeypatch.setenv("LOOPGUARD_DATA", str(tmp_path / "my data"))
    assert layout.program_with_data() == f"LOOPGUARD_DATA='{tmp_path}/my data' python3 manage.py"
    monkeypatch.setenv("LOOPGUARD_DATA", str(layout.ROOT / ".loopguard"))
    assert layout.program_with_data() == "python3 manage.py"
