"""A LoopGuard installation for tests of other programs: started from this checkout, on a data folder of its own.

Uses the standard library only: tests of clients run in environments of their own.
"""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
START_SECONDS = 120.0
STOP_SECONDS = 30.0
_NOT_INHERITED = ("DATABASE_URL", "REDIS_URL", "DJANGO_SETTINGS_MODULE", "PYTHONPATH")


@contextlib.contextmanager
def running_server(
    command: Sequence[str | Path] = ("python3", "manage.py"), working_folder: Path = ROOT
) -> Iterator[dict[str, str]]:
    """Run `manage.py up`; yields what its ready file says, and stops it at the end.

    Its gateway may forward to `model_url`, a free address of this machine where a test may answer as a model server.

    Parameters
    ----------
    command : sequence of str or Path
        What to run with `up`; by default this checkout.
    working_folder : Path
        The working folder.

    Raises
    ------
    RuntimeError
        It was not ready after two minutes; the text is its output.
    """
    folder = Path(tempfile.mkdtemp(prefix="lg-client-"))
    folder.chmod(0o711)  # the unprivileged account of the embedded servers must pass through
    ready, log = folder / "ready.json", folder / "up.log"
    environment = {
        name: value
        for name, value in os.environ.items()
        if name not in _NOT_INHERITED and not name.startswith(("LOOPGUARD_", "PYTEST_", "COV_"))
    }
    with socket.create_server(("127.0.0.1", 0)) as free:
        model_url = f"http://127.0.0.1:{free.getsockname()[1]}"
    environment |= {
        "LOOPGUARD_WEB_PROCESSES": "1",
        "LOOPGUARD_WORKER_PROCESSES": "1",
        "LOOPGUARD_GUARD_SECONDS": "10",  # a busy machine must not turn a verdict into an outage
        "LOOPGUARD_GATEWAY_UPSTREAMS": model_url,
        "LOOPGUARD_ALERT_ALLOWED_NETWORKS": "127.0.0.0/8",
    }
    up_command = [*command, "up", "--port", "0", f"--data={folder}/data", f"--ready-file={ready}"]
    try:
        with log.open("wb") as output:
            up = subprocess.Popen(
                up_command, cwd=working_folder, env=environment, stdout=output, stderr=output
            )
        try:
            deadline = time.monotonic() + START_SECONDS
            while not ready.exists():
                if up.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(log.read_text(encoding="utf-8"))
                time.sleep(0.1)
            yield {**json.loads(ready.read_text(encoding="utf-8")), "model_url": model_url}
        finally:
            up.send_signal(signal.SIGINT)
            try:
                up.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                up.kill()
                up.wait(STOP_SECONDS)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
