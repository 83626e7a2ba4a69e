"""A coding agent that takes no hooks for one run, by `loopguard run`: its model requests are guarded.

Opt-in, as the tests of their hooks: `LOOPGUARD_HOSTS` names a folder with the programs.
"""

import os
import shutil

import httpx
import pytest

from development.test_server import running_server
from tests.hosts.place import Place
from tests.hosts.test_hosts_behind_the_gateway import gemini_cli
from tests.hosts.upstream import Script, serve
from tests.support.plain_http import PLAIN

FOLDER = os.environ.get("LOOPGUARD_HOSTS", "")
pytestmark = [
    pytest.mark.long,
    pytest.mark.skipif(not FOLDER, reason="LOOPGUARD_HOSTS names no folder with coding agents"),
]


@pytest.mark.parametrize(("script", "runs", "exit_code"), [
    (Script(40, "./probe"), 3, 75),
    (Script(20, *(f"./probe {number:032}" for number in range(20))), 20, 0),
], ids=["stuck", "healthy"])  # fmt: skip
def test_gemini_cli_is_guarded_by_the_gateway_and_the_command_says_that_it_has_no_hooks(
    script, runs, exit_code, tmp_path
):
    program = shutil.which("gemini", path=FOLDER)
    if program is None:
        pytest.skip(f"gemini is not in {FOLDER}")
    with running_server() as found:
        server, upstream = serve(script, int(found["model_url"].rpartition(":")[2]))
        try:
            headers = {"Authorization": f"Bearer {found['api_key']}"}
            with httpx.Client(base_url=f"{found['url']}/api/v1", headers=headers, verify=PLAIN) as api:
                backend = {"name": "google", "kind": "gemini", "base_url": upstream}
                assert api.post("/backends", json=backend).status_code == 201
                place = Place(tmp_path, found["url"], found["api_key"], by_run=True)
                ended = gemini_cli(place, program, upstream)
                (session,) = api.get("/sessions", params={"q": "integration:gateway"}).json()["items"]
        finally:
            server.shutdown()
            server.server_close()
    assert place.runs() == runs, ended
    assert ended.returncode == exit_code, ended
    assert "Gemini CLI: it takes no hooks for one run" in ended.stderr
    assert "read GOOGLE_GEMINI_BASE_URL" in ended.stderr
    assert (session["calls"] >= runs, session["blocked"] > 0) == (True, exit_code == 75)
    assert [tag[:4] for tag in session["tags"]] == ["run-"]
