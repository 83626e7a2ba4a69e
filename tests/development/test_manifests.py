"""The Kubernetes manifests are valid, and start the same processes as docker-compose.yml."""

import os
import re
import shutil
import subprocess
from ipaddress import ip_address, ip_network
from pathlib import Path

import pytest
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


def pods():
    """The pod of each workload, by its name."""
    return {
        name: document["spec"]["template"]["spec"]
        for name, document in {**documents("Deployment"), **documents("Job")}.items()
    }


@pytest.mark.parametrize(
    ("name", "wrong", "found"),
    [
        ("beat.yaml", ("replicas:", "replica:"), "beat.yaml: Deployment loopguard-beat, Kubernetes 1."),
        ("routes.yaml", ("timeouts:", "timeout:"), "routes.yaml: HTTPRoute loopguard, $.spec.rules[0]: "),
        (
            "routes.yaml",
            ("value: /ws/", "value: ws"),
            "routes.yaml: HTTPRoute loopguard, $.spec.rules[0].matches[0]",
        ),
        (
            "routes.yaml",
            ("request: 3h", "request: 3 hours"),
            "routes.yaml: HTTPRoute loopguard, $.spec.rules[1].",
        ),
        (
            "routes.yaml",
            ("kind: HTTPRoute", "kind: HttpRoute"),
            "routes.yaml: HttpRoute loopguard, Kubernetes 1.",
        ),
        ("kustomization.yaml", ("resources:", "resource:"), "kustomization.yaml: Kustomization, $: "),
    ],
)
def test_a_field_that_kubernetes_does_not_know_is_found(tmp_path, name, wrong, found):
    assert manifests.problems() == []
    text = (manifests.FOLDER / name).read_text()
    assert wrong[0] in text
    (tmp_path / name).write_text(text.replace(*wrong, 1))
    problems = manifests.problems(tmp_path)
    assert problems
    assert problems[0].startswith(found)


