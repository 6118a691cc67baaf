#!/usr/bin/env python3
"""Runs the shell commands of the documents, each page's against a server of its own.

  docs_test.py SPARSED SPARSECTL [--python] [PAGE...]

Without pages: all that the repository has but CHANGELOG.md. The blocks of a page that are
marked as `sh` run one after the other in one shell, in an empty folder that looks like the root of the
repository. Comments of HTML before a block change that:

  <!-- not run: REASON; tests/FILE runs it -->   it cannot run here, and why: root, a network, an hour; and
                              the test that runs its commands, or such ones: FILE, or what it takes from
                              tests/, has all of the block's long flags and subcommands in it ("renders":
                              those of Helm's values)
  <!-- not run: it takes X, which no test has -->   a GPU, for instance. That there are the programs, commands
                              and flags of blocks that do not run is looked at all the same
  <!-- fails: TEXT -->        it fails on purpose, and says that
  <!-- needs: python -->      only where the Python package is installed (--python; tests/python)
  <!-- needs: LIBRARY -->     only where this shared library is installed: libxgboost.so.0

What a block takes for granted, the blocks before it have made, where a reader sees it.
Of a page that needs the Python package, its blocks of `python` run, too: one program, each block in its place among
those of `sh`, on the same server.

Commands and flags in sentences, between backticks, are held against the programs (named_commands.py), and
what no test can run for want of Docker, Kubernetes or systemd has to be said on its page.

Links to files, and to headings of pages, have to lead somewhere. docs/reference-metrics.md, which is made from
sources, has to have what a server serves; docs/operations.md, or cluster.md, each flag of the server.

Addresses and folders that documents name, such as 127.0.0.1:7470 and /var/lib/sparsed, are replaced by
free ones. `sparsed` in the background is waited for; in the foreground it is stopped once it serves. A
page that starts none has one with a data directory. What is downloaded from https://example.org/ is
tests/e2e/docs_test.py's own. Exits with 1 if a command failed, or a reason is missing.
"""

import ctypes
import gzip
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

from named_commands import Checker
from running import reserved_port

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 240  # that a page may take
# Why a block does not run.
REASON = re.compile(r"[^;]+(?:; (?P<tests>tests/\S+(?:, tests/\S+)*) (?:runs?|renders) it|, which no test has)", re.S)

PRELUDE = r"""
set -eEo pipefail
trap 'echo "failed: the block at line $block"; exit 1' ERR
# sparsed in the background, once it serves. Its address, unless it says one, is this page's.
serve() {
  local more=() log pid i
  [[ " $* " == *" --listen="* || " $* " == *" --config="* ]] || more+=(--listen="$SPARSED_SERVER")
  [[ " $* " == *" --metrics-listen="* || " $* " == *" --config="* ]] ||
    more+=(--metrics-listen="$METRICS")
  log=$(mktemp "$WORK/server.XXXXXX")
  SPARSED_SERVER='' "$SPARSED_PROGRAM" "$@" "${more[@]}" >"$log" 2>&1 &
  pid=$!
  echo "$pid" >>"$WORK/pids"
  for ((i = 0; i < 600; i++)); do
    if grep -q ' serving ' "$log"; then return 0; fi
    if ! kill -0 "$pid" 2>/dev/null; then break; fi
    sleep 0.1
  done
  echo "sparsed $* does not serve:"
  cat "$log"
  return 1
}
# In the foreground: beside the page's server, if it has one.
serve_for_a_moment() {
  SPARSED_SERVER=127.0.0.1:0 METRICS=127.0.0.1:0 serve "$@"
  local pid
  pid=$(tail -n 1 "$WORK/pids")
  kill "$pid"
  wait "$pid"
}
# A block that fails on purpose, and what it says.
fails() {
  local said
  if said=$(bash -c "$2" 2>&1); then echo "the block at line $block was to fail"; exit 1; fi
  [[ "$said" == *"$1"* ]] || { echo "the block at line $block says: $said"; exit 1; }
}
# A block of Python in the page's one program.
run_python() {
  [[ -n "${PROGRAM_PID:-}" ]] || coproc PROGRAM { exec python3 -c "$PROGRAM_READER"; }
  local said
  echo "$1" >&"${PROGRAM[1]}"
  read -r said <&"${PROGRAM[0]}"
}
"""

