"""Alerts, dashboard and runbook speak of metrics that a real worker exports, and of each other.

Whether Prometheus understands the rules, and whether they fire, `.ci/deploy` asks promtool.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from dispatcher.cli import COMMANDS
from sandbox.contract import Status
from sandbox.settings import PREFIX, Settings
from tests.deploy.conftest import DEPLOY, Deployed

RULES = yaml.safe_load((DEPLOY / "prometheus/rules.yml").read_text())
DASHBOARD = json.loads((DEPLOY / "grafana/hookpool.json").read_text())
RUNBOOK = (DEPLOY / "RUNBOOK.md").read_text()
ALERTS = [rule for group in RULES["groups"] for rule in group["rules"]]
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}


def asked(tree: Any) -> list[str]:
    """Every query in a dashboard, variables' too."""
    match tree:
        case dict():
            own = [v for k, v in tree.items() if k in {"expr", "query"} and isinstance(v, str)]
            return own + [query for value in tree.values() for query in asked(value)]
        case list():
            return [query for value in tree for query in asked(value)]
    return []


def names(query: str) -> set[str]:
    """The series it reads, by what series are called here."""
    return set(re.findall(r"\b((?:hookpool|process)_\w+)", query))


@pytest.fixture(scope="module")
def exported(deployed: Deployed) -> dict[str, set[str]]:
    """Series -> labels, of a real worker."""
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(deployed.page("/metrics").decode()):
        labels = {label for sample in family.samples for label in sample.labels}
        found |= {family.name + suffix: labels for suffix in SUFFIXES[family.type]}
    return found


@pytest.mark.parametrize("rule", ALERTS, ids=[rule["alert"] for rule in ALERTS])
def test_an_alert_reads_series_that_exist(rule: dict[str, Any], exported: dict[str, set[str]]) -> None:
    assert names(rule["expr"]) or rule["expr"].startswith("up{")
    assert names(rule["expr"]) <= exported.keys()


def test_the_dashboard_reads_series_that_exist(exported: dict[str, set[str]]) -> None:
    queries = asked(DASHBOARD)
    assert len(queries) > 20
    assert set().union(*map(names, queries)) <= exported.keys()


def test_every_metric_of_ours_is_on_the_dashboard(exported: dict[str, set[str]]) -> None:
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for query in asked(DASHBOARD) for name in names(query)}
    assert {re.sub(r"_(bucket|sum|count)$", "", name) for name in exported if name.startswith("hookpool_")} <= shown


def test_statuses_in_rules_exist() -> None:
    texts = [match for rule in ALERTS for match in re.findall(r'status=~?"([^"]*)"', rule["expr"])]
    assert len(texts) > 3
    for text in texts:
        for alternative in text.split("|"):
            assert any(re.fullmatch(alternative, status) for status in Status), alternative


def sections() -> dict[str, str]:
    """The runbook's, by the anchor that GitHub and others give a heading."""
    parts = re.split(r"^### (.+)$", RUNBOOK, flags=re.MULTILINE)
    return {f"#{title.lower().replace(' ', '-')}": text for title, text in zip(parts[1::2], parts[2::2], strict=True)}


@pytest.mark.parametrize("rule", ALERTS, ids=[rule["alert"] for rule in ALERTS])
def test_an_alert_has_a_severity_a_summary_and_its_section_of_the_runbook(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert rule["annotations"]["summary"]
    path, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert path == "deploy/RUNBOOK.md"
    assert anchor == rule["alert"].lower()
    section = sections()[f"#{anchor}"]
    assert all(word in section for word in ("Means: ", "Look: ", "Do: "))


def test_every_section_is_of_an_alert_and_every_alert_is_tried() -> None:
    assert sections().keys() == {f"#{rule['alert'].lower()}" for rule in ALERTS}
    tried = (DEPLOY / "prometheus/rules.test.yml").read_text()
    assert [rule["alert"] for rule in ALERTS if rule["alert"] not in tried] == []


def test_what_the_runbook_names_exists() -> None:
    settings = set(re.findall(rf"{PREFIX}[A-Z_]+[A-Z]", RUNBOOK)) - {f"{PREFIX}MAX"}
    assert settings <= {f"{PREFIX}{name.upper()}" for name in Settings.model_fields}
    assert set(re.findall(r"hookpool ([a-z]+)", RUNBOOK)) <= set(COMMANDS)
    assert set(re.findall(r"\bHookpool[A-Z]\w+", RUNBOOK)) <= {rule["alert"] for rule in ALERTS}
