"""A home folder in which a coding agent runs."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from detection.integrations.hosts import HOSTS, hook_settings

HOST_SECONDS = 400
CLIENT = Path(__file__).parents[2] / "clients" / "python"
PROBE = """#!/bin/sh
echo run >> "$0.count"
case $1 in
    x) sleep 600 ;;
    ????*) printf %s "$1" | sha256sum ;;  # of a healthy run: each call finds something else
    *) echo "2 tests failed $1" ;;
esac
"""
PROMPT = "Run ./probe until it passes."


class Place:
    """A home folder with one host, its hooks, and a program that counts how often it runs."""

    def __init__(self, path, hook_url, token, *, by_command=False, by_run=False, options=()):
        self.home, self.work = path / "home", path / "work"
        self.home.mkdir()
        self.work.mkdir()
        self.probe = self.work / "probe"
        self.probe.write_text(PROBE)
        self.probe.chmod(0o755)
        key = self.home / ".loopguard" / "curl"
        self.write(key, f'header = "Authorization: Bearer {token}"\n')
        key.chmod(0o600)
        self.is_killed = self.has_wrong_key = False
        self.installed = lambda: None
        self.url, self.token, self.by_command, self.options = hook_url, token, by_command, options
        self.by_run = by_run

    def write(self, path, text):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if isinstance(text, str) else json.dumps(text))

    def set_hooks(self, name, **settings):
        """Set the hooks as the Connect page shows them, or as the command of the client does.

        With `by_run` there are none, and `loopguard run` gives them to the host.
        """
        host = HOSTS[name]
        file = Path(host.settings_file.replace("~", str(self.home)))
        if self.by_run:
            self.write(file, settings)
        elif self.by_command:
            if settings:
                self.write(file, settings)
            self.install(name)
        else:
            self.write(file, hook_settings(host, self.url) | settings)

    def install(self, name):
        if self.by_run:
            return
        subprocess.run(
            [sys.executable, "-m", "loopguard_client", "hooks", "install", name, "--url", self.url, *self.options],
            check=True, capture_output=True, timeout=60,
            env={"HOME": str(self.home), "PATH": os.environ["PATH"], "PYTHONPATH": str(CLIENT), "LOOPGUARD_KEY": self.token},
        )  # fmt: skip

    def settings(self):
        """Return the files in the home folder that may have hooks."""
        found = (file for end in ("json", "js", "ts") for file in self.home.rglob(f"*.{end}"))
        return [file for file in found if file.is_file() and "node_modules" not in file.parts]

    def wait(self, process):
        """Return how a host ended; None if it did not, or was to be killed in its second call."""
        deadline = time.monotonic() + HOST_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            if self.is_killed and self.runs() == 2:
                return None
            time.sleep(0.05)
        return process.returncode

    def runs(self):
        counted = Path(f"{self.probe}.count")
        return len(counted.read_text().splitlines()) if counted.exists() else 0

    def start(self, command, **env):
        """Run the host to its end, or kill it with everything that it started when its time is over.

        Its output goes to files: its children may keep pipes open.
        """
        self.installed()
        if self.by_run:
            (self.home / ".loopguard" / "curl").unlink()
            command = [sys.executable, "-m", "loopguard_client", "run", *self.options, "--", *command]
            env |= {"PYTHONPATH": str(CLIENT), "LOOPGUARD_URL": self.url, "LOOPGUARD_KEY": self.token}
        if self.has_wrong_key:
            key = self.home / ".loopguard" / "curl"
            key.write_text(key.read_text().replace(self.token, f"{self.token[:-4]}0000"))
        files = [(self.home.parent / name) for name in ("stdout", "stderr")]
        with files[0].open("wb") as stdout, files[1].open("wb") as stderr:
            process = subprocess.Popen(
                command, cwd=self.work, stdin=subprocess.DEVNULL, stdout=stdout, stderr=stderr, start_new_session=True,
                env={"HOME": str(self.home), "PATH": os.environ["PATH"], "LANG": "C.UTF-8", "NO_COLOR": "1", **env},
            )  # fmt: skip
            try:
                status = self.wait(process)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait(10)
        texts = [file.read_text(errors="replace")[-30_000:] for file in files]
        return subprocess.CompletedProcess(command, status, *texts)