# Runs the files that standard input names, in one namespace, and says so of each.
PROGRAM_READER = """
import os, sys
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
names = {"__name__": "__main__"}
for path in sys.stdin:
    path = path.strip()
    exec(compile(open(path).read(), path, "exec"), names)
    print("done", file=answers, flush=True)
"""


class Block:
    """Commands between ```sh and ```, or of Python, and what the comments before them say."""

    def __init__(self, kind, line, text, comments):
        self.kind, self.line, self.text = kind, line, text
        self.reason, self.needs, self.fails = (comments.get(name) for name in ("not run", "needs", "fails"))


def blocks_of(page):
    """The page's blocks; comments belong to the next one, with nothing but blank lines between."""
    found, comments = [], {}
    lines = page.read_text().splitlines()
    at = 0
    while at < len(lines):
        line = lines[at]
        comment = re.match(r"<!-- (not run|needs|fails): *(.*?) *(-->|$)", line)
        if comment:
            text = comment[2]
            while not lines[at].rstrip().endswith("-->"):
                at += 1
                text += "\n" + lines[at].rstrip().removesuffix("-->").rstrip()
            comments[comment[1]] = text
        elif re.match(r" *```", line):
            first = at + 1
            at += 1
            while at < len(lines) and lines[at].strip() != "```":
                at += 1
            kind = line.strip().removeprefix("```")
            if kind in ("sh", "python"):
                indent = len(line) - len(line.lstrip())
                text = "\n".join(part[indent:] for part in lines[first:at])
                found.append(Block(kind, first, text, comments))
            comments = {}
        elif line.strip():
            comments = {}
        at += 1
    return found


def as_functions(commands):
    """Starts of servers as calls of the prelude's functions."""
    joined = re.sub(r"\\\n\s*", "", commands)  # continued lines are one
    lines = []
    for line in joined.splitlines():
        start = re.match(r"sparsed (?!.*--(help|version|print-config|salvage|calibrate))(.*?)( &)?\s*(#.*)?$", line)
        if start:
            line = f"{'serve' if start[3] else 'serve_for_a_moment'} {start[2]}"
        lines.append(line)
    return "\n".join(lines)


def starts_server(blocks):
    return any(re.search(r"^sparsed .*&", block.text, re.M) for block in blocks)


def is_installed(library):
    try:
        ctypes.CDLL(library)
        return True
    except OSError:
        return False


def wrong_commands(block, programs):
    """Of a block that does not run: what the programs say to commands and flags that there are not."""

    def said(program, *arguments, **environment):
        return subprocess.run([program, *arguments], capture_output=True, text=True, timeout=60,
                              stdin=subprocess.DEVNULL, env={**os.environ, **environment})

    for line in re.sub(r"\\\n\s*", "", block.text).splitlines():
        # Up to what the shell makes of the rest.
        command = re.match(r"(sparsed|sparsectl) [^|&;<>$`#\[]*", line)
        if not command:
            continue
        program, *arguments = shlex.split(command[0])
        if program == "sparsed":  # the settings that it would start with
            done = said(programs[0], *arguments, "--print-config")
            wrong = "there is no flag" in done.stderr
        else:  # nobody is at that address: what is right gets as far as that, or to its files
            done = said(programs[1], "--timeout=1s", *arguments, SPARSED_SERVER="127.0.0.1:1")
            wrong = done.returncode == 2
        if wrong:
            yield f"{command[0].strip()}: {done.stderr.strip()}"


# Programs whose first words are commands; of sparsectl's, these have commands of their own.
COMMANDED = re.compile(r"(?:^|[\s/])(?P<name>sparsectl|sparsed_corpus|tools/train/(?:papers/)?run) "
                       r"(?P<words>[^|&;#\n]*)", re.M)
