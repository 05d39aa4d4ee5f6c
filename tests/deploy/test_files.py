"""What is in deploy/ is what the tools that read it take, and agrees with the code it deploys."""

from __future__ import annotations

import ipaddress
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import click
import compose_spec
import kubernetes_validate
import pytest
import yaml

from dispatcher.cli import COMMANDS, cli
from sandbox import wire
from sandbox.doctor import memory
from sandbox.settings import PREFIX, Settings, load
from tests.deploy.conftest import DEPLOY, ROOT, USERS

BASE, KEDA, GATEWAY = (DEPLOY / "kubernetes" / name for name in ("base", "keda", "gateway"))
SPARE_S = 10  # between a worker's grace and its orchestrator's
KUBERNETES = ("1.30", "1.34")


def documents(path: Path) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(path.read_text()))


def compose() -> dict[str, Any]:
    """With every variable given."""
    text = re.sub(r"(?<!\$)\$\{(\w+):\?[^}]*\}", r"value-of-\1", (DEPLOY / "compose.yaml").read_text())
    parsed: dict[str, Any] = yaml.safe_load(text)
    return parsed


MANIFESTS = [
    pytest.param(path, document, id=f"{path.parent.name}/{path.stem}-{document['kind']}")
    for path in sorted((DEPLOY / "kubernetes").glob("*/*.yaml"))
    for document in documents(path)
]
PODS = {
    kind: next(d["spec"]["template"]["spec"] for d in documents(path) if d["kind"] == "Deployment")
    for kind, path in {"worker": BASE / "deployment.yaml", "gateway": GATEWAY / "gateway.yaml"}.items()
}
POD = PODS["worker"]
(CONTAINER,) = POD["containers"]
POD_SETTINGS = {e["name"]: e["value"] for e in CONTAINER["env"] if "value" in e}


def memory_for(settings: Settings) -> int:
    """Megabytes of a worker's container."""
    needed = memory(settings)
    return needed.at_most_mb + needed.beside_mb


def grace_of(arguments: list[str]) -> float:
    """A gateway's, from its arguments."""
    return float(arguments[arguments.index("--grace") + 1])


def test_the_dockerfile_is_clean_to_hadolint() -> None:
    found = subprocess.run(
        [Path(sys.executable).with_name("hadolint"), "--failure-threshold", "style", DEPLOY / "Dockerfile"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stdout) == (0, "")


def test_hadolint_would_say_so() -> None:
    """The control of the test above."""
    found = subprocess.run(
        [Path(sys.executable).with_name("hadolint"), "-"],
        input="FROM debian\nRUN cd /x",
        check=False,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 1
    assert "DL3006" in found.stdout


def test_the_image_is_unprivileged_holds_no_secret_and_copies_every_package() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE) == ["10001:10001"]
    assert not re.search(r"(?i)password|token|secret=|--mount=type=secret", text)
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"][
        "packages"
    ]
    copied = re.findall(r"^COPY (\w+) \1$", text, re.MULTILINE)
    allowed = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert sorted(copied) == sorted(packages)
    assert {f"!{name}" for name in packages} <= set(allowed)
    assert set(re.findall(r"--extra ([a-z]+)", text)) <= set(extras())


