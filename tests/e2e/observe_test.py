#!/usr/bin/env python3
"""What an operator finds of a request: in the log, among the slow ones, as spans at a collector.

  observe_test.py SPARSED SPARSECTL
"""

import hashlib
import http.server
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 60
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
problems = []


def expect(holds, *what):
    if not holds:
        problems.append(" ".join(str(word) for word in what))


class Collector(http.server.ThreadingHTTPServer):
    """Takes OTLP over HTTP as JSON; answers `status`."""

    def __init__(self):
        self.spans, self.paths, self.status = [], set(), 200
        collector = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                collector.paths.add((self.path, self.headers["Content-Type"]))
                if collector.status == 200:
                    for resource in body["resourceSpans"]:
                        for scope in resource["scopeSpans"]:
                            collector.spans += scope["spans"]
                self.send_response(collector.status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *arguments):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def find(self, **wanted):
        return [span for span in list(self.spans)
                if all(span.get(key) == value for key, value in wanted.items())]


def wait_for(what, probe):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        found = probe()
        if found:
            return found
        time.sleep(0.05)
    problems.append(f"{what} did not come within {PATIENCE_SECONDS} s")
    return None


class Server:
    """Its log comes line by line, each of which must be JSON."""

    def __init__(self, sparsed, *flags):
        self.log = []
        self.process = subprocess.Popen(
            [sparsed, "--in-memory", "--listen=127.0.0.1:0", "--metrics-listen=127.0.0.1:0",
             "--host-memory=256MiB", "--devices=cpu", "--log-format=json", *flags],
            stderr=subprocess.PIPE, text=True, errors="surrogateescape")
        self.reader = threading.Thread(target=self.read, daemon=True)
        self.reader.start()
        serving = wait_for("the server", lambda: self.events(event="serving"))
        if not serving:
            raise SystemExit("\n".join(problems))
        self.address, self.metrics = serving[0]["listen"], serving[0]["metrics"]

    def read(self):
        for line in self.process.stderr:
            try:
                self.log.append(json.loads(line))
            except json.JSONDecodeError as error:
                problems.append(f"a line of the log is no JSON ({error}): {line!r}")

    def events(self, **wanted):
        return [line for line in list(self.log)
                if all(line.get(key) == value for key, value in wanted.items())]

    def metric(self, name):
        with urllib.request.urlopen(f"http://{self.metrics}/metrics", timeout=60) as reply:
            for line in reply.read().decode().splitlines():
                if line.startswith(name + " "):
                    return float(line.split()[-1])
        return None

    def stop(self):
        self.process.terminate()
        self.process.wait(timeout=120)
        self.reader.join(timeout=60)


def check_refusals(sparsed, sparsectl):
    """Who is refused, by whichever door he comes, has one line in the log that says what is known of him."""
    with tempfile.TemporaryDirectory(prefix="sparsed-refused-") as name:
        access = pathlib.Path(name) / "access.yaml"
        digest = hashlib.sha256(b"looks").hexdigest()
        access.write_text(f"tokens:\n  - {{name: looks, sha256: {digest}, tenant: t, role: read-only}}\n")
        access.chmod(0o600)
        server = Server(sparsed, f"--access-file={access}")

        seen = []

        def refused(what, **wanted):
            seen.append((what, wanted))
            wait_for(what, lambda: server.events(event="refused", **wanted))
            return (server.events(event="refused", **wanted) or [{}])[0]

        request = urllib.request.Request(f"http://{server.metrics}/api/status",
                                         headers={"Authorization": "Bearer nobody"})
        try:
            urllib.request.urlopen(request, timeout=60)
            problems.append("a page is shown to nobody")
        except urllib.error.HTTPError as error:
            expect(error.code == 401, "a page is refused with", error.code)
        line = refused("a page that is refused", **{"from": "HTTP port"})
        expect(line.get("level") == "warning" and line.get("code") == "UNAUTHENTICATED", line)

        called = subprocess.run([sparsectl, f"--server={server.address}", "delete", "graph"],
                                capture_output=True, text=True, timeout=120,
                                env={**os.environ, "SPARSED_TOKEN": "looks"})
        said = re.search(r"\(request ([0-9a-f]{16})\)$", called.stderr.strip())
        expect(said and called.returncode != 0, called)
        line = refused("a deletion that is refused", op="delete")
        expect(line.get("level") == "warning" and line.get("code") == "PERMISSION_DENIED"
               and line.get("tenant") == "t" and line.get("caller") == "token looks"
               and said and line.get("request_id") == said[1] and line.get("message"), line)
        counted = server.metric(
            'sparsed_requests_total{code="PERMISSION_DENIED",kind="work",op="delete",tenant="t"}')
        expect(counted == 1, "the deletion counts as", counted)
        server.stop()
        for what, wanted in seen:
            lines = server.events(event="refused", **wanted)
            expect(len(lines) == 1, what, "has not one line, but", lines)