GROUPS = ("buffers", "cluster", "model", "snapshot", "token")


# Tests that run a page's blocks as they find them.
OF_PAGES = {"tests/e2e/ten_minutes_test.py": ROOT / "README.md"}


def claims_of(block):
    """What a test which runs the block has to have: its long flags and subcommands."""
    text = re.sub(r"\\\n\s*", "", block.text)
    if "renders it" in block.reason:
        values = re.findall(r"--set '?([\w.]+)=", text)
        return dict.fromkeys(part for value in values for part in value.split(".")), {}
    flags = re.findall(r"(?<![\w-])--[a-z](?:[\w.-]*\w)?", text)
    commands = []
    for command in COMMANDED.finditer(text):
        words = re.sub(r"(^|\s)--?(server|s|o)[ =]\S+", " ", command["words"]).split()
        words = [word for word in words if not word.startswith("-")]
        commands += words[:2 if command["name"] == "sparsectl" and words[:1] and words[0] in GROUPS else 1]
    return dict.fromkeys(flags), dict.fromkeys(commands)


def code_of(path, seen):
    """What the file has besides comments, and what it imports, includes or sources from tests/."""
    if path in seen or not path.is_file():
        return ""
    seen.add(path)
    lines = path.read_text().splitlines()
    code = "\n".join(line for line in lines if not re.match(r"\s*(#(?!include)|//)", line))
    code = re.sub(r'^"""(.|\n)*?"""', "", code, count=1)  # what a program says of itself
    taken = [path.parent / f"{name}.py" for name in re.findall(r"^\s*(?:from|import) (\w+)", code, re.M)]
    taken += [ROOT / name for name in re.findall(r'^#include "(tests/[^"]+)"', code, re.M)]
    taken += [file.with_suffix(".cc") for file in taken if file.suffix == ".h"]
    return "\n".join([code] + [code_of(file, seen) for file in taken])


def unproven(block, tests):
    """Of what the block has, what none of the tests that are said to run it has."""
    seen = set()
    code = "\n".join(code_of(ROOT / test, seen) for test in tests)
    flags, commands = claims_of(block)
    missing = [flag for flag in flags if not re.search(rf"(?<![\w-]){re.escape(flag)}(?![\w-])", code)]
    # A word of its own in a string, or behind its program's name.
    return missing + [command for command in commands if not re.search(
        rf"[\"']{re.escape(command)}[\"' ]|(?:sparsectl|ctl|corpus|run)\S*( \S+)* {re.escape(command)}(?![\w-])", code)]


