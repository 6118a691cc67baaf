"""The command line: tools/train/run."""

import argparse
import gzip
import json
import pathlib
import sys

from selector import data, judge, model, pack, training

BAD_INPUT = 3  # exit code; 2 is wrong use


def parser():
    top = argparse.ArgumentParser(prog="tools/train/run", description="Trains models of the selector: docs/selector.md")
    commands = top.add_subparsers(required=True, metavar="COMMAND")
    packing = commands.add_parser("pack", help="make a compact file of measurements")
    packing.add_argument("files", nargs="+", metavar="FILE", help="of sparsed_corpus measure, or of sparsectl measurements --all --out")
    packing.add_argument("--out", required=True, metavar="FILE.jsonl.xz")
    packing.set_defaults(run=run_pack)
    train = commands.add_parser("train", help="learn a model, judge it by cross-validation, write it")
    add_data(train)
    train.add_argument("--out", required=True, metavar="DIR", help="the model's directory")
    train.add_argument("--name", required=True, help="of the model: letters, digits, '-', '_' and '.'")
    train.add_argument("--warm-start", metavar="DIR", help="go on with this model")
    train.add_argument("--device", choices=("cpu", "cuda"), help="of exported measurements, take those of this kind of device (default: all, which are of one)")
    train.set_defaults(run=run_train)
    evaluate = commands.add_parser("evaluate", help="judge by cross-validation, or judge a model; write nothing")
    add_data(evaluate)
    other = evaluate.add_mutually_exclusive_group()
    other.add_argument("--model", metavar="DIR", help="judge this model (what it was trained on tells little)")
    other.add_argument("--learn-from", nargs="+", metavar="FILE", help="judge models of these measurements, of another device of the kind")
    evaluate.add_argument("--again", nargs="+", metavar="FILE", help="other measurements of some of these patterns by the same device: --results then has what was chosen, timed by them")
    evaluate.set_defaults(run=run_evaluate)
    return top


def add_data(command):
    command.add_argument("--data", required=True, nargs="+", metavar="FILE", help="measurements, packed or as they were written")
    command.add_argument("--results", metavar="FILE.jsonl.gz", help="write what the tables are made from")


def run_pack(arguments):
    read = data.read(arguments.files)
    pack.pack(read, arguments.out)
    print(f"{arguments.out}: {len(read.patterns)} patterns, {read.measurements()} measurements, {pathlib.Path(arguments.out).stat().st_size} bytes")


def run_train(arguments):
    if not model.NAME.fullmatch(arguments.name):
        raise data.BadData(f'"{arguments.name}" is no name of a model: 1 to 64 letters, digits, "-", "_" and ".", which is not the first')
    base = model.load(arguments.warm_start) if arguments.warm_start else None
    read = data.read(arguments.data, arguments.device)
    manifest, boosters, judged, pipelines = training.train(read, arguments.name, base)
    size = model.write(arguments.out, manifest, boosters)
    report(read, judged, pipelines, arguments.results)
    if base:
        print("Patterns that the older model had learned from, too, are no test of it: of these the shares are too good.")
    print(f"wrote {arguments.out}: {size} bytes")


def run_evaluate(arguments):
    given = model.load(arguments.model) if arguments.model else None
    read = data.read(arguments.data)
    again = data.read(arguments.again) if arguments.again else None
    if again and again.device != read.device:
        raise data.BadData(f"measured again on {again.device.model}, kernels {again.device.kernels}, at first on {read.device.model}, kernels {read.device.kernels}")
    learned, pipelines = None, None
    if given:
        training.check_fits(read, given)
        judged = training.judge_model(read, given)
    elif arguments.learn_from:
        learned = data.read(arguments.learn_from, read.device.kind)
        training.check_enough(learned)
        training.check_same_kernels(read, learned)
        judged = training.judge_across(read, learned)
    else:
        training.check_enough(read)
        judged, pipelines = training.cross_validate(read)
    report(read, judged, pipelines, None if again else arguments.results, learned)
    if again:
        report_again(read, judged, again, arguments.results)


def report(read, judged, pipelines, results, learned=None):
    print(f"{read.device.model}: {len(read.patterns)} patterns, {read.measurements()} measurements. Shares of the fastest candidate's speed:")
    heads = ("patterns", "default", "fixed", "first", "first_three", "first_worst_twentieth", "first_within_3_percent")
    print(f"{'group':16}{'class':12}" + "".join(f"{head.removeprefix('first_'):>16}" for head in heads))
    for one in judged:
        for name, entry in judge.summary(one.group, one.estimates).items():
            print(f"{one.group.name:16}{name:12}" + "".join(f"{entry[head]:>16}" for head in heads))
    write(results, training.result_lines(read, judged, pipelines, learned))


def report_again(read, judged, again, results):
    lines = list(training.again_lines(read, judged, again))
    print(f"Measured again: {again.measurements()} of {len(again.patterns)} patterns. The choices' shares of the speed of what was fastest at first:")
    for name in sorted({line["group"] for line in lines[1:]}):
        of = [line["regrets"] for line in lines[1:] if line["group"] == name]
        print(f"{name:16}{len(of):>16}" + "".join(f"{2 ** (-sum(regret[i] for regret in of) / len(of)):>16.4f}" for i in range(len(judge.TRIED))))
    write(results, lines)


def write(path, lines):
    """Writes raw results; nothing without a path."""
    if path:
        with gzip.GzipFile(path, "wb", mtime=0) as file:
            for line in lines:
                file.write((json.dumps(line, separators=(",", ":")) + "\n").encode())


def main():
    arguments = parser().parse_args()
    try:
        arguments.run(arguments)
    except data.BadData as error:
        print(f"error: {error}", file=sys.stderr)
        return BAD_INPUT
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


sys.exit(main())
