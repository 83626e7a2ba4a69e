"""The built distribution, and the bill of materials of its browser code."""

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import loopguard_client
import manage
from detection import __version__
from development.commands import COMMANDS
from development.package import build, problems, source_files
from development.release import vendored_components
from loopguard_site.command_line import CHECKOUT_ONLY

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def dist(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build(ROOT, folder)
    return folder


@pytest.fixture(scope="module")
def wheel(dist) -> Path:
    return dist / f"loopguard_server-{__version__}-py3-none-any.whl"


def test_the_wheel_contains_code_templates_static_files_and_migrations_and_no_tests(wheel):
    assert problems(ROOT, wheel) == []
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        entry_points = archive.read(f"loopguard_server-{__version__}.dist-info/entry_points.txt").decode()
    assert "detection/migrations/0001_tables.py" in names
    assert "loopguard_site/assets/templates/accounts/sign_in.html" in names
    assert "loopguard_site/assets/static/css/base.css" in names
    assert not [name for name in names if name.startswith(("tests/", "development/", "docs/"))]
    assert "loopguard-server = loopguard_site.command_line:main" in entry_points


def test_the_wheel_contains_the_wheel_of_the_client_which_needs_nothing_else(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        packed = [name for name in archive.namelist() if name.startswith("loopguard_site/assets/client/")]
        archive.extract(packed[0], tmp_path)
    assert [Path(name).name for name in packed] == [
        f"loopguard_client-{loopguard_client.__version__}-py3-none-any.whl"
    ]
    with zipfile.ZipFile(tmp_path / packed[0]) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
        information = f"loopguard_client-{loopguard_client.__version__}.dist-info"
        metadata = archive.read(f"{information}/METADATA").decode()
        assert (
            "loopguard = loopguard_client.command_line:main"
            in archive.read(f"{information}/entry_points.txt").decode()
        )
    assert names == set(source_files(ROOT / "clients" / "python", ["loopguard_client"]))
    assert [
        line for line in metadata.splitlines() if line.startswith("Requires-Dist") and "extra" not in line
    ] == []


def test_a_missing_and_a_stray_file_are_found(wheel, tmp_path):
    damaged = tmp_path / wheel.name
    with zipfile.ZipFile(wheel) as whole, zipfile.ZipFile(damaged, "w") as copy:
        for name in whole.namelist():
            if name != "loopguard_site/assets/static/css/base.css":
                copy.writestr(name, whole.read(name))
        copy.writestr("tests/test_something.py", "")
    assert problems(ROOT, damaged) == [
        "loopguard_site/assets/static/css/base.css is missing from the wheel.",
        "tests/test_something.py should not be in the wheel.",
    ]


def test_the_sdist_builds_the_same_wheel(dist, wheel, tmp_path):
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    from_sdist = build(tmp_path / f"loopguard_server-{__version__}", tmp_path / "dist", "wheel")
    assert from_sdist.read_bytes() == wheel.read_bytes()


def test_an_unpacked_wheel_runs_away_from_the_checkout(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    program = "import sys; sys.path.insert(0, sys.argv.pop(1)); from loopguard_site.command_line import main; main()"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "installed"), *arguments],
            cwd=tmp_path, env={"XDG_DATA_HOME": str(tmp_path), "COLUMNS": "500"}, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip

    assert run("--version").stdout == f"LoopGuard {__version__}\n"
    assert "usage: loopguard-server up" in run("help", "up").stdout
    assert f"(default {tmp_path}/loopguard)" in run("up", "--help").stdout
    overview = run().stdout
    assert "Usage: loopguard-server COMMAND" in overview
    assert "  replay " in overview
    assert "  check_all " not in overview
    refused = run("test")
    assert refused.returncode == 1
    assert refused.stderr == "`test` works only in a checkout of the repository: python3 manage.py test\n"


def test_every_development_command_has_its_lock_and_needs_a_checkout():
    assert set(manage.DEVELOPMENT_COMMANDS) == set(COMMANDS)
    assert set(COMMANDS) <= CHECKOUT_ONLY


def test_the_version_is_written_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert "version" not in project
    assert project["dynamic"] == ["version"]


@pytest.mark.promise("SEC-29")
def test_the_bill_of_materials_lists_all_vendored_browser_code():
    static = ROOT / "static"
    components = list(vendored_components(static))
    assert {one["purl"].partition("@")[0] for one in components} == {
        "pkg:npm/htmx.org",
        "pkg:npm/%40alpinejs/csp",
        "pkg:npm/%40fontsource-variable/geist",
        "pkg:npm/%40fontsource-variable/geist-mono",
    }
    listed = {file["name"] for one in components for file in one["components"]}
    of_others = [*(static / "vendor").iterdir(), *(static / "fonts").iterdir()]
    assert listed == {file.name for file in of_others if file.suffix in (".js", ".css", ".woff2")} | {
        "alpine.js"
    }