class Page:
    def __init__(self, path, programs, checker, python):
        self.path, self.programs, self.checker, self.python = path, programs, checker, python
        self.problems, self.left_out, self.ran = [], [], 0

    def run(self):
        runnable = []
        blocks = blocks_of(self.path)
        if not (self.python and any(block.needs == "python" for block in blocks)):
            blocks = [block for block in blocks if block.kind == "sh"]
        for block in blocks:
            where = f"{self.path.relative_to(ROOT)}:{block.line}"
            if block.reason is not None:
                reason = REASON.fullmatch(block.reason)
                tests = re.split(", ", reason["tests"] or "") if reason else []
                if not reason or not all((ROOT / test).exists() for test in tests):
                    self.problems.append(f"{where}: the reason names no test that runs it, or no file: {block.reason}")
                missing = []
                if reason and reason["tests"] and not any(OF_PAGES.get(test) == self.path for test in tests):
                    missing = unproven(block, tests)
                if missing:
                    self.problems.append(f"{where}: {reason['tests']} does not run {', '.join(missing)}")
                self.left_out.append(f"{where}: {block.reason}")
                self.problems += [f"{where}: {wrong}"
                                  for wrong in [*wrong_commands(block, self.programs),
                                                *self.checker.problems(block.text)]]
            elif block.needs not in (None, "python") and not block.needs.startswith("lib"):
                self.problems.append(f"{where}: needs what? {block.needs}")
            elif block.needs not in (None, "python"):
                if is_installed(block.needs):
                    runnable.append(block)
                else:
                    self.left_out.append(f"{where}: {block.needs} is not installed")
            elif block.needs and not self.python:
                self.left_out.append(f"{where}: the Python package; tests/python runs it")
            else:
                runnable.append(block)
        if runnable:
            self.execute(runnable)
        self.ran = len(runnable)

    def execute(self, blocks):
        work = Path(tempfile.mkdtemp(prefix="sparsed-docs-"))
        try:
            self.execute_in(work, blocks)
        finally:
            shutil.rmtree(work, ignore_errors=True)

    def execute_in(self, work, blocks):
        folder = work / "repository"
        folder.mkdir()
        for entry in ROOT.iterdir():
            if entry.name not in ("build", ".git"):
                (folder / entry.name).symlink_to(entry)
        programs = work / "bin"
        programs.mkdir()
        for name, program in zip(("sparsed", "sparsectl"), self.programs):
            (programs / name).symlink_to(program)
        for name in ("run", "etc", "tmp", "web"):
            (work / name).mkdir()
        (work / "web/graph.txt.gz").write_bytes(gzip.compress(b"# from to\n0 1\n0 2\n1 2\n"))
        port, metrics = reserved_port(), reserved_port()
        replaced = {
            "127.0.0.1:7470": f"127.0.0.1:{port}", "127.0.0.1:7471": f"127.0.0.1:{metrics}",
            "localhost:7471": f"127.0.0.1:{metrics}", "/var/lib/sparsed": f"{work}/data",
            "/run/sparsed": f"{work}/run", "/etc/sparsed": f"{work}/etc", "/tmp/": f"{work}/tmp/",
            "https://example.org/": f"file://{work}/web/",
        }

        script = PRELUDE
        if not starts_server(blocks):
            script += 'block=0\nserve --data-dir="$WORK/own"\n'
        for block in blocks:
            commands = as_functions(block.text) if block.kind == "sh" else block.text
            commands = re.sub("|".join(map(re.escape, replaced)), lambda found: replaced[found[0]], commands)
            if block.fails is not None:
                commands = f"fails {shlex.quote(block.fails)} {shlex.quote(commands)}"
            if block.kind == "python":
                program = work / f"{self.path.name}:{block.line}"
                program.write_text("\n" * block.line + commands)
                commands = f"run_python {program}"
            script += f"block={block.line}\n{commands}\n"
        environment = {
            **{name: value for name, value in os.environ.items()
               if not name.startswith("SPARSED_") or name == "SPARSED_LIBRARY"},
            "PATH": f"{programs}:{os.environ['PATH']}", "HOME": str(work), "WORK": str(work),
            "SPARSED_SERVER": f"127.0.0.1:{port}", "METRICS": f"127.0.0.1:{metrics}",
            "SPARSED_PROGRAM": str(self.programs[0]), "PROGRAM_READER": PROGRAM_READER, "LC_ALL": "C.UTF-8",
            "CUDA_VISIBLE_DEVICES": "",
        }
        output = work / "output"
        with open(output, "wb") as out:
            process = subprocess.Popen(["bash", "-c", script], cwd=folder, env=environment, stdout=out,
                                       stderr=out, stdin=subprocess.DEVNULL, start_new_session=True)
            try:
                status = process.wait(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                status = f"none after {SECONDS} s"
            finally:
                try:  # the servers, and what else the page left in the background
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
                process.wait()
        if status != 0:
            said = output.read_text(errors="replace")[-4000:]
            self.problems.append(f"{self.path.relative_to(ROOT)}: exit status {status}\n{said}")


def anchors_of(page):
    """What links may name behind #, as GitHub makes them of headings."""
    anchors, fenced = set(), False
    for line in page.read_text().splitlines():
        if line.strip().startswith("```"):
            fenced = not fenced
        heading = None if fenced else re.match(r"#+ (.*)", line)
        if heading:
            text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading[1]).strip().lower()
            text = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
            again = sum(1 for one in anchors if re.fullmatch(re.escape(text) + r"(-\d+)?", one))
            anchors.add(f"{text}-{again}" if again else text)
    return anchors


