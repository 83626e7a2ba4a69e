"""An installation whose data folder is from an older version; the tests of rights and those of the gateway's faults share it."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import psycopg

from loopguard_site.supervisor.postgres import USER, EmbeddedPostgres
from tests.support.model_server import ModelServer, of_json

from .running import ROOT, Run, running_in

WITHOUT_PASSWORDS = "local all all trust\nlocal replication all trust\n"
OLD_VERSIONS_CODE = """
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.loader import MigrationLoader
executor = MigrationExecutor(connection)
executor.loader = MigrationLoader(connection, replace_migrations=False)
executor.migrate([("detection", "0005_snapshot_storage")])
"""


@dataclass(frozen=True)
class Upgraded:
    """A running installation whose data folder is from an older version."""

    run: Run
    model: ModelServer
    url: str
    live_url: str
    api_key: str
    runtime: str
    owner: str

    def manage(self, *command: str) -> None:
        """Run a command of the operator's, which finds the servers of the running installation."""
        surroundings = {"LOOPGUARD_DATA": str(self.run.data), "DJANGO_SUPERUSER_PASSWORD": "long enough"}
        done = subprocess.run(
            [sys.executable, "manage.py", *command],
            cwd=ROOT, env={**self.run.environment, **surroundings}, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr


def make_old_data(run: Run) -> None:
    """Fill the data folder as a version did whose processes ran as the superuser, without a password."""
    run.data.mkdir()
    run.data.chmod(0o711)
    server = EmbeddedPostgres(run.data / "postgres", durable=False)
    server.start()
    try:
        server.create_database("loopguard")
        environment = {
            **run.environment,
            "DATABASE_URL": server.url("loopguard"),
            "LOOPGUARD_MODE": "embedded",
            "LOOPGUARD_SECRET_KEY": "0123456789abcdef" * 3,
        }
        command = [sys.executable, "manage.py", "shell", "-v", "0", "-c", OLD_VERSIONS_CODE]
        subprocess.run(command, cwd=ROOT, env=environment, timeout=120, check=True)
        with psycopg.connect(server.url("loopguard"), autocommit=True) as connection:
            connection.execute(
                "INSERT INTO detection_auditentry (actor, action, subject, request_id)"
                " VALUES ('bo', 'test.before', 'x', '')"
            )
            connection.execute(f"ALTER ROLE {USER} PASSWORD NULL")
    finally:
        server.stop()
    (server.folder / "cluster" / "pg_hba.conf").write_text(WITHOUT_PASSWORDS)


@contextlib.contextmanager
def upgraded_installation() -> Iterator[Upgraded]:
    """Start LoopGuard on data of an older version, before a model server that responds with an empty list."""
    with (
        ModelServer(lambda asked: of_json({"object": "list", "data": []})).running() as model,
        running_in("lg-old-") as run,
    ):
        make_old_data(run)
        run.environment |= {
            "LOOPGUARD_JUDGE_KEY": "of-the-judge",
            "LOOPGUARD_GATEWAY_CREDENTIALS": "a=of-a-model",
            "LOOPGUARD_GATEWAY_UPSTREAMS": model.url,
            "LOOPGUARD_ALERT_ALLOWED_NETWORKS": "127.0.0.0/8",
        }
        _, ready = run.start()
        servers = run.servers()
        yield Upgraded(
            run,
            model,
            ready["url"],
            ready["live_url"],
            ready["api_key"],
            servers["DATABASE_URL"],
            servers["LOOPGUARD_OWNER_DATABASE_URL"],
        )