def test_the_base_has_every_manifest():
    (base,) = yaml.safe_load_all((manifests.FOLDER / "kustomization.yaml").read_text())
    files = {file.name for file in manifests.FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(base["resources"]) == files


@pytest.mark.skipif(not shutil.which("kubectl"), reason="kubectl, which contains Kustomize, is not installed")
def test_the_overlay_of_the_documentation_changes_image_and_host(tmp_path):
    page = (ROOT / "docs" / "scaling.md").read_text()
    overlay = re.search(r"```yaml\n(# kustomization\.yaml.*?)```", page, re.DOTALL)[1]
    folder = os.path.relpath(manifests.FOLDER, tmp_path)
    (tmp_path / "kustomization.yaml").write_text(overlay.replace("../loopguard/deploy/kubernetes", folder))
    command = ["kubectl", "kustomize", "--load-restrictor=LoadRestrictionsNone", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    built = list(yaml.safe_load_all(done.stdout))
    images = {
        container["image"]
        for one in built
        if one["kind"] in ("Deployment", "Job")
        for container in one["spec"]["template"]["spec"]["containers"]
    }
    assert images == {"registry.example/loopguard:1"}
    assert "loopguard.example" not in done.stdout
    (route,) = (one for one in built if one["kind"] == "HTTPRoute")
    assert route["spec"]["hostnames"] == ["guard.example.com"]
    (configuration,) = (one["data"] for one in built if one["kind"] == "ConfigMap")
    assert configuration["LOOPGUARD_URL"] == "https://guard.example.com"
    assert configuration["LOOPGUARD_ALLOWED_HOSTS"] == "guard.example.com"


def test_the_manifests_start_what_the_containers_of_compose_start():
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    started = {**documents("Deployment"), **documents("Job")}
    assert set(started) == set(services) - {"proxy", "postgres", "valkey"}
    for name, pod in pods().items():
        (container,) = pod["containers"]
        assert container.get("command") == services[name].get("command"), name
    assert started["beat"]["spec"]["replicas"] == 2


def test_secrets_are_files_and_only_the_preparation_has_those_of_the_owner():
    (configuration,) = documents("ConfigMap").values()
    for name, pod in pods().items():
        (container,) = pod["containers"]
        assert [source for source in container["envFrom"] if "secretRef" in source] == [], name
        (volume,) = (one for one in pod["volumes"] if one["name"] == "secrets")
        (mount,) = (one for one in container["volumeMounts"] if one["name"] == "secrets")
        assert mount["mountPath"] == configuration["data"]["LOOPGUARD_SECRETS_FOLDER"]
        assert mount["readOnly"] is True
        content = volume.get("secret") or volume["projected"]
        assert content["defaultMode"] == 0o440
        assert ("loopguard-owner" in str(content)) == (name == "prepare")


def test_every_process_is_asked_for_its_health_as_in_compose():
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    (configuration,) = documents("ConfigMap").values()
    address = services["worker"]["environment"]["LOOPGUARD_PROBE_ADDRESS"]
    assert configuration["data"]["LOOPGUARD_PROBE_ADDRESS"] == address
    for name, port in {"web": 8300, "live": 8301, "worker": 8302, "beat": 8302}.items():
        (container,) = pods()[name]["containers"]
        assert container["ports"][0]["containerPort"] == port
        ready, alive = container["readinessProbe"]["httpGet"], container["livenessProbe"]["httpGet"]
        assert (ready["path"], alive["path"]) == ("/readyz", "/healthz")
        assert ready["port"] == alive["port"] == container["ports"][0]["name"]
        assert f"http://127.0.0.1:{port}/readyz" in services[name]["healthcheck"]["test"][-1]
    assert address.endswith(":8302")


def test_no_container_may_use_up_the_machine():
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    for name, service in services.items():
        assert {"mem_limit", "pids_limit"} <= service.keys(), name
        assert service["logging"]["options"].keys() == {"max-size", "max-file"}, name
    for name, pod in pods().items():
        (container,) = pod["containers"]
        assert container["resources"]["limits"]["memory"], name
        for volume in pod["volumes"]:
            assert volume.get("emptyDir", {"sizeLimit": 1})["sizeLimit"], name


def test_the_disk_of_the_database_is_watched_and_not_read():
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    for name in ("prepare", "web", "live", "worker", "beat"):
        assert services[name]["environment"]["LOOPGUARD_DATABASE_FOLDER"] == "/database"
        assert "database:/database:ro" in services[name]["volumes"]
    assert "database:/var/lib/postgresql" in services["postgres"]["volumes"]


def test_what_is_kept_of_the_output_of_a_container_has_no_secret():
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert services["prepare"]["command"][-1] == "--no-secrets"


def test_pods_reach_and_are_reached_by_what_a_policy_names():
    policies = documents("NetworkPolicy")
    selected = {name: policy["spec"]["podSelector"] for name, policy in policies.items()}
    everyone = {"matchLabels": {"app.kubernetes.io/name": "loopguard"}}
    assert [name for name, selector in selected.items() if selector == everyone] == ["metrics", "servers"]
    kinds = {name: policy["spec"]["policyTypes"] for name, policy in policies.items()}
    assert kinds["metrics"] == kinds["requests"] == ["Ingress"]
    assert kinds["servers"] == kinds["receivers"] == ["Egress"]
    (receivers,) = policies["receivers"]["spec"]["egress"]
    blocked = [ip_network(one) for to in receivers["to"] for one in to["ipBlock"]["except"]]
    for address in ("169.254.169.254", "10.0.0.1", "172.20.0.1", "192.168.1.1", "fd00::1", "fe80::1"):
        assert any(
            ip_address(address) in network
            for network in blocked
            if network.version == ip_address(address).version
        )
    ports = {
        port["port"]
        for policy in ("requests", "metrics")
        for port in policies[policy]["spec"]["ingress"][0]["ports"]
    }
    listening = {
        container["containerPort"]
        for pod in pods().values()
        for one in pod["containers"]
        for container in one.get("ports", [])
    }
    assert ports == listening


def test_the_routes_are_those_of_the_proxy_of_compose():
    rules = documents("HTTPRoute")["loopguard"]["spec"]["rules"]
    to_live, to_web = (
        {match["path"]["value"] for match in rule["matches"]}
        for name in ("loopguard-live", "loopguard-web")
        for rule in rules
        if rule["backendRefs"][0]["name"] == name
    )
    assert to_web == {"/"}
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
