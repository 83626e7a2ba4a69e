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
from django.core.management import call_command
from django.db import connection
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from detection.migrations import _sql_0001, _sql_0005, _sql_0006, _sql_0014

for app in ("admin", "auth", "sessions"):
    call_command("migrate", app, verbosity=0)
loader = MigrationLoader(connection, replace_migrations=False)
tables = loader.project_state(("detection", "0017_limit_notice_calls")).apps
connection.cursor().execute("CREATE EXTENSION pg_trgm")
connection.cursor().execute(_sql_0001.SESSION_COUNTER[0])
with connection.schema_editor() as editor:
    for model in tables.get_models():
        if model._meta.app_label == "detection" and model._meta.managed:
            editor.create_model(model)
for statements in (
    _sql_0001.EVENT_TABLE, _sql_0001.FILLFACTOR, _sql_0001.AUDIT_APPEND_ONLY, _sql_0001.CACHE_TABLE,
    _sql_0005.PACKED_SNAPSHOTS, _sql_0006.PARTITIONS_BY_THE_OWNER, _sql_0014.ADD_COLUMNS,
):
    connection.cursor().execute(statements[0])
recorder = MigrationRecorder(connection)
recorder.record_applied("detection", "0001_squashed_0017_limit_notice_calls")
for app, name in sorted(loader.disk_migrations):
    if app == "detection" and name[:4] <= "0017" and "squashed" not in name:
        recorder.record_applied(app, name)
"""
"""Makes the tables as version 0.1.0 did: its migration, which the one of today has replaced, created them at once."""


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
