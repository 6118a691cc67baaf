"""A model directory: manifest.json and the boosters that it names, as the server reads them."""

import dataclasses
import datetime
import json
import pathlib
import re

import numpy
import xgboost
import xxhash

from selector import learn
from selector.data import BadData, Candidate

FORMAT = 1
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
MOST_BYTES = 4_000_000  # of all files of a model


@dataclasses.dataclass
class Model:
    manifest: dict
    boosters: dict  # by file

    def group(self, operation, transposed):
        return next((g for g in self.manifest["groups"] if g["operation"] == operation and g["transposed"] == transposed), None)


def digest(content):
    return xxhash.xxh3_128_hexdigest(content)


def data_digest(data):
    """Of what was learned from, in whatever order it was read."""
    content = xxhash.xxh3_128()
    for pattern in sorted(data.patterns, key=lambda pattern: pattern.name):
        for problem, measured in sorted(pattern.measured.items()):
            for candidate, m in sorted(measured.items()):
                content.update(f"{pattern.name} {problem} {candidate} {m.median_ms:.4g} {m.csr_ms:.4g}\n")
    return content.hexdigest()


def candidates_of(entry):
    return [Candidate(c["recipe"], c["kernel"]) for c in entry["candidates"]]


def group_entry(group, chosen, deviations, shared, old=None):
    """The manifest's of a group; chosen: which of its candidates the outputs are; old: the one that was gone on with, whose candidates stay."""
    types = {"tf32" if p.allow_tf32 else p.type for p in group.problems} | {"bf16" for p in group.problems if p.type == "f16"}
    least, most = min(p.k for p in group.problems), max(p.k for p in group.problems)
    candidates = [dict(recipe=group.candidates[j].recipe, kernel=group.candidates[j].kernel, deviation=round(float(deviations[j]), 3))
                  if j >= 0 else old["candidates"][output] for output, j in enumerate(chosen)]
    measured = {candidate.recipe for candidate in group.candidates} | {"csr"}  # the default
    if old:
        types, least, most = types | set(old["types"]), min(least, old["least_k"]), max(most, old["most_k"])
    entry = {"operation": group.operation, "transposed": group.transposed, "types": sorted(types), "least_k": least, "most_k": most,
            "file": f"{group.name}.ubj", "shared_deviation": round(float(shared), 3), "candidates": candidates}
    # Of a model that does not say what it has seen, nobody knows what its child has.
    if not old or "measured" in old:
        entry["measured"] = sorted(measured | set(old["measured"] if old else ()))
    return entry


def stripped(booster):
    """The same trees without what only learning looks at: what is left compresses to half in packages."""
    saved = json.loads(booster.save_raw("json").decode())
    for tree in saved["learner"]["gradient_booster"]["model"]["trees"]:
        for name in ("base_weights", "loss_changes", "sum_hessian"):
            tree[name] = [0.0] * len(tree[name])
    return xgboost.Booster(model_file=bytearray(json.dumps(saved).encode()))


def write(directory, manifest, boosters):
    """Writes the files, with their checksums in the manifest; returns their size in bytes. Nothing is left where they are too large."""
    directory = pathlib.Path(directory)
    contents = {name: bytes(booster if isinstance(booster, bytes) else stripped(booster).save_raw("ubj")) for name, booster in boosters.items()}
    manifest = dict(manifest, format=FORMAT, created=datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                    files={name: digest(content) for name, content in contents.items()})
    text = json.dumps(manifest, indent=1) + "\n"
    size = len(text) + sum(map(len, contents.values()))
    if size > MOST_BYTES:
        raise BadData(f"the model would take {size} bytes, more than the {MOST_BYTES} that one may; after --warm-start, train one anew")
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    (directory / "manifest.json").write_text(text, encoding="utf-8")
    return size


def load(directory):
    """The model of a directory; raises BadData if it is not whole."""
    directory = pathlib.Path(directory)
    try:
        manifest = json.loads((directory / "manifest.json").read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            raise BadData(f"{directory}: a model of format {manifest['format']}, not {FORMAT}")
        boosters = {}
        for name, checksum in manifest["files"].items():
            content = (directory / name).read_bytes()
            if digest(content) != checksum:
                raise BadData(f"{directory}: {name} is damaged: its checksum is not the manifest's")
            boosters[name] = xgboost.Booster(model_file=bytearray(content))
        return Model(manifest, boosters)
    except (OSError, KeyError, TypeError, ValueError, AttributeError, xgboost.core.XGBoostError) as error:
        raise BadData(f"{directory}: no model: {type(error).__name__}: {error}") from None


def estimates(model, group):
    """rows x candidates of the group: what a model says; NaN: not one of its candidates."""
    result = numpy.full(group.ratios.shape, numpy.nan)
    entry = model.group(group.operation, group.transposed)
    if entry is None:
        return result
    margins = learn.predict(model.boosters[entry["file"]], group.inputs)
    for output, candidate in enumerate(candidates_of(entry)):
        if candidate in group.candidates:
            result[:, group.candidates.index(candidate)] = margins[:, output]
    return result