def extras() -> dict[str, list[str]]:
    found: dict[str, list[str]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    return found


def test_compose_is_valid_and_needs_its_passwords() -> None:
    compose_spec.PyCompose.from_yaml(yaml.safe_dump(compose())).validate()
    text = (DEPLOY / "compose.yaml").read_text()
    assert {f"{user.upper()}_PASSWORD" for user in USERS} == set(re.findall(r"(?<!\$)\$\{(\w+):\?", text))
    with pytest.raises(ValueError, match="restrt"):
        compose_spec.PyCompose.from_yaml("services: {a: {image: x, restrt: always}}")


@pytest.mark.parametrize("name", compose()["services"])
def test_a_service_has_no_privilege(name: str) -> None:
    service = compose()["services"][name]
    assert service["cap_drop"] == ["ALL"]
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["read_only"] is True
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


def test_compose_starts_workers_that_its_settings_and_limits_fit() -> None:
    worker = compose()["services"]["worker"]
    settings = load(worker["environment"])
    limits = worker["deploy"]["resources"]["limits"]
    assert int(limits["memory"].removesuffix("G")) * 1024 >= memory_for(settings)
    assert int(worker["stop_grace_period"].removesuffix("s")) >= settings.grace_s + SPARE_S


@pytest.mark.parametrize(("path", "document"), MANIFESTS)
def test_a_manifest_is_what_its_schema_says(path: Path, document: dict[str, Any]) -> None:
    if document["apiVersion"].startswith(("keda.sh/", "kustomize.config.k8s.io/")):
        return  # their schemas are in no package; the tests below look at what matters in them
    for version in KUBERNETES:
        kubernetes_validate.validate(document, version, strict=True)


def test_a_misspelt_field_of_a_manifest_would_be_found() -> None:
    (deployment,) = documents(BASE / "deployment.yaml")
    deployment["spec"]["template"]["spec"]["containers"][0]["redinessProbe"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(deployment, KUBERNETES[0], strict=True)


@pytest.mark.parametrize("directory", [BASE, KEDA, GATEWAY], ids=["base", "keda", "gateway"])
def test_a_kustomization_names_every_file_beside_it(directory: Path) -> None:
    (kustomization,) = documents(directory / "kustomization.yaml")
    here = {path.name for path in directory.glob("*.yaml")} - {"kustomization.yaml"}
    elsewhere = set(kustomization["resources"]) - here
    assert here <= set(kustomization["resources"])
    assert all((directory / name / "kustomization.yaml").is_file() for name in elsewhere)


@pytest.mark.parametrize("kind", PODS)
def test_pods_pass_the_restricted_standard(kind: str) -> None:
    (namespace,) = documents(BASE / "namespace.yaml")
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"
    pod = PODS[kind]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod["automountServiceAccountToken"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert {next(iter(volume.keys() - {"name"})) for volume in pod["volumes"]} <= {"emptyDir", "secret"}
    user = f"{pod['securityContext']['runAsUser']}:{pod['securityContext']['runAsGroup']}"
    assert f"USER {user}\n" in (DEPLOY / "Dockerfile").read_text()


@pytest.mark.parametrize("where", ["compose", "kubernetes"])
def test_a_gateway_is_started_with_options_that_exist_keys_and_time_to_end(where: str) -> None:
    if where == "compose":
        service = compose()["services"]["gateway"]
        arguments, kill = service["command"], float(service["stop_grace_period"].removesuffix("s"))
    else:
        (container,) = PODS["gateway"]["containers"]
        arguments, kill = container["args"], PODS["gateway"]["terminationGracePeriodSeconds"]
    command = cli.get_command(click.Context(cli), arguments[0])
    assert command is not None
    options = {name for parameter in command.params for name in parameter.opts}
    assert {word for word in arguments if word.startswith("--")} <= options
    assert "--keys" in arguments
    assert kill >= grace_of(arguments) + SPARE_S


def test_a_pod_has_settings_that_exist_and_time_and_memory_for_them() -> None:
    settings = load(POD_SETTINGS)
    assert POD["terminationGracePeriodSeconds"] >= settings.grace_s + SPARE_S
    limit = CONTAINER["resources"]["limits"]["memory"]
    assert int(limit.removesuffix("Gi")) * 1024 >= memory_for(settings)
    named = {entry["name"] for entry in CONTAINER["env"]}
    assert named <= {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    assert "HOOKPOOL_POOL" in named - POD_SETTINGS.keys(), "the address comes from a secret"
    assert CONTAINER["args"][0] in COMMANDS


def test_probes_ask_the_pages_that_a_worker_serves_on_the_port_the_image_sets() -> None:
    port = re.search(r"HOOKPOOL_HEALTH_PORT=(\d+)", (DEPLOY / "Dockerfile").read_text())
    assert port
    assert CONTAINER["ports"] == [{"name": "health", "containerPort": int(port[1])}]
    pages = {probe: CONTAINER[f"{probe}Probe"]["httpGet"]["path"] for probe in ("startup", "readiness", "liveness")}
    assert pages == {"startup": "/readyz", "readiness": "/readyz", "liveness": "/healthz"}


def test_a_disruption_budget_and_a_policy_select_the_pods() -> None:
    (deployment,) = documents(BASE / "deployment.yaml")
    labels = deployment["spec"]["template"]["metadata"]["labels"]
    (budget,), (policy,) = documents(BASE / "poddisruptionbudget.yaml"), documents(BASE / "networkpolicy.yaml")
    assert budget["spec"]["selector"]["matchLabels"] == policy["spec"]["podSelector"]["matchLabels"] == labels
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]


INSIDE = (
    "10.1.2.3 172.20.0.1 192.168.1.1 100.64.0.1 127.0.0.1 169.254.169.254 168.63.129.16 0.0.0.0 192.0.0.192 224.0.0.1 "
    "100.100.100.200 198.18.0.1 255.255.255.255 ::1 fe80::1 fd00:ec2::254 fd20:ce::254 ::ffff:10.0.0.1 64:ff9b::a00:1 "
    "2002:a00:1:: 2001::1 2001:db8::1"
).split()


@pytest.mark.parametrize(
    ("address", "reached"), [*((a, False) for a in INSIDE), ("8.8.8.8", True), ("2606:4700::1", True)]
)
def test_a_policy_opens_the_internet_and_nothing_else(address: str, reached: bool) -> None:
    (policy,) = documents(BASE / "networkpolicy.yaml")
    blocks = [to["ipBlock"] for rule in policy["spec"]["egress"] for to in rule["to"] if "ipBlock" in to]
    at = ipaddress.ip_address(address)

    def within(network: str) -> bool:
        parsed = ipaddress.ip_network(network)
        return parsed.version == at.version and at in parsed

    assert reached == any(within(b["cidr"]) and not any(map(within, b["except"])) for b in blocks)


def test_the_scaler_counts_the_lists_that_workers_take_from() -> None:
    authentication, scaled = documents(KEDA / "scaledobject.yaml")
    (deployment,) = documents(BASE / "deployment.yaml")
    assert (authentication["kind"], scaled["kind"]) == ("TriggerAuthentication", "ScaledObject")
    assert scaled["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    triggers = scaled["spec"]["triggers"]
    assert [trigger["metadata"]["listName"] for trigger in triggers] == list(wire.QUEUES.values())
    for trigger in triggers:
        assert trigger["type"] == "redis"
        assert trigger["metadata"].keys() == {"listName", "listLength", "enableTLS"}
        assert all(isinstance(value, str) for value in trigger["metadata"].values()), "KEDA takes text only"
        assert trigger["authenticationRef"] == {"name": authentication["metadata"]["name"]}
    parameters = {given["parameter"] for given in authentication["spec"]["secretTargetRef"]}
    assert parameters == {"address", "username", "password"}
    assert 0 < scaled["spec"]["minReplicaCount"] < scaled["spec"]["maxReplicaCount"]


def test_every_file_is_of_a_kind_that_something_here_reads() -> None:
    """A new kind needs a test."""
    files = [path.relative_to(DEPLOY).parts for path in DEPLOY.rglob("*") if path.is_file()]
    kinds = {parts[0] for parts in files if not parts[0].endswith(".md")}
    assert kinds <= {
        *("Dockerfile", "Dockerfile.dockerignore", "compose.yaml", "dry-run", "nftables.conf"),
        *("kubernetes", "redis", "prometheus", "grafana", "sizing", "nftables.conf"),
    }
