"""The rules for Prometheus and the dashboard for Grafana name metrics that LoopGuard has."""

import json
import re
from pathlib import Path

import pytest
import yaml
from django.test import Client

from detection.services.storage.disk_space import disk_monitor

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
NAME = re.compile(r"\bloopguard_[a-z_]+")


def rules():
    groups = yaml.safe_load((DEPLOY / "prometheus" / "rules.yml").read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def panels():
    return json.loads((DEPLOY / "grafana" / "loopguard.json").read_text())["panels"]


EXPRESSIONS = [(rule["alert"], rule["expr"]) for rule in rules()] + [
    (panel["title"], target["expr"]) for panel in panels() for target in panel["targets"]
]


@pytest.fixture
def samples(db, settings, tmp_path):
    """The names that a query may have: those of each family, and those of its samples."""
    settings.DATABASE_FOLDER, settings.MIN_FREE_SHARE, settings.MIN_FREE_BYTES = str(tmp_path), 0.01, 2**20
    disk_monitor.expire()
    text = Client().get("/metrics", REMOTE_ADDR="127.0.0.1").content.decode()
    found = set()
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE):
        found |= {f"{name}{end}" for end in ("_bucket", "_sum", "_count")} if kind == "histogram" else {name}
    disk_monitor.expire()
    return found


@pytest.mark.parametrize(("name", "expression"), EXPRESSIONS)
def test_every_metric_of_a_rule_and_of_a_panel_exists(samples, name, expression):
    used = set(NAME.findall(expression))
    assert used
    assert used <= samples
    assert expression.count("(") == expression.count(")")


def test_each_rule_says_how_urgent_it_is_and_what_is_wrong():
    for rule in rules():
        assert rule["labels"]["severity"] in ("page", "ticket"), rule
        assert rule["annotations"]["summary"], rule


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
