#!/usr/bin/env python3
"""A stranger's first ten minutes: README.md's part of that name, from `git clone` to a dashboard.

  ten_minutes_test.py [SPARSED SPARSECTL]

Clones this repository into an empty folder and runs the commands that the clone's README.md has under
"Ten minutes", one after the other in one shell. With programs, the lines that install packages and build
are left out, and the programs are put where these would have made them. Addresses and /tmp are replaced
by ones of the test's own.

Looked at is what a stranger looks at: each block's output is what README.md shows below it, but for
numbers and what "..." stands for; none complains; the status page and a dashboard's panel, asked of a real
Prometheus, have the stranger's own multiplications. Skipped (exit status 77) where this is no checkout, or
Prometheus is not installed: then all but its part was run.
"""

import contextlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from pathlib import Path

import docs_test
from running import reserved_port

ROOT = Path(__file__).resolve().parents[2]
TITLE = "## Ten minutes"
PANEL = "Throughput by operation"
SKIPPED = 77
SECONDS = 240  # that the commands may take, programs not built
BUILD_SECONDS = 3600
COMPLAINT = re.compile(r"\b(?<!standard )(error|warn|warning|cannot|failed|not found|no such)\b", re.I)


def parts_of(readme):
    """(commands, what is shown below them or None) of each block under the title."""
    lines = readme.read_text().split(f"\n{TITLE}\n", 1)[1].split("\n## ", 1)[0].split("\n")
    fences = [at for at, line in enumerate(lines) if line.startswith("```")]
    parts = []
    for begin, end in zip(fences[::2], fences[1::2], strict=True):
        text = "\n".join(lines[begin + 1:end])
        if lines[begin] == "```sh":
            parts.append([text, None])
        elif lines[begin] == "```" and parts and parts[-1][1] is None:
            parts[-1][1] = text
    return parts


def is_as_shown(said, shown):
    """Whether it is the output that README.md shows. Numbers may be others, and columns wider; "..." in a
    line is anything, as a line of its own further lines. Which phases of a request are named, and whether
    they overlap, depends on how long they took: the kernel's is the one that must be there."""
    number = r"\d[\d,.e:-]*"

    def pattern(line):
        if re.match(r"(server|client) +[\d.]+ ms: .*\bkernel ", line):
            line = re.sub(r" ms: .*", " ms: ...kernel ...", line)
        line = re.sub(number, "0", re.sub(" {2,}", "  ", line.strip()))
        return re.escape(line).replace("0", number).replace(r"\ \ ", " +").replace(r"\.\.\.", ".*")

    lines = [line for line in shown.split("\n") if line.strip()]
    wanted = [r"(?:.*\n)*" if line == "..." else rf" *{pattern(line)} *\n\s*" for line in lines]
    return re.fullmatch("".join(wanted), said.strip() + "\n") is not None


def commands_for(parts, source, programs):
    """The blocks as they are run here: where they may build, they do."""
    built = []
    for text, _ in parts:
        text = text.replace("git clone REPOSITORY", f"git clone --quiet {source}")
        if programs:
            kept = [line for line in text.split("\n")
                    if not re.match(r"(deploy/install-packages|cmake --preset) ", line)]
            if len(kept) < len(text.split("\n")):
                kept.insert(1, "mkdir -p build/release/server build/release/client")
                for program, where in zip(programs, ("server", "client"), strict=True):
                    kept.insert(2, f"ln -s {program} build/release/{where}/")
            text = "\n".join(kept)
        elif os.getuid() != 0:
            text = text.replace("deploy/install-packages", "sudo deploy/install-packages")
        built.append(text)
    return built


def get(url):
    with urllib.request.urlopen(url, timeout=30) as reply:
        return reply.read().decode()


def query_of(clone, title):
    """The first query of a panel of the overview, with Grafana's variables filled in."""
    panels = json.loads((clone / "deploy/grafana/dashboards/sparsed.json").read_text())["panels"]
    [panel] = [panel for panel in panels if panel["title"] == title]
    expression = panel["targets"][0]["expr"]
    for variable, value in (("$__rate_interval", "1m"), ("$instance", ".*"), ("$kind", "work")):
        expression = expression.replace(variable, value)
    return expression


