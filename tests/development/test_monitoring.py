"""The rules for Prometheus and the dashboard for Grafana: valid, of metrics that exist, and true with several processes."""

import json
import os
import re
import shutil
import subprocess
from itertools import chain
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client.registry import CollectorRegistry

from detection.api import prometheus
from loopguard_site.supervisor.addresses import free_port
from tests.reliability.installation import Installation, wait_until
from tests.support.patience import PATIENCE_SECONDS
from tests.support.plain_http import PLAIN
from tests.support.projects import make_key, make_project

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
RULES = DEPLOY / "prometheus" / "rules.yml"
NAME = re.compile(r"\b(?:loopguard|process)_[a-z_]+")
PROMTOOL = shutil.which("promtool") or ""
with_promtool = pytest.mark.skipif(
    not PROMTOOL, reason="promtool is not installed: it is in Debian's package `prometheus`"
)


def rules():
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels():
    return json.loads((DEPLOY / "grafana" / "loopguard.json").read_text())["panels"]


EXPRESSIONS = [(rule["alert"], rule["expr"]) for rule in rules()] + [
    (panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]
]


def families(text):
    """The names that a query may have: those of each family, and those of its samples."""
    return set(
        chain.from_iterable(
            [f"{name}{end}" for end in ("_bucket", "_sum", "_count")] if kind == "histogram" else [name]
            for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE)
        )
    )


def test_every_metric_of_a_rule_and_of_a_panel_exists_in_a_running_installation(transactional_db, tmp_path):
    probe = f"127.0.0.1:{free_port()}"
    installation = Installation(
        os.environ["REDIS_URL"],
        tmp_path,
        LOOPGUARD_PROBE_ADDRESS=probe,
        LOOPGUARD_DATABASE_FOLDER=str(tmp_path),
        LOOPGUARD_MIN_FREE="64 MB",
    )
    key = {
        "Authorization": f"Bearer {make_key(make_project(), scopes=['metrics'])}",
        "X-Forwarded-For": "192.0.2.7",
    }

    def read(url):
        with_key = httpx.get(f"{url}/metrics", headers=key, verify=PLAIN, timeout=PATIENCE_SECONDS)
        assert with_key.status_code == 200, with_key.text
        return with_key.text

    try:
        installation.start_web()
        installation.start_live()
        worker = installation.start_worker()
        found = families(read(installation.url)) | families(read(installation.live_url))
        assert wait_until(lambda: answers(f"http://{probe}/readyz")), installation.logs()
        # The sweeper has a period of five seconds.
        swept = 'loopguard_periodic_runs_total{outcome="done",work="sweeper"}'
        assert wait_until(lambda: swept in read(f"http://{probe}")), installation.logs()
        assert (
            httpx.get(f"http://{probe}/metrics", headers={"X-Forwarded-For": "192.0.2.7"}).status_code == 401
        )
        found |= families(read(f"http://{probe}"))
        installation.kill(worker)
        installation.start_beat()
        assert wait_until(lambda: answers(f"http://{probe}/readyz")), installation.logs()
        assert wait_until(lambda: swept in read(f"http://{probe}")), installation.logs()
    finally:
        installation.stop()
    used = {name for _, expression in EXPRESSIONS for name in NAME.findall(expression)}
    assert len(used) > 20
    assert used <= found


def answers(url):
    try:
        return httpx.get(url, verify=PLAIN, timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def test_the_processes_that_count_in_one_folder_are_read_from_web(transactional_db, tmp_path):
    """As under `up`."""
    folder = tmp_path / "metrics"
    folder.mkdir()
    # Above the largest id of a process.
    ended = [folder / f"{kind}_4194305.db" for kind in ("gauge_livesum", "counter")]
    for file in ended:
        file.write_bytes(b"")
    installation = Installation(os.environ["REDIS_URL"], tmp_path, PROMETHEUS_MULTIPROC_DIR=str(folder))
    swept = re.compile(r'^loopguard_periodic_runs_total\{outcome="done",work="sweeper"\} [1-9]', re.MULTILINE)

    def read():
        return httpx.get(f"{installation.url}/metrics", verify=PLAIN, timeout=PATIENCE_SECONDS).text

    try:
        installation.start_web()
        installation.start_worker()
        assert wait_until(lambda: bool(swept.search(read()))), installation.logs()
        assert not any(file.exists() for file in ended)
    finally:
        installation.stop()


@pytest.mark.parametrize(("name", "expression"), EXPRESSIONS)
def test_what_every_process_of_web_reports_is_counted_once(db, name, expression):
    """Figures of the database are the same in each of them, so their sum would grow with the number of processes."""
    registry = CollectorRegistry()
    registry.register(prometheus.DatabaseCollector())
    registry.register(prometheus.DiskCollector())
    of_database = {
        f"{family.name}{'_total' if family.type == 'counter' else ''}" for family in registry.collect()
    }
    assert "loopguard_checks_total" in of_database
    for used in of_database.intersection(NAME.findall(expression)):
        inner = r"\s*(?:\(|rate\(|increase\(|\w+\[)*"
        once = re.compile(rf"(?:max|min)\s*(?:by \([a-z, ]+\))?\s*\({inner}{used}\b|absent\({used}\b")
        assert once.search(expression), f"{name}: {expression}"


def test_each_rule_says_how_urgent_it_is_and_what_is_wrong():
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket"), rule
        assert rule["annotations"]["summary"], rule


@with_promtool
def test_promtool_accepts_rules_and_configuration(tmp_path):
    commands = [["rules", str(RULES)]]
    for file in sorted((DEPLOY / "prometheus").glob("scrape*.yml")):
        configuration = yaml.safe_load(file.read_text())
        for job in configuration["scrape_configs"]:
            # Debian's Prometheus is built without the discovery of pods.
            assert job.pop("kubernetes_sd_configs", [{"role": "pod"}])[0]["role"] == "pod"
        (tmp_path / file.name).write_text(yaml.safe_dump(configuration))
        commands.append(["config", "--syntax-only", str(tmp_path / file.name)])
    assert len(commands) == 3
    for command in commands:
        done = subprocess.run(
            [PROMTOOL, "check", *command], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@with_promtool
def test_each_alert_fires_when_it_must_and_stays_when_it_must(tmp_path):
    series = Path(__file__).with_name("prometheus_rules.yml")
    for file in (RULES, series):
        shutil.copy(file, tmp_path)
    command = [PROMTOOL, "test", "rules", series.name]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    firing = {
        one["alertname"]
        for group in yaml.safe_load(series.read_text())["tests"]
        for one in group["alert_rule_test"]
        if one["exp_alerts"]
    }
    assert firing == {rule["alert"] for rule in rules()}


@with_promtool
@pytest.mark.parametrize("panel", panels(), ids=lambda panel: panel["title"])
def test_promtool_accepts_the_expression_of_each_panel(panel, tmp_path):
    for target in panel["targets"]:
        rule = {"record": "panel:one", "expr": target["expr"].replace("$__rate_interval", "5m")}
        file = tmp_path / "panel.yml"
        file.write_text(yaml.safe_dump({"groups": [{"name": "panel", "rules": [rule]}]}))
        done = subprocess.run(
            [PROMTOOL, "check", "rules", file], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


def test_panels_neither_overlap_nor_leave_the_screen():
    taken: set[tuple[int, int]] = set()
    for panel in panels():
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not taken & cells
        assert max(x for x, _ in cells) < 24
        taken |= cells
