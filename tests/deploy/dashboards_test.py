#!/usr/bin/env python3
"""Grafana's dashboards against Grafana's own models of them (grafana-foundation-sdk), of the version that
compose starts: no field that Grafana does not know, no value of another type, no kind of panel or unit that
there is not. What their queries answer is tests/e2e/prometheus_test.py's.
"""

import copy
import enum
import importlib.metadata
import json
import sys
import types
import typing
from importlib.util import find_spec
from pathlib import Path

import yaml
from grafana_foundation_sdk.cog import plugins
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard, units

ROOT = Path(__file__).resolve().parents[2]
# Grafana writes it itself, with a query's variable: what the list of variables shows.
UNMODELLED = "definition"
UNITS = [value for name, value in vars(units).items() if not name.startswith("_")]


def lost(given, taken, path=""):
    """What Grafana's models leave out, or change."""
    if isinstance(given, dict) and isinstance(taken, dict):
        for key, value in given.items():
            if key in taken:
                yield from lost(value, taken[key], f"{path}.{key}")
            elif key != UNMODELLED:
                yield f"{path}.{key}: Grafana knows no such field"
    elif isinstance(given, list) and isinstance(taken, list) and len(given) == len(taken):
        for index, (one, other) in enumerate(zip(given, taken)):
            yield from lost(one, other, f"{path}[{index}]")
    elif given != taken:
        yield f"{path}: {given!r} becomes {taken!r}"


def fits(value, hint):
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return any(fits(value, one) for one in arguments)
    if origin is typing.Literal:
        return value in arguments
    if origin is list:
        return isinstance(value, list) and all(fits(one, arguments[0]) for one in value)
    if origin is dict:
        return isinstance(value, dict) and all(fits(one, arguments[1]) for one in value.values())
    if hint is float:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return value in [one.value for one in hint]
    return hint in (object, typing.Any) or not isinstance(hint, type) or isinstance(value, hint)


def mistyped(model, path=""):
    """Values that are not of the type that the model says, in it and what it has."""
    if isinstance(model, (list, tuple)):
        for index, one in enumerate(model):
            yield from mistyped(one, f"{path}[{index}]")
    elif type(model).__module__.startswith("grafana_foundation_sdk") and not isinstance(model, enum.Enum):
        hints = typing.get_type_hints(type(model))
        for name, value in vars(model).items():
            if name in hints and not fits(value, hints[name]):
                yield f"{path}.{name}: {value!r} is no {hints[name]}"
            yield from mistyped(value, f"{path}.{name}")


def problems(given):
    model = dashboard.Dashboard.from_json(given)
    yield from lost(given, json.loads(json.dumps(model, cls=JSONEncoder)))
    yield from mistyped(model)
    for panel in given["panels"]:
        for one in [panel, *panel.get("panels", ())]:
            if one["type"] != "row" and find_spec(f"grafana_foundation_sdk.models.{one['type']}") is None:
                yield f"{one['title']}: Grafana has no panels of kind {one['type']}"
            unit = one.get("fieldConfig", {}).get("defaults", {}).get("unit", "none")
            if unit not in UNITS:
                yield f"{one['title']}: Grafana has no unit {unit}"


def check_mutations(given):
    """It would see what is wrong."""
    series = next(at for at, panel in enumerate(given["panels"]) if panel["type"] == "timeseries")
    for place, key, value in (
            (("options",), "legende", {}), (("fieldConfig", "defaults", "custom"), "drawStyle", "lin"),
            (("targets", 0), "exp", "up"), (("targets", 0), "instant", "yes"), (("gridPos",), "h", "8"),
            (("options", "legend"), "placement", "bttom"), ((), "type", "timseries"),
            (("fieldConfig", "defaults"), "unit", "secs")):
        wrong = copy.deepcopy(given)
        part = wrong["panels"][series]
        for step in place:
            part = part[step]
        part[key] = value
        assert list(problems(wrong)), f"{key}={value!r} of {place} is not seen"


def main():
    plugins.register_default_plugins()
    version = importlib.metadata.version("grafana-foundation-sdk").rpartition("!")[2]
    image = yaml.safe_load((ROOT / "deploy/compose.yaml").read_text())["services"]["grafana"]["image"]
    assert image == f"grafana/grafana:{version}", f"the models are of {version}, compose starts {image}"
    files = sorted((ROOT / "deploy/grafana/dashboards").glob("*.json"))
    assert len(files) > 5, files
    found = 0
    for file in files:
        for problem in problems(json.loads(file.read_text())):
            print(f"{file.name}: {problem}")
            found += 1
    check_mutations(json.loads((ROOT / "deploy/grafana/dashboards/sparsed.json").read_text()))
    print(f"{len(files)} dashboards are what Grafana {version} knows.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
