"""A model directory: manifest.json and the files that it names, with their checksums."""

import datetime
import json
import pathlib
import re

import xxhash

from selector.data import BadData

FORMAT = 1
NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,63}")
MOST_BYTES = 4_000_000  # of all files of a model


def digest(content):
    return xxhash.xxh3_128_hexdigest(content)


def data_digest(data):
    """Of what was learned from, in whatever order it was read."""
    content = xxhash.xxh3_128()
    for pattern in sorted(data.patterns, key=lambda pattern: pattern.name):
        for problem, measured in sorted(pattern.measured.items()):
            for candidate, m in sorted(measured.items()):
                content.update(
                    f"{pattern.name} {problem} {candidate} " f"{m.median_ms:.4g} {m.csr_ms:.4g}\n"
                )
    return content.hexdigest()


def write(directory, manifest, contents):
    """Writes the files, bytes by name, with their checksums in the manifest; returns their size in
    bytes. Nothing is left where they are too large."""
    directory = pathlib.Path(directory)
    now = datetime.datetime.now(datetime.timezone.utc)
    manifest = dict(
        manifest,
        format=FORMAT,
        created=now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        files={name: digest(content) for name, content in contents.items()},
    )
    text = json.dumps(manifest, indent=1, allow_nan=False) + "\n"
    size = len(text) + sum(map(len, contents.values()))
    if size > MOST_BYTES:
        raise BadData(
            f"the model would take {size} bytes, more than the {MOST_BYTES} that one "
            "may; after --warm-start, train one anew"
        )
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    (directory / "manifest.json").write_text(text, encoding="utf-8")
    return size
