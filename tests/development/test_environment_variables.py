"""Every environment variable is documented, and passed on to containers or excluded explicitly."""

import ast
import re
from pathlib import Path

import pytest
import yaml

from detection.engine.policy import environment_variables
from loopguard_site.env import unknown_variables

ROOT = Path(__file__).resolve().parents[2]
NAME = re.compile(r"LOOPGUARD_[A-Z_]+|DATABASE_URL|REDIS_URL|XDG_DATA_HOME|NO_COLOR")
NOT_IN_CONTAINERS = {
    "LOOPGUARD_BOOTSTRAP": "set by the image",
    "LOOPGUARD_LOG": "set by the image",
    "LOOPGUARD_SECRETS_FOLDER": "the secrets are in .env",
    "LOOPGUARD_DATA": "only for `up`",
    "LOOPGUARD_RUNTIME_FOLDER": "only for `up`",
    "LOOPGUARD_PG_BIN": "only for `up`",
    "LOOPGUARD_WEB_PROCESSES": "only for `up`",
    "LOOPGUARD_WORKER_PROCESSES": "only for `up`",
    "LOOPGUARD_WORKER_THREADS": "only for `up`",
    "LOOPGUARD_TEST_CLOCK": "only for tests",
    "LOOPGUARD_UNDERTAKER": "only for tests of `up`",
    "NO_COLOR": "only for `up`",
    "XDG_DATA_HOME": "only for `up`",
}
FIXED_IN_CONTAINERS = {
    "LOOPGUARD_MODE",
    "LOOPGUARD_SECRET_KEY",
    "LOOPGUARD_URL",
    "LOOPGUARD_TRUSTED_PROXIES",
    "DATABASE_URL",
    "REDIS_URL",
    "LOOPGUARD_IMPORT_FOLDER",
    "LOOPGUARD_DATABASE_FOLDER",
    "LOOPGUARD_PROBE_ADDRESS",
}


def variables() -> set[str]:
    """Return the names in the code of the site: whole string literals, so that sentences do not count."""
    files = [ROOT / "manage.py", *(ROOT / "loopguard_site").rglob("*.py")]
    literals = {
        node.value
        for file in files
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return {text for text in literals if NAME.fullmatch(text)}


def test_the_list_of_known_variables_has_every_one_that_is_read():
    lines = (ROOT / "loopguard_site" / "variables.txt").read_text().splitlines()
    read, beside = (part.splitlines() for part in "\n".join(lines).split("# What")[1:])
    assert set(read[1:]) == {name for name in variables() if name.startswith("LOOPGUARD_")}
    assert variables().isdisjoint(beside)


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("LOOPGUARD_ALOWED_HOSTS", "LOOPGUARD_ALLOWED_HOSTS"),
        ("LOOPGUARD_LOGLEVEL", "LOOPGUARD_LOG_LEVEL"),
        ("LOOPGUARD_JUDGE_COST", "LOOPGUARD_JUDGE_KEYS"),
        ("LOOPGUARD_QWERTZUIOP_ASDFGHJKL_YXCVBNM", ""),
    ],
)
def test_an_unknown_variable_is_named_with_the_nearest_known_one(name, nearest):
    others = {"LOOPGUARD_LOG": "text", "LOOPGUARD_KEY": "lg_x", "HOME": "/", "MY_LOOPGUARD_URL": ""}
    assert unknown_variables({**others, name: "1"}) == {name: nearest}
    assert unknown_variables(others) == {}


def test_the_operations_page_lists_every_variable_but_those_of_settings():
    page = (ROOT / "docs" / "operations.md").read_text()
    section = page.partition("\n## Environment\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `([A-Z_]+)` \|", section, re.MULTILINE)) == variables()


def test_containers_get_every_variable_that_makes_sense_there():
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    everywhere = variables() - set(NOT_IN_CONTAINERS) - {"LOOPGUARD_OWNER_DATABASE_URL"}
    everywhere |= set(environment_variables())
    for name in ("web", "live", "worker", "beat"):
        assert set(services[name]["environment"]) == everywhere
    assert set(services["prepare"]["environment"]) == everywhere | {"LOOPGUARD_OWNER_DATABASE_URL"}


def test_a_variable_that_is_not_set_stays_unset_in_containers():
    environment = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["web"]["environment"]
    assert {name for name, value in environment.items() if value is not None} == FIXED_IN_CONTAINERS
