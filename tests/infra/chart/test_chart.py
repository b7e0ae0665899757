"""The chart's values and files, without Helm: the schema, the sets of values that tests render, the alert rules."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema
import pytest
import yaml

from infra.helm.__main__ import render
from runtime.settings.loading import declarations
from runtime.settings.values import SettingsError, typed_value
from tests.fixtures.promql import mistakes
from tests.infra.chart.rendering import CHART, ROOT, VALUE_SETS, WRONG, merged

SCHEMA: Mapping[str, Any] = json.loads((CHART / "values.schema.json").read_text(encoding="utf-8"))
VALUES: Mapping[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
README = ROOT / "infra" / "helm" / "README.md"
NOT_IN_VALUES = {"global"}
"""Helm itself sets it where the chart is a part of another one."""


def nodes(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(dotted name, schema) of every value, without those of the table of settings."""
    for name, each in schema.get("properties", {}).items() if path != "settings." else ():
        yield f"{path}{name}", each
        yield from nodes(each, f"{path}{name}.")


def names(values: Mapping[str, Any], schema: Mapping[str, Any], path: str = "") -> set[str]:
    """Dotted names of all values, without the keys of maps that may have any."""
    found: set[str] = set()
    for name, value in values.items():
        found.add(f"{path}{name}")
        below = schema["properties"].get(name, {})
        if isinstance(value, dict) and "properties" in below:
            found |= names(value, below, f"{path}{name}.")
    return found


def test_values_and_schema_name_the_same() -> None:
    told = {name for name, _ in nodes(SCHEMA)} - NOT_IN_VALUES
    some = ("external.gateway.", "agents.resources.", "compactors.resources.", "drill.resources.")
    whole = {name for name in told if name.startswith(some)}
    assert names(VALUES, SCHEMA) | whole == told


def test_every_value_is_described_and_no_other_is_taken() -> None:
    assert len(list(nodes(SCHEMA))) > 100
    assert SCHEMA["properties"]["settings"]["additionalProperties"] is False
    for name, each in [("", SCHEMA), *nodes(SCHEMA)]:
        assert each["description"], name
        assert "properties" not in each or each["additionalProperties"] is False, name
    jsonschema.Draft7Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("values", VALUE_SETS)
def test_the_schema_takes_the_sets_of_values(values: str) -> None:
    jsonschema.validate(merged(VALUES, yaml.safe_load((CHART / "ci" / values).read_text(encoding="utf-8"))), SCHEMA)


@pytest.mark.parametrize("name", WRONG)
def test_the_schema_refuses_and_names_the_value(name: str) -> None:
    values, named = WRONG[name]
    with pytest.raises(jsonschema.ValidationError) as refused:
        jsonschema.validate(merged(VALUES, values), SCHEMA)
    assert named in f"{refused.value.json_path} {refused.value.message}"


def test_settings_are_those_of_the_table() -> None:
    assert (CHART / "values.schema.json").read_text(encoding="utf-8") == render(), "run `python -m infra.helm`"


@pytest.mark.parametrize("text", ["yes", "10m", "1e6", "", "0.5", "-1", "7", "true", "auto", "on"])
def test_no_setting_is_refused_that_a_program_would_take(text: str) -> None:
    schema = jsonschema.Draft7Validator(SCHEMA["properties"]["settings"])
    taken = refused = 0
    for name, declared, default in declarations():
        try:
            value = typed_value(name, declared, default, text, source="a test")
        except SettingsError:
            refused += 1
            continue
        taken += 1
        for given in (text, value):
            schema.validate({name: given})
    assert taken and refused


def test_a_value_of_each_kind_of_outer_access_and_autoscaling_is_tried() -> None:
    sets = [merged(VALUES, yaml.safe_load((CHART / "ci" / each).read_text(encoding="utf-8"))) for each in VALUE_SETS]
    kinds = dict(nodes(SCHEMA))
    assert {each["external"]["type"] for each in sets} == set(kinds["external.type"]["enum"])
    for process in ("agents", "compactors"):
        used = {each[process]["autoscaling"]["type"] for each in sets}
        assert used == set(kinds[f"{process}.autoscaling.type"]["enum"])


def test_the_charts_alert_rules_are_those_of_prometheus() -> None:
    ours, copy = ROOT / "infra/prometheus/alerts.yml", CHART / "files/alerts.yml"
    assert copy.read_bytes() == ours.read_bytes(), f"cp {ours.relative_to(ROOT)} {copy.relative_to(ROOT)}"


def test_queries_of_autoscalers_ask_for_metrics_that_are_exported() -> None:
    queries = [VALUES["agents"]["autoscaling"]["lag"], VALUES["compactors"]["autoscaling"]["backlog"]]
    for each in queries:
        assert list(mistakes(each["query"].removesuffix(" or vector(0)"))) == []


def test_the_readme_names_values_that_there_are() -> None:
    rooms = "|".join(SCHEMA["properties"])
    named = re.findall(rf"`((?:{rooms})(?:\.\w+)+)", README.read_text(encoding="utf-8"))
    known = dict(nodes(SCHEMA))
    assert len(named) > 30
    free = ("settings.", "agents.resources.")
    assert [each for each in named if each not in known and not each.startswith(free)] == []


def test_the_examples_of_the_readme_are_values() -> None:
    blocks = re.findall(r"^```yaml\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    examples = [each for each in map(yaml.safe_load, blocks) if each.keys() <= SCHEMA["properties"].keys()]
    assert {each.get("external", {}).get("type") for each in examples} - {None} == {
        *("LoadBalancer", "NodePort", "Ingress", "TLSRoute")
    }
    for each in examples:
        jsonschema.validate(merged(VALUES, each), SCHEMA)
