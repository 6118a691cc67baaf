#!/usr/bin/env python3
"""Makes the pages of docs from the raw results beside them.

    tests/bench/pages.py            write them
    tests/bench/pages.py --check    exit with 1 if one is not what docs/results gives

A page is made as a whole (PAGES), or has places between `<!-- begin NAME: made by tests/bench/SCRIPT -->` and
`<!-- end NAME -->` (PLACES). Who measures again puts the raw results into docs/results and runs this. Pictures are drawn, and compared, where
python3-matplotlib is installed in the version that drew those that are there.
"""

import difflib
import pathlib
import re
import sys
import tempfile

import attention_tables
import build_tables
import cards_tables
import data_movement_tables
import distributed_tables
import epoch_tables
import h100_tables
import iteration_tables
import kernel_tables
import layout_tables
import page_cost_tables
import papers_tables
import permutation_tables
import predictor_tables
import scale_tables
import selection_tables
import selector_tables
import spgemm_tables
import summary_tables
import tables
import width_tables

ROOT = pathlib.Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs/results"
H100 = RESULTS / "h100"


def h100(*names):
    return [H100 / name for name in names]


PLANS = h100(*(f"plans-{kind}.jsonl.gz" for kind in summary_tables.TYPES))


def results_h100():
    plans = h100_tables.page(PLANS, ROOT / "docs/results-h100.md")
    return "\n".join([plans, *width_tables.one_column(H100 / "vector.jsonl.gz"),
                      *width_tables.odd_widths(H100 / "odd-widths.jsonl.gz")])


PAGES = {
    "docs/papers.md": papers_tables.page,
    "docs/results-cpu.md": lambda: tables.page(RESULTS / "cpu"),
    "docs/results-h100.md": results_h100,
    "docs/results/h100/attention.md": lambda: attention_tables.page(*h100("attention.jsonl", "attention-gatv2.jsonl", "attention-peers.csv")),
    "docs/results/h100/builds.md": lambda: build_tables.page(h100("builds.jsonl.gz")),
    "docs/results/h100/cards.md": lambda: cards_tables.page(H100 / "cards.jsonl"),
    "docs/results/h100/distributed.md": lambda: distributed_tables.page(H100 / "distributed.jsonl"),
    "docs/results/h100/epochs.md": lambda: epoch_tables.page(
        *h100("epochs.jsonl", "calls.jsonl", "jobs.jsonl", "epochs-cpu.jsonl")),
    "docs/results/h100/iterations.md": lambda: iteration_tables.page(h100("iterations.jsonl.gz")),
    "docs/results/h100/layouts.md": lambda: layout_tables.page(h100("layouts.jsonl.gz", "tiles.jsonl.gz", "metis.jsonl.gz")),
    "docs/results/h100/permutations.md": lambda: permutation_tables.page(*h100("permutations.jsonl.gz")),
    "docs/results/cpu/selector.md": lambda: selector_tables.page(RESULTS / "cpu/selector.jsonl.gz"),
    "docs/results/h100/selection.md": selection_tables.page,
    "docs/results/h200/selector.md": lambda: selector_tables.page(RESULTS / "h200/selector.jsonl.gz"),
    "docs/results/h100/selector.md": lambda: selector_tables.page(H100 / "selector.jsonl.gz"),
    "docs/results/h100/predictors.md": predictor_tables.page,
    "docs/results/h100/spgemm.md": lambda: spgemm_tables.page(*h100("spgemm.jsonl.gz", "spgemm-plans.jsonl.gz")),
}

PLACES = {  # by page, then by name
    "README.md": {"speed-up": summary_tables.readme},
    "docs/results-cpu.md": {"summary-cpu": summary_tables.cpu},
    "docs/results-h100.md": {"summary-gpu": summary_tables.gpu},
    "docs/kernels-cuda.md": {
        "staged-dots": kernel_tables.staged_dots,
        "row-segments": kernel_tables.row_segments,
        "bitmaps": kernel_tables.bitmaps,
        "blocks": kernel_tables.blocks,
    },
    "docs/data-movement.md": {
        "counted": data_movement_tables.modelled_and_counted,
        "movements-spgemm": lambda: data_movement_tables.movements("spgemm"),
        "movements-whole": lambda: data_movement_tables.movements("spgemm-whole"),
        "times-spgemm": lambda: data_movement_tables.times("spgemm"),
        "movements-spmm": lambda: data_movement_tables.movements("spmm"),
        "times-spmm": lambda: data_movement_tables.times("spmm"),
    },
    "docs/operations.md": {"page-cost": page_cost_tables.answers},
    "docs/scale.md": {
        "scale-rates": scale_tables.rates,
        "scale-memory": scale_tables.memory,
        "scale-needed": scale_tables.needed,
        "scale-times-power-law": lambda: scale_tables.times("power_law"),
        "scale-times-communities": lambda: scale_tables.times("blocks"),
        "scale-graphs": scale_tables.graphs,
        "scale-speed-up": scale_tables.beside_one_card,
        "scale-million": scale_tables.million,
        "scale-one-card-parts": scale_tables.one_card_parts,
        "scale-validation": scale_tables.validation,
    },
}


def filled(text, name, lines, page):
    place = re.search(rf"(<!-- begin {re.escape(name)}: made by tests/bench/\w+\.py -->\n).*?(<!-- end {re.escape(name)} -->)",
                      text, re.S)
    if place is None:
        sys.exit(f"{page} has no place for {name}")
    return text[:place.end(1)] + "\n" + "\n".join(lines).rstrip() + "\n\n" + text[place.start(2):]


def made(page):
    text = PAGES[page]() if page in PAGES else (ROOT / page).read_text(encoding="utf-8")
    for name, lines in PLACES.get(page, {}).items():
        text = filled(text, name, lines(), page)
    return text


def pictures():
    """What draws each picture, given the path to draw to; nothing where this version of matplotlib would draw them otherwise."""
    first = (H100 / "permutations.svg").read_text(encoding="utf-8")
    try:
        import matplotlib
    except ImportError:
        return {}
    if f"Matplotlib v{matplotlib.__version__}," not in first:
        return {}
    classes = h100_tables.classes_of(h100_tables.read(PLANS))
    speedups = permutation_tables.speedups_of(permutation_tables.read(H100 / "permutations.jsonl.gz"))
    drawn = {h100_tables.picture_path(H100, op, kind): lambda path, op=op, kind=kind: h100_tables.draw(classes, op, kind, path)
             for op, kind in h100_tables.pictures(classes)}
    return {**drawn, H100 / "permutations.svg": lambda path: permutation_tables.draw(speedups, path)}


def stale_pictures():
    """Those that are not what docs/results gives."""
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "picture.svg"
        stale = []
        for picture, draw in pictures().items():
            draw(path)
            if not picture.exists() or picture.read_bytes() != path.read_bytes():
                stale.append(str(picture.relative_to(ROOT)))
        return stale


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    if sys.argv[1:]:
        stale = stale_pictures()
    else:
        stale = []
        for picture, draw in pictures().items():
            draw(picture)
    for page in sorted({*PAGES, *PLACES}):
        there, text = ROOT / page, made(page)
        if not sys.argv[1:]:
            there.write_text(text, encoding="utf-8")
            continue
        old = there.read_text(encoding="utf-8")
        if old != text:
            stale.append(page)
            changes = list(difflib.unified_diff(old.splitlines(), text.splitlines(), page, "docs/results", lineterm="", n=0))
            print("\n".join(changes[:20]))
    if stale:
        sys.exit(f"not what docs/results gives: {', '.join(stale)}; run tests/bench/pages.py")


if __name__ == "__main__":
    main()
