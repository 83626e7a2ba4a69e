"""The Kubernetes manifests are valid, and start the same processes as docker-compose.yml."""

import re
from pathlib import Path

import yaml

from development import manifests

ROOT = Path(__file__).resolve().parents[2]


def documents(kind):
    found = [
        document
        for file in sorted(manifests.FOLDER.glob("*.yaml"))
        for document in yaml.safe_load_all(file.read_text())
        if document["kind"] == kind
    ]
    return {document["metadata"]["name"].removeprefix("loopguard-"): document for document in found}


def test_a_field_that_kubernetes_does_not_know_is_found(tmp_path):
    assert manifests.problems() == []
    text = (manifests.FOLDER / "beat.yaml").read_text()
    (tmp_path / "beat.yaml").write_text(text.replace("replicas:", "replica:"))
    found = manifests.problems(tmp_path)
    assert len(found) == len(manifests.VERSIONS)
    assert found[0].startswith("beat.yaml: Deployment loopguard-beat, Kubernetes 1.")


def test_the_manifests_start_what_the_containers_of_compose_start():
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    started = {**documents("Deployment"), **documents("Job")}
    assert set(started) == set(services) - {"proxy", "postgres", "valkey"}
    for name, document in started.items():
        (container,) = document["spec"]["template"]["spec"]["containers"]
        assert container.get("command") == services[name].get("command"), name
        secrets = [source["secretRef"]["name"] for source in container["envFrom"] if "secretRef" in source]
        assert ("loopguard-owner" in secrets) == (name == "prepare")
    assert started["beat"]["spec"]["replicas"] == 1
    assert started["beat"]["spec"]["strategy"] == {"type": "Recreate"}


def test_the_ingress_routes_as_the_proxy_of_compose_does():
    (rule,) = documents("Ingress")["loopguard"]["spec"]["rules"]
    to_live = {path["path"] for path in rule["http"]["paths"] if "live" in path["backend"]["service"]["name"]}
    line = next(
        line
        for line in (ROOT / "deploy/Caddyfile").read_text().splitlines()
        if line.strip().startswith("@live")
    )
    # `live` responds 404 to all other requests about approvals, such as decisions.
    assert line.split()[1:] == ["path_regexp", f"^({'|'.join(sorted(to_live, key=len))})"]
    expression = re.compile(line.split()[2])
    assert expression.search("/ws/live")
    assert expression.search("/gateway/openai/v1/messages")
    assert expression.search("/api/v1/approvals/apr_0123abc")
    for path in (
        "/api/v1/approvals",
        "/api/v1/approvals/apr_0123abc/decision",
        "/api/v1/approvals/remembered",
    ):
        assert not expression.search(path)
