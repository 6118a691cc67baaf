#!/usr/bin/env python3
"""named_commands.py finds what there is not, and nothing else.

  named_commands_test.py SPARSED SPARSECTL
"""

import sys

from named_commands import Checker

WRONG = {
    "sparsectl prepre graph": "no command prepre",
    "sparsectl buffers putt B": "no command buffers putt",
    "sparsectl upload a.mtx --frobnicate": "upload has no --frobnicate",
    "sparsectl list --tune-for=spmm:8": "list has no --tune-for",
    "sparsectl prepare graph --tune-for=spnn:8": "spnn:8 is none of",
    "sparsectl wait graph another": "one word too many",
    "SPARSED_TOKEN_FILE=token sparsectl --server=host:7470 --tls-ka=ca.pem list": "no --tls-ka",
    "docker compose -f deploy/compose.yaml exec sparsed sparsectl lisst": "no command lisst",
    "sudo -u sparsed sparsed --config=FILE --chekc-config && true": "sparsed has no --chekc-config",
    "cmake --preset relase": "no preset relase",
    "cmake --build --preset release --target sparsed_skale": "no target sparsed_skale",
    "deploy/install-packages reordr": "no section [reordr]",
    "tests/bench/nothing.py": "there is no tests/bench/nothing.py",
    "bench_nothing": "there is no bench_nothing",
    "build/release/tools/scale/sparsed_scale graph.mtx --kards=2": "sparsed_scale has no --kards",
    "tools/train/run evaluate --agane": "tools/train/run has no --agane",
    "--threadz": "no program has --threadz",
}
RIGHT = (
    "sparsectl --server=host:7470 upload a.mtx --tune-for=spmm:8 --wait | tail -1",
    "sparsectl prepare NAME --tune-for=OPERATION:K", "sparsectl token new NAME [--role=ROLE]",
    "sparsectl spmm",
    "sparsectl help upload", "sparsectl COMMAND --help", "sparsectl explain alice~graph",
    "sparsectl -s host:1 -o json list",
    "sparsed --data-dir=/tmp/x --in-memory &", "cmake --build --preset release --target sparsed_scale",
    "deploy/install-packages reorder # as root",
    "tests/KIND", "attack_NAME", "sparsed_corpus measure --explore", "--worker-slots=2",
    "rsync -aH --numeric-ids a b",
)


def main(sparsed, sparsectl):
    checker = Checker(sparsed, sparsectl)

    def problems(text):
        return [*checker.problems(text), *checker.problems_of_flags(text)] or [*checker.wrong_uses(text)]

    wrong = [f"{text}: {problems(text)}" for text, said in WRONG.items()
             if len(problems(text)) != 1 or said not in problems(text)[0]]
    wrong += [f"{text}: {problems(text)}" for text in RIGHT if problems(text)]
    for line in wrong:
        print(line)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