def broken_links(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    text = re.sub(r"`[^`\n]*`", "", text)
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, anchor = link.partition("#")
        if re.match(r"[a-z]+:", link):
            continue
        target = (page.parent / file).resolve() if file else page
        if not target.exists():
            yield f"{page.relative_to(ROOT)}: {link} leads nowhere"
        elif anchor and target.suffix == ".md" and anchor not in anchors_of(target):
            yield f"{page.relative_to(ROOT)}: {link}: there is no such heading"


def metrics_problems(sparsed):
    """What a scrape has and the reference has not."""
    process = subprocess.Popen([sparsed, "--in-memory", "--listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0",
                                "--devices=cpu"], stderr=subprocess.PIPE, text=True)
    try:
        address = None
        while address is None:
            line = process.stderr.readline()
            if not line:
                return ["a server for its metrics does not start"]
            address = re.search(r" serving .* metrics=(\S+)", line)
        page = urllib.request.urlopen(f"http://{address[1]}/metrics", timeout=60).read().decode()
    finally:
        process.terminate()
        process.communicate()
    kinds = dict(re.findall(r"^# TYPE (\S+) (\S+)", page, re.M))
    helps = re.findall(r"^# HELP (\S+) (.*)", page, re.M)
    reference = (ROOT / "docs/reference-metrics.md").read_text()
    if len(helps) < 20:
        return [f"a server has {len(helps)} metrics"]
    lines = [f"| `{name}` | {kinds[name]} | {text} |" for name, text in helps]
    return [f"docs/reference-metrics.md has not: {line}" for line in lines if line not in reference]


def flags_problems(sparsed):
    """Flags of the server that no operator reads of."""
    said = subprocess.run([sparsed, "--help"], capture_output=True, text=True, timeout=60).stdout
    flags = set(re.findall(r"^  (?:-\w,)?(--[a-z-]+)", said, re.M))
    if len(flags) < 40:
        return [f"sparsed --help has {len(flags)} flags"]
    text = "".join((ROOT / f"docs/{name}.md").read_text() for name in ("operations", "cluster"))
    return [f"docs/operations.md has not {flag}" for flag in sorted(flags)
            if not re.search(rf"{flag}(?![\w-])", text)]


def main(sparsed, sparsectl, *arguments):
    python = "--python" in arguments
    pages = [Path(page).resolve() for page in arguments if not page.startswith("--")]
    if not pages:
        pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md",
                                          "client/python/README.md", "tests/data/README.md")]
        pages += sorted((ROOT / "docs").rglob("*.md"))
    problems = 0
    if ROOT / "docs/reference-metrics.md" in pages:
        for line in metrics_problems(sparsed):
            print(f"PROBLEM {line}")
            problems += 1
    if ROOT / "docs/operations.md" in pages:
        for line in flags_problems(sparsed):
            print(f"PROBLEM {line}")
            problems += 1
    programs = (Path(sparsed).resolve(), Path(sparsectl).resolve())
    checker = Checker(*programs)
    for path in pages:
        page = Page(path, programs, checker, python)
        page.run()
        page.problems += [*checker.problems_of_page(path), *checker.not_said(path), *broken_links(path)]
        if page.ran or page.left_out:
            print(f"{path.relative_to(ROOT)}: {page.ran} blocks ran, {len(page.left_out)} did not",
                  flush=True)
        for line in page.left_out:
            print(f"  {line}")
        for line in page.problems:
            print(f"PROBLEM {line}", flush=True)
        problems += len(page.problems)
    return 1 if problems else 0


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    sys.exit(main(*sys.argv[1:]))
