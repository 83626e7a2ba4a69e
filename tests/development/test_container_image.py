"""The files that the container image copies are enough to run it."""

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import redis
import yaml

from development import images
from loopguard_site.supervisor.addresses import free_port
from loopguard_site.supervisor.binaries import valkey_server
from tests.support.patience import PATIENCE_SECONDS

SERVICES = yaml.safe_load((Path(__file__).resolve().parents[2] / "docker-compose.yml").read_text())[
    "services"
]
ROOT = Path(__file__).resolve().parents[2]
DOCKERFILE = (ROOT / "Dockerfile").read_text()


@pytest.fixture(scope="module")
def application(tmp_path_factory) -> Path:
    """The working directory of the image, as the Dockerfile fills it."""
    folder = tmp_path_factory.mktemp("app")
    for source, target in re.findall(r"^COPY (\S+) (\./\S*)$", DOCKERFILE, re.MULTILINE):
        if (ROOT / source).is_dir():
            shutil.copytree(ROOT / source, folder / target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / source, folder / target)
    return folder


def run(application: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = dict(re.findall(r"\b((?:LOOPGUARD|DJANGO)_\w+)=(\S+)", DOCKERFILE))
    assert environment["LOOPGUARD_BOOTSTRAP"] == "0"
    return subprocess.run(
        [sys.executable, *command],
        cwd=application,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_static_files_are_collected_while_the_image_is_built(application):
    assert "RUN python manage.py prepare --static" in DOCKERFILE
    done = run(application, "manage.py", "prepare", "--static")
    assert done.returncode == 0, done.stderr
    folders = application / "staticfiles"
    assert (folders / (folders / "current").read_text() / "staticfiles.json").is_file()


def test_live_is_started_by_the_command_that_sets_its_limits_wherever_it_is_started(application):
    manifests = yaml.safe_load_all((ROOT / "deploy/kubernetes/live.yaml").read_text())
    pod = next(one for one in manifests if one["kind"] == "Deployment")["spec"]["template"]["spec"]
    operations = (ROOT / "docs/operations.md").read_text()
    for command in (SERVICES["live"]["command"], pod["containers"][0]["command"]):
        assert command == ["python", "manage.py", "live", "--host=0.0.0.0", "--port=8301"]
    assert "\npython manage.py live --host 0.0.0.0 --port 8301\n" in operations
    assert "\nuvicorn " not in operations
    assert run(application, "manage.py", "live", "--help").returncode == 0


def test_the_command_line_lists_the_commands_of_the_image(application):
    done = run(application, "manage.py", "help")
    assert done.returncode == 0, done.stderr
    assert "  prepare " in done.stdout
    assert "  check_all " not in done.stdout


def test_the_builder_gets_every_file_that_the_image_copies():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    copied = re.findall(r"^COPY (?!--from)(\S+) ", DOCKERFILE, re.MULTILINE)
    assert {f"!{source}" for source in copied} <= set(ignored)


@pytest.mark.promise("SEC-28")
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_valkey_of_the_containers_asks_for_the_password_which_no_argument_shows(tmp_path):
    service, port = SERVICES["valkey"], free_port()
    assert service["entrypoint"] == ["/bin/sh", "-c"]
    (script,) = service["command"]
    script = script.replace("$$", "$").replace("valkey-server -", f"valkey-server - --port {port}")
    tmp_path.chmod(0o711)
    (tmp_path / "valkey-server").symlink_to(valkey_server(tmp_path, None))
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "VALKEY_PASSWORD": "of-this-test"}
    with subprocess.Popen(["/bin/sh", "-c", script], env=environment, stdout=subprocess.DEVNULL) as server:
        try:
            wrong, right = (redis.Redis(port=port, password=password) for password in (None, "of-this-test"))
            deadline = time.monotonic() + PATIENCE_SECONDS
            while True:
                try:
                    assert right.ping()
                    break
                except redis.ConnectionError:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)
            with pytest.raises(redis.AuthenticationError):
                wrong.ping()
            assert right.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
            shown = Path("/proc", str(server.pid), "cmdline").read_bytes()
            assert b"valkey-server" in shown, "the server replaces the shell, and gets its signals"
            assert b"of-this-test" not in shown
        finally:
            server.terminate()
            server.wait(10)


def test_no_container_gains_rights_and_only_volumes_are_written():
    for name, service in SERVICES.items():
        assert "no-new-privileges:true" in service["security_opt"], name
        assert service["read_only"] is True, name
        if name != "postgres":  # its start changes the owner of its folder
            assert service["cap_drop"] == ["ALL"], name
    assert "\nUSER loopguard\n" in DOCKERFILE


@pytest.mark.promise("SEC-29")
def test_every_image_of_another_project_is_pinned_by_digest(tmp_path):
    assert images.unpinned(ROOT) == []
    shutil.copytree(ROOT / "deploy", tmp_path / "deploy")
    for name in images.FILES:
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "docker-compose.yml").write_text("services:\n  a:\n    image: caddy:2-alpine\n")
    (tmp_path / "deploy/kubernetes/more.yaml").write_text("containers:\n  - image: busybox\n    name: b\n")
    assert images.unpinned(tmp_path) == [
        "docker-compose.yml: caddy:2-alpine",
        "deploy/kubernetes/more.yaml: busybox",
    ]


DOCKER = """#!/bin/sh
[ -f {folder}/broken ] && exit 1
printf '%s\\n' "$4" >> {folder}/asked
printf 'sha256:%064d\\n' 7
"""


def test_images_are_pinned_by_the_digests_of_their_registries_or_not_at_all(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    program = tmp_path / "docker"
    program.write_text(DOCKER.format(folder=tmp_path))
    program.chmod(0o755)
    for name in images.FILES:
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "broken").touch()
    before = [(tmp_path / name).read_text() for name in images.FILES]
    assert images.pin(tmp_path) == 1
    assert [(tmp_path / name).read_text() for name in images.FILES] == before
    (tmp_path / "broken").unlink()
    assert images.pin(tmp_path) == 0
    pinned = [(tmp_path / name).read_text() for name in images.FILES]
    asked = {image.partition(":")[0] for image in (tmp_path / "asked").read_text().split()}
    assert asked == {"caddy", "valkey/valkey", "postgres", "python"}
    assert "@" not in (tmp_path / "asked").read_text()
    for text in pinned:
        found = re.findall(r"^(?:\s+image:|FROM) (\S+:\S+)", text, re.MULTILINE)
        assert found
        assert all(name.endswith(f"@sha256:{7:064}") for name in found), found
    assert images.pin(tmp_path) == 0, "again, for newer ones"
    assert [(tmp_path / name).read_text() for name in images.FILES] == pinned