class Journey:
    def __init__(self, folder, programs):
        self.folder, self.clone, self.problems = folder, folder / "sparsed", []
        ports = [reserved_port() for _ in range(3)]
        self.server, self.metrics, self.prometheus = (f"127.0.0.1:{port}" for port in ports)
        self.replaced = {"127.0.0.1:7470": self.server, "127.0.0.1:7471": self.metrics,
                         "127.0.0.1:9090": self.prometheus, "/tmp/": f"{folder}/tmp/"}
        self.programs = programs

    def expect(self, holds, *what):
        if not holds:
            self.problems.append(" ".join(str(word) for word in what))

    def as_own(self, text):
        """With addresses and files of this test's own."""
        return re.sub("|".join(map(re.escape, self.replaced)), lambda found: self.replaced[found[0]], text)

    def run(self, parts, with_prometheus):
        script = docs_test.PRELUDE
        blocks = commands_for([(self.as_own(text), shown) for text, shown in parts], ROOT, self.programs)
        if not with_prometheus:
            blocks = [block for block in blocks if "prometheus --config.file" not in block]
        for number, block in enumerate(blocks):
            block = docs_test.as_functions(block)
            script += f"block={number}\nexec >'{self.folder}/said.{number}' 2>&1\n{block}\n"
        # Left running until it was looked at.
        script += f"touch '{self.folder}/done'\nsleep 600\n"
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("SPARSED_")},
            "HOME": str(self.folder), "WORK": str(self.folder), "SPARSED_SERVER": self.server,
            "METRICS": self.metrics, "SPARSED_PROGRAM": "sparsed", "LC_ALL": "C.UTF-8",
            "CUDA_VISIBLE_DEVICES": "",
        }
        (self.folder / "tmp").mkdir()
        process = subprocess.Popen(["bash", "-c", script], cwd=self.folder, env=environment,
                                   stdin=subprocess.DEVNULL, start_new_session=True)
        try:
            deadline = time.monotonic() + (SECONDS if self.programs else BUILD_SECONDS)
            while (process.poll() is None and not (self.folder / "done").exists()
                   and time.monotonic() < deadline):
                time.sleep(0.1)
            self.look(parts, len(blocks), with_prometheus)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def said(self, number):
        file = self.folder / f"said.{number}"
        return file.read_text(errors="replace") if file.exists() else ""

    def look(self, parts, ran, with_prometheus):
        outputs = [self.said(number) for number in range(ran)]
        if not (self.folder / "done").exists():
            # A block may have failed before, and the next ones because of it.
            self.expect(False, "the commands did not come to their end; they said:\n",
                        "\n".join(said[-2000:] for said in outputs if said))
            return
        for (commands, shown), said in zip(parts, outputs, strict=False):
            first = commands.split("\n")[0]
            for line in said.split("\n"):
                self.expect(not COMPLAINT.search(line), f"after `{first}` there is a complaint: {line}")
            if shown is not None:
                self.expect(is_as_shown(said, shown),
                            f"after `{first}` README.md shows\n{shown}\n-- and there is\n{said}")
        for log in self.folder.glob("server.*"):
            for line in log.read_text().split("\n"):
                self.expect(not re.search(r"Z (warn|warning|error|critical) ", line), f"the server's log has: {line}")
        self.expect(sum(shown is not None for _, shown in parts[:ran]) >= 1, "README.md shows no output")
        self.look_at_page()
        if with_prometheus:
            self.look_at_dashboard()

    def look_at_page(self):
        self.expect("<title>" in get(f"http://{self.metrics}/"), "the status page is no page")
        rows = json.loads(get(f"http://{self.metrics}/api/matrices?search=mine"))
        self.expect('"mine"' in json.dumps(rows), "the status page does not list the matrix:", rows)

    def look_at_dashboard(self):
        """Their own multiplications, and no uploads or lists instead of them."""
        query = query_of(self.clone, PANEL)
        url = f"http://{self.prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": query})
        series = {one["metric"].get("op"): float(one["value"][1])
                  for one in json.loads(get(url))["data"]["result"]}
        self.expect(math.isfinite(series.get("spmm", math.nan)) and series["spmm"] > 0,
                    f"the panel {PANEL} has no multiplication: {series}")
        alerts = json.loads(get(f"http://{self.prometheus}/api/v1/alerts"))["data"]["alerts"]
        self.expect(not alerts, "alerts are on: ", [alert["labels"]["alertname"] for alert in alerts])
        rules = json.loads(get(f"http://{self.prometheus}/api/v1/rules"))["data"]["groups"]
        self.expect(len(rules) >= 2, "the rules were not loaded:", rules)


def main(*programs):
    if subprocess.run(["git", "-C", ROOT, "rev-parse"], capture_output=True).returncode != 0:
        print("this is no checkout: there is nothing to clone")
        return SKIPPED
    with_prometheus = bool(shutil.which("prometheus") and shutil.which("promtool"))
    with tempfile.TemporaryDirectory(prefix="sparsed-ten-minutes-") as name:
        folder = Path(name)
        # Its README says how to get it; the clone's is the same.
        shown = subprocess.run(["git", "-C", ROOT, "show", "HEAD:README.md"], capture_output=True, text=True,
                               check=True).stdout
        readme = folder / "README.md"
        readme.write_text(shown)
        parts = parts_of(readme)
        journey = Journey(folder, [Path(program).resolve() for program in programs])
        journey.run(parts, with_prometheus)
        for problem in journey.problems:
            print(problem)
        if journey.problems:
            return 1
        print(f"{len(parts)} blocks of README.md did what it says")
    if not with_prometheus:
        print("prometheus is not installed: all but its part was run")
        return SKIPPED
    return 0


if __name__ == "__main__":
    if len(sys.argv) not in (1, 3):
        raise SystemExit(__doc__)
    sys.exit(main(*sys.argv[1:]))
