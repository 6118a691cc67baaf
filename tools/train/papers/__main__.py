"""The command line: see tools/train/papers/run."""

import argparse
import gzip
import json
import math
import sys

import torch

from selector import data, directory

from . import DataError, cases, maps, orders, products, served, thresholds


def pack(task, args):
    if task == "orders":
        packed = cases.orders(args.files, args.corpus or [])
    else:
        packed = {"thresholds": cases.thresholds, "products": cases.products}[task](args.files)
    if not packed.cases:
        raise DataError(f"there is nothing of {task} in these files")
    cases.save(args.out, packed)
    print(f"{args.out}: {len(packed.cases)} patterns, {len(packed.contenders)} contenders, {packed.device}")


def make_maps(args):
    names = [c.pattern for c in cases.load(args.file, "products").cases]
    maps.save(args.out, maps.make(names, args.corpus_program, args.files))
    print(f"{args.out}: {len(names)} maps")


def judged(args):
    """Out-of-fold choices: a line for each setting, split and pattern; and a word on each model."""
    packed = cases.load(args.file, args.task)
    if args.task == "products":
        of_patterns = maps.load(args.maps) if args.maps else None
        if of_patterns is None or any(c.pattern not in of_patterns for c in packed.cases):
            raise DataError("density maps of all patterns are needed: --maps (tools/train/papers/run maps makes them)")
    for split, divide in cases.SPLITS.items():
        fold_of = divide(packed.cases, args.folds)
        for setting in packed.settings:
            chosen = [None] * len(packed.cases)
            for fold in sorted(set(fold_of)):
                train = [c for c, f in zip(packed.cases, fold_of) if f != fold]
                test = [i for i, f in enumerate(fold_of) if f == fold]
                held_out = [packed.cases[i] for i in test]
                if args.task == "products":
                    of_models = products.choices(train, held_out, setting, packed.contenders, of_patterns)
                elif args.task == "thresholds":
                    of_models = thresholds.choices(train, held_out, setting, packed.contenders)
                else:
                    of_models = orders.choices(train, held_out, setting)
                for place, i in enumerate(test):
                    chosen[i] = {model: int(of_cases[place]) for model, of_cases in of_models.items()}
            for model in chosen[0]:
                shares = [min(v for v in c.ms[setting] if v is not None) / c.ms[setting][of[model]] for c, of in zip(packed.cases, chosen)]
                mean = math.exp(sum(map(math.log, shares)) / len(shares))
                print(f"{args.task} {setting}, folds by {split}: {model} reaches {mean:.3f} of the oracle", flush=True)
            for c, of in zip(packed.cases, chosen):
                yield {"task": args.task, "setting": setting, "split": split, "pattern": c.pattern, "chosen": of}


def predict(args):
    with gzip.GzipFile(args.out, "wb", 9, mtime=0) as file:
        for line in judged(args):
            file.write((json.dumps(line, separators=(",", ":")) + "\n").encode())


def train(args):
    """A model directory, and what its choices are worth."""
    of_patterns = maps.load(args.maps) if args.maps else None
    if args.task == "products" and args.model in ("cnn", "matnet") and of_patterns is None:
        raise DataError("density maps of the patterns are needed: --maps (sparsed_corpus features --maps makes them)")
    packed = cases.load(args.thresholds, "thresholds") if args.thresholds else None
    manifest, contents, lines = served.train(args.task, data.read(args.data), args.name, args.model, of_patterns, packed)
    size = directory.write(args.out, manifest, contents)
    if args.results:
        served.write_results(args.results, lines)
    print(f"{args.out}: {size} bytes, {manifest['data']['patterns']} patterns, {manifest['device']['model']}")


def parse(arguments):
    parser = argparse.ArgumentParser(prog="tools/train/papers/run", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="raw measurements into a packed file")
    packing.add_argument("task", choices=["orders", "thresholds", "products"])
    packing.add_argument("files", nargs="+")
    packing.add_argument("--corpus", action="append", help="of orders: files of sparsed_corpus measure, which have the features")
    packing.add_argument("--out", required=True)
    mapping = commands.add_parser("maps", help="density maps of a packed file's patterns")
    mapping.add_argument("file")
    mapping.add_argument("--corpus-program", required=True, help="sparsed_corpus")
    mapping.add_argument("--files", help="the folder of the matrix files among the patterns")
    mapping.add_argument("--out", required=True)
    predicting = commands.add_parser("predict", help="trains each model on all folds but one and has it choose for that one")
    predicting.add_argument("task", choices=["orders", "thresholds", "products"])
    predicting.add_argument("file", help="a packed file")
    predicting.add_argument("--maps", help="of products: the density maps")
    predicting.add_argument("--folds", type=int, default=6)
    predicting.add_argument("--out", required=True)
    training = commands.add_parser("train", help="trains a model that a server takes, in the place of the selector's trees")
    training.add_argument("task", choices=["orders", "thresholds", "products"])
    training.add_argument("--data", nargs="+", required=True, help="measurements, as tools/train/run takes them")
    training.add_argument("--name", required=True, help="what the model is called")
    training.add_argument("--out", required=True, help="the model's directory")
    training.add_argument("--model", choices=["matnet", "mlp", "cnn", "tree"], default="matnet", help="of products")
    training.add_argument("--maps", help="of products: the density maps; patterns without one are left out")
    training.add_argument("--thresholds", help="of thresholds: their packed file; --data has the patterns' features and building times")
    training.add_argument("--results", help="a file for what each choice for patterns of families that were not seen is worth")
    args = parser.parse_args(arguments)
    if args.command == "train" and not directory.NAME.fullmatch(args.name):
        parser.error("--name: 1 to 64 letters, digits, '-', '_' and '.', which is not the first")
    if args.command == "predict" and not 2 <= args.folds <= 100:
        parser.error("--folds: 2 to 100")
    return args


def main(arguments=None):
    args = parse(arguments)
    torch.set_num_threads(1)
    try:
        if args.command == "pack":
            pack(args.task, args)
        elif args.command == "maps":
            make_maps(args)
        elif args.command == "train":
            train(args)
        else:
            predict(args)
    except (DataError, data.BadData) as error:
        print(error, file=sys.stderr)
        return 3
    except OSError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
