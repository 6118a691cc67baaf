"""A model directory: manifest.json and the boosters that it names, as the server reads them."""

import dataclasses
import json
import pathlib

import numpy
import xgboost

from selector import directory as files, learn
from selector.data import BadData, Candidate
from selector.directory import FORMAT, NAME, data_digest, digest


@dataclasses.dataclass
class Model:
    manifest: dict
    boosters: dict  # by file

    def group(self, operation, transposed):
        return next((g for g in self.manifest["groups"] if g["operation"] == operation and g["transposed"] == transposed), None)


def candidates_of(entry):
    return [Candidate(c["recipe"], c["kernel"]) for c in entry["candidates"]]


def group_entry(group, chosen, deviations, shared, old=None):
    """The manifest's of a group; chosen: which of its candidates the outputs are; old: the one that was gone on with, whose candidates stay."""
    types = {"tf32" if p.allow_tf32 else p.type for p in group.problems} | {"bf16" for p in group.problems if p.type == "f16"}
    least, most = min(p.k for p in group.problems), max(p.k for p in group.problems)
    candidates = [dict(recipe=group.candidates[j].pipeline, kernel=group.candidates[j].kernel, deviation=round(float(deviations[j]), 3))
                  if j >= 0 else old["candidates"][output] for output, j in enumerate(chosen)]
    measured = {candidate.pipeline for candidate in group.candidates} | {"csr"}  # the default
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
    """Writes the files of a model; returns their size in bytes."""
    contents = {name: bytes(booster if isinstance(booster, bytes) else stripped(booster).save_raw("ubj")) for name, booster in boosters.items()}
    return files.write(directory, manifest, contents)


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
