"""A running installation, which the tests of rights and those of the gateway's faults share."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from tests.support.model_server import ModelServer, of_json

from .running import ROOT, Run, running_in


@dataclass(frozen=True)
class Installed:
    """A running installation, before a model server that responds with an empty list."""

    run: Run
    model: ModelServer
    url: str
    live_url: str
    api_key: str
    runtime: str
    owner: str

    def manage(self, *command: str) -> None:
        """Run a command that succeeds; see `run_command`."""
        done = self.run_command(*command)
        assert done.returncode == 0, done.stderr

    def run_command(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command of the operator's, which finds the servers of the running installation."""
        surroundings = {"LOOPGUARD_DATA": str(self.run.data), "DJANGO_SUPERUSER_PASSWORD": "long enough"}
        return subprocess.run(
            [sys.executable, "manage.py", *command],
            cwd=ROOT, env={**self.run.environment, **surroundings}, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip


@contextlib.contextmanager
def fresh_installation() -> Iterator[Installed]:
    """Start LoopGuard."""
    with (
        ModelServer(lambda asked: of_json({"object": "list", "data": []})).running() as model,
        running_in("lg-") as run,
    ):
        run.environment |= {
            "LOOPGUARD_JUDGE_KEY": "of-the-judge",
            "LOOPGUARD_GATEWAY_CREDENTIALS": "a=of-a-model",
            "LOOPGUARD_GATEWAY_UPSTREAMS": model.url,
            "LOOPGUARD_ALERT_ALLOWED_NETWORKS": "127.0.0.0/8",
        }
        _, ready = run.start()
        servers = run.servers()
        yield Installed(
            run,
            model,
            ready["url"],
            ready["live_url"],
            ready["api_key"],
            servers["DATABASE_URL"],
            servers["LOOPGUARD_OWNER_DATABASE_URL"],
        )