def main(sparsed, sparsectl):
    collector = Collector()
    endpoint = f"http://127.0.0.1:{collector.server_address[1]}"
    server = Server(sparsed, "--slow-request=1us", f"--otlp-endpoint={endpoint}")
    with tempfile.TemporaryDirectory(prefix="sparsed-observe-") as name:
        folder = pathlib.Path(name)
        graph, operand, out = (str(folder / file) for file in ("s.mtx", "b.npy", "c.npy"))

        def call(*arguments, status=0, **environment):
            result = subprocess.run(
                [sparsectl, f"--server={server.address}", *arguments], capture_output=True,
                text=True, timeout=120, env={**os.environ, **environment})
            expect(result.returncode == status, arguments, "ended with", result.returncode,
                   result.stdout, result.stderr)
            return result

        # A client without a command line: files of random numbers.
        for words in (["matrix", "300x200", "--row-nonzeros=8", f"--out={graph}"],
                      ["dense", "200x16", f"--out={operand}"]):
            subprocess.run([sparsectl, "generate", *words], check=True, capture_output=True)

        # Uploads, deletions and ends of preparations are in the log, with caller and request id.
        said = call("-v", "upload", graph, "--name=graph", "--wait").stderr
        upload = re.search(r"^request (\S+)  Upload$", said, re.M)
        expect(upload, "-v does not say the id of the upload:", said)
        upload_id = upload.group(1) if upload else "none"
        # One line, and as all of them are slow here, that of a slow request.
        [line] = wait_for("the upload's line", lambda: server.events(
            op="upload", request_id=upload_id)) or [{}]
        expect(line.get("event") == "slow request" and line.get("level") == "warning"
               and line.get("subject") == "graph" and line.get("tenant") == "default"
               and line.get("caller"), line)
        [line] = wait_for("the preparation's line", lambda: server.events(
            event="preparation ready", request_id=upload_id)) or [{}]
        expect(line.get("level") == "info" and line.get("matrix") == "graph"
               and line.get("seconds", -1) >= 0 and line.get("message"), line)

        # So is a matrix that a product made.
        call("copy", "graph", "same")
        wait_for("the copy with both names", lambda: server.events(
            op="copy", subject="graph", result="same", code="OK"))
        call("copy", "graph", "before")
        call("rename", "before", "after")
        wait_for("the renamed matrix with both names", lambda: server.events(
            op="rename", subject="before", result="after", code="OK"))
        call("delete", "after")
        call("spgemm", "graph", "same", "--transpose-right", "--name=square").stderr
        [line] = wait_for("the line of the product that is kept", lambda: server.events(
            op="spgemm", result="square")) or [{}]
        [ready] = wait_for("the end of its preparation", lambda: server.events(
            event="preparation ready", matrix="square")) or [{}]
        expect(ready.get("request_id") == line.get("request_id") and ready.get("caller")
               and ready.get("tenant") == "default", ready, line)

        # A product in somebody's trace.
        product = json.loads(call(
            "--json", "spmm", "graph", f"--operand={operand}", f"--out={out}",
            TRACEPARENT=f"00-{TRACE}-{PARENT}-01", TRACESTATE="vendor=1").stdout)
        expect(product, "the product says nothing")
        [slow] = wait_for("the slow request", lambda: server.events(
            event="slow request", op="spmm", trace_id=TRACE)) or [{}]
        expect(slow.get("k") == 16 and slow.get("plan") and slow.get("transport") == "stream"
               and slow.get("kernel_ms", 0) > 0 and slow.get("level") == "warning", slow)
        [span] = wait_for("the product's span", lambda: collector.find(
            name="sparsed.spmm", traceId=TRACE)) or [{}]
        expect(span.get("parentSpanId") == PARENT, "whose child is it?", span)
        expect(span.get("traceState") == "vendor=1" and span.get("kind") == 2, span)
        attributes = {a["key"]: a["value"] for a in span.get("attributes", [])}
        expect(attributes.get("sparsed.request_id", {}).get("stringValue")
               == slow.get("request_id"), span)
        expect(attributes.get("sparsed.k", {}).get("intValue") == "16", span)
        begin, end = (int(span.get(key, 0)) for key in ("startTimeUnixNano", "endTimeUnixNano"))
        expect(begin < end and abs(end / 1e9 - time.time()) < 3600, "its times are", begin, end)
        phases = collector.find(parentSpanId=span.get("spanId"))
        expect({"kernel", "receive"} <= {phase["name"] for phase in phases}, phases)
        for phase in phases:
            expect(begin <= int(phase["startTimeUnixNano"]) <= int(phase["endTimeUnixNano"]) <= end,
                   "a phase is outside of its request:", phase, span)
        expect(collector.paths == {("/v1/traces", "application/json")}, collector.paths)

        # One that its caller does not record.
        other = "0" * 31 + "1"
        call("list", TRACEPARENT=f"00-{other}-{PARENT}-00")
        # A malformed one begins a trace of its own.
        call("show", "graph", TRACEPARENT=f"00-{TRACE}-{PARENT}")
        own = wait_for("a span of show", lambda: [
            span for span in collector.find(name="sparsed.get") if span["traceId"] != TRACE])
        expect(not collector.find(traceId=other), "a trace that is not recorded was sent")
        expect(own and all("parentSpanId" not in span for span in own), "whose child is it?", own)

        # A failure says its id, also to programs, and the log knows it.
        failed = call("show", "nobody", status=4).stderr
        expect(re.search(r"\(request [0-9a-f]{16}\)$", failed.strip()), failed)
        expect(wait_for("the failure in the log", lambda: server.events(
            event="request", op="get", level="info", code="NOT_FOUND",
            request_id=re.search(r"\(request ([0-9a-f]{16})\)$", failed.strip())[1])), failed)
        # So does one that is refused before it begins.
        refused = call("list", SPARSED_TOKEN="of-nobody", status=10).stderr
        refused_id = re.search(r"\(request ([0-9a-f]{16})\)$", refused.strip())
        expect(refused_id and wait_for("the refusal in the log", lambda: server.events(
            event="refused", request_id=refused_id[1], code="UNAUTHENTICATED")), refused)
        lines = [line for line in list(server.log) if "no access file" in line.get("message", "")]
        expect(len(lines) == 1 and lines[0].get("level") == "warning" and lines[0].get("op"),
               "a refused call is one line, not", lines)
        failed = json.loads(call("--json", "rename", "nobody", "other", status=4).stdout)
        expect(wait_for("the failure among the slow", lambda: server.events(
            event="slow request", request_id=failed["error"].get("request_id"),
            code="NOT_FOUND")), failed)

        # Names are what callers choose.
        call("rename", 'a"b\\c\n\x01\u00e4', "other", status=3)
        wait_for("the odd name", lambda: server.events(subject='a"b\\c\n\x01\u00e4'))

        listed = json.loads(call("--json", "slow", "--limit=100").stdout)["requests"]
        expect(any(one["operation"] == "spmm" and one["k"] == 16 and one["trace_id"] == TRACE
                   and one["timings_ms"]["kernel"] > 0 for one in listed), listed)
        expect(not any(one["operation"] in ("get", "list", "explain") for one in listed),
               "status calls are among the slow:", listed)
        looks = json.loads(call("--json", "slow", "--op=get").stdout)["requests"]
        expect(looks and all(one["operation"] == "get" for one in looks), looks)
        totals = [one["timings_ms"]["total"] for one in listed]
        expect(totals == sorted(totals, reverse=True), "the slowest do not come first:", totals)
        table = call("slow", "--limit=3").stdout
        expect("graph" in table and "where the time went" in table, table)

        call("delete", "graph")
        wait_for("the deletion's line", lambda: server.events(
            op="delete", subject="graph", level="warning"))

        # A collector that refuses, and comes back.
        collector.status = 503
        call("list")
        wait_for("the warning", lambda: server.events(event="spans cannot be sent"))
        wait_for("dropped spans",
                 lambda: (server.metric('sparsed_spans_total{result="dropped"}') or 0) > 0)
        collector.status = 200
        wait_for("the collector again", lambda: call("list") and server.events(
            event="spans can be sent again"))
        expect(server.metric('sparsed_spans_total{result="exported"}') > 0, "none was exported")
        server.stop()
        expect(server.process.returncode == 0, "it ended with", server.process.returncode)
    collector.shutdown()
    check_refusals(sparsed, sparsectl)

    # What is wrong at the start is JSON, too.
    result = subprocess.run(
        [sparsed, "--in-memory", "--listen=192.0.2.1:1", "--metrics-listen=off", "--insecure",
         "--host-memory=64MiB", "--devices=cpu", "--log-format=json"],
        capture_output=True, text=True, timeout=120)
    lines = [json.loads(line) for line in result.stderr.splitlines()]
    expect(result.returncode == 1 and lines and lines[-1]["event"] == "not started"
           and "192.0.2.1" in lines[-1]["message"], result.stderr)

    for problem in problems:
        print(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
