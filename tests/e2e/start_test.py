#!/usr/bin/env python3
"""What the server says when it starts: who can reach it, a GPU that it cannot use, its settings, and to
systemd.

  start_test.py SPARSED BROKEN_DRIVER SPARSECTL

BROKEN_DRIVER is a folder with a libcuda.so.1 that is no driver.
"""

import ctypes
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import urllib.request

from running import running

PROBE_SECONDS = 5  # between two looks of the server at itself
problems = []


class Started:
    """A server on free ports, its log and its metrics."""

    def __init__(self, sparsed, *flags, environment=None, before=(), data="--in-memory",
                 meanwhile=lambda server: None):
        variables = {name: value for name, value in os.environ.items()
                     if name != "CUDA_VISIBLE_DEVICES"}
        process = subprocess.Popen(
            [*before, sparsed, data, "--log-format=json", "--listen=127.0.0.1:0",
             "--metrics-listen=127.0.0.1:0", "--host-memory=64MiB", *flags],
            stderr=subprocess.PIPE, text=True, env={**variables, **(environment or {})})
        try:
            self.log = []
            while not self.events("serving"):
                line = process.stderr.readline()
                if not line:
                    raise RuntimeError(f"{flags}: it ended: {self.log}")
                self.log.append(json.loads(line))
            meanwhile(self.events("serving")[0]["listen"])
            url = f"http://{self.events('serving')[0]['metrics']}/metrics"
            self.metrics = urllib.request.urlopen(url, timeout=60).read().decode()
        finally:
            process.terminate()
            rest = process.stderr.read()
            process.wait(timeout=120)
        self.log += [json.loads(line) for line in rest.splitlines()]

    def events(self, name):
        return [line for line in self.log if line["event"] == name]

    def device_up(self):
        """The value for the GPU; None: there is none."""
        for line in self.metrics.splitlines():
            if line.startswith('sparsed_device_up{device="cuda:0"} '):
                return float(line.split()[-1])
        return None


def expect(holds, *what):
    if not holds:
        problems.append(" ".join(str(word) for word in what))


def check_gpu(sparsed, broken_driver):
    broken = {"LD_LIBRARY_PATH": broken_driver}
    server = Started(sparsed, environment=broken)
    warnings = server.events("device not used")
    expect(len(warnings) == 1, "a driver that does not work:", server.log)
    for warning in warnings:
        expect(warning["level"] == "warning", warning)
        expect(warning["device"] == "cuda:0", warning)
        expect("driver" in warning["reason"], warning)
        expect("--devices=cpu" in warning["meanwhile"], warning)
    expect(server.device_up() == 0, "a driver that does not work is", server.device_up())

    for flags, variables in (["--devices=cpu"], {}), ([], {"CUDA_VISIBLE_DEVICES": ""}):
        server = Started(sparsed, *flags, environment={**broken, **variables})
        expect(not server.events("device not used"), flags, variables, server.log)
        expect(server.device_up() is None, flags, variables, server.device_up())

    result = subprocess.run([sparsed, "--in-memory", "--devices=cuda:0", "--listen=127.0.0.1:0",
                             "--metrics-listen=off", "--host-memory=64MiB"],
                            capture_output=True, text=True, timeout=120,
                            env={**os.environ, **broken})
    expect(result.returncode == 1, "--devices=cuda:0 without one:", result.returncode)
    expect("cuda:0 cannot serve: " in result.stderr, result.stderr)

    if not any(name.startswith("nvidia") for name in os.listdir("/dev")):
        server = Started(sparsed)
        if not server.events("device not used"):  # or there is a card without a driver
            devices = server.events("serving")[0]["devices"]
            expect(devices.endswith("cuda:0: no NVIDIA driver here"), devices)
            expect(server.device_up() is None, server.device_up())


def check_addresses(sparsed):
    quiet = Started(sparsed, "--devices=cpu", "--listen=[::1]:0", "--listen=localhost:0")
    expect(not quiet.events("open to other machines"), quiet.log)
    refused = subprocess.run([sparsed, "--in-memory", "--devices=cpu", "--listen=0.0.0.0:0"],
                             capture_output=True, text=True, timeout=60)
    expect(refused.returncode == 2 and "--insecure" in refused.stderr, refused.stderr)
    server = Started(sparsed, "--devices=cpu", "--listen=0.0.0.0:0", "--insecure")
    [warning] = server.events("open to other machines") or [{}]
    expect(warning.get("level") == "warning", server.log)
    expect(warning.get("listen", "").startswith("0.0.0.0:"), warning)
    expect("read, replace and delete every matrix" in warning.get("meaning", ""), warning)


def check_http_port(sparsed, sparsectl):
    """Whoever asks the port of metrics and of the status page is told where to ask."""
    with tempfile.TemporaryDirectory(prefix="sparsed-http-") as folder:
        with running(sparsed, f"{folder}/log", "--in-memory", "--devices=cpu", "--host-memory=64MiB") as server:
            asked = subprocess.run([sparsectl, f"--server={server.metrics}", "list"], capture_output=True,
                                   text=True, timeout=120)
    expect(asked.returncode == 5, asked)
    expect(f"no sparsed at {server.metrics}: an HTTP server answers there (" in asked.stderr, asked)
    expect("gRPC is at its --listen" in asked.stderr, asked)


def check_data_directory(sparsed):
    """It is made and that is said, but none above it, which a slip would name."""
    with tempfile.TemporaryDirectory(prefix="sparsed-made-") as folder:
        data = f"{folder}/data"
        made = Started(sparsed, "--devices=cpu", data=f"--data-dir={data}").events("data directory made")
        expect([line["data_dir"] for line in made] == [data], made)
        again = Started(sparsed, "--devices=cpu", data=f"--data-dir={data}")
        expect(not again.events("data directory made"), again.log)
        for flags in ["--listen=127.0.0.1:0"], ["--salvage"], ["--calibrate"]:
            slip = subprocess.run([sparsed, f"--data-dir={folder}/dada/x", "--devices=cpu", *flags],
                                  capture_output=True, text=True, timeout=120)
            expect(slip.returncode == 1, flags, slip)
            expect(f"{folder}/dada/x cannot be made: there is no {folder}/dada (" in slip.stderr, slip)
        expect(sorted(os.listdir(folder)) == ["data"], os.listdir(folder))
        # What is a file is told once, whatever is to be done.
        file = f"{folder}/file"
        with open(file, "w") as made_file:
            made_file.write("not a folder\n")
        for flags in ["--listen=127.0.0.1:0"], ["--salvage"], ["--calibrate"]:
            wrong = subprocess.run([sparsed, f"--data-dir={file}", "--devices=cpu", *flags],
                                   capture_output=True, text=True, timeout=120)
            expect(wrong.returncode == 1, flags, wrong)
            expect(f"nothing can be made in {file}: Not a directory" in wrong.stderr, wrong)
            expect(wrong.stderr.count(file) == 1, "it is said more than once:", wrong.stderr)
        # Nor does a slash behind it, or a link, hide from the check what a start would meet.
        os.symlink(f"{folder}/nowhere", f"{folder}/link")
        for name, why in (f"{file}/", f"nothing can be made in {file}: Not a directory"), \
                         (f"{folder}/link", f"{folder}/link is a link to what is not there"):
            checked = subprocess.run([sparsed, f"--data-dir={name}", "--devices=cpu", "--check-config"],
                                     capture_output=True, text=True, timeout=120)
            expect(checked.returncode == 2 and why in checked.stderr, checked)


def check_volumes(sparsed):
    """A data volume on which nothing can be uploaded is told at the start; no other one is."""
    with tempfile.TemporaryDirectory(prefix="sparsed-volume-") as folder:
        server = Started(sparsed, "--devices=cpu", data=f"--data-dir={folder}/ordinary")
        expect(not server.events("no room for uploads"), server.log)
        # In a mount namespace, which takes no privileges where user namespaces are allowed.
        private = ["unshare", "--map-root-user", "--mount"]
        mount = f"mount -t tmpfs -o size=8m tmpfs {folder}"
        if subprocess.run([*private, "sh", "-c", mount], capture_output=True).returncode != 0:
            print("not tried: small volumes (no mount namespaces here)")
            return
        server = Started(sparsed, "--devices=cpu", data=f"--data-dir={folder}/small",
                         before=[*private, "sh", "-c", mount + ' && exec "$@"', "sh"])
        [warning] = server.events("no room for uploads") or [{}]
        expect(warning.get("level") == "warning", server.log)
        expect(0 < warning.get("free_bytes", 0) < 8 << 20, warning)
        expect(warning.get("kept_for_catalog_bytes") == 16 << 20, warning)
        expect("every upload" in warning.get("meaning", ""), warning)
        expect(f"{8 << 20} bytes in all" in warning.get("instead", ""), warning)


def check_service_manager(sparsed):
    """Told by systemd's protocol: once it serves, while it can be reached, and when it stops."""
    with tempfile.TemporaryDirectory(prefix="sparsed-notify-") as folder:
        manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        manager.bind(f"{folder}/notify")
        manager.settimeout(120)
        process = subprocess.Popen(
            [sparsed, "--in-memory", "--devices=cpu", "--listen=127.0.0.1:0", "--metrics-listen=off",
             "--host-memory=64MiB", "--log-level=warn"],
            env={**os.environ, "NOTIFY_SOCKET": f"{folder}/notify"})
        try:
            ready = manager.recv(4096).decode()
            expect(ready.startswith("READY=1\nSTATUS=serving at 127.0.0.1:"), ready)
            port = int(ready.rpartition(":")[2])
            socket.create_connection(("127.0.0.1", port), timeout=60).close()
            expect(manager.recv(4096) == b"WATCHDOG=1", "it does not feed the watchdog")
        finally:
            process.terminate()
        said = manager.recv(4096)
        while said == b"WATCHDOG=1":
            said = manager.recv(4096)
        expect(said == b"STOPPING=1", said)
        expect(process.wait(timeout=120) == 0, "it ends with", process.returncode)


SCHED_GETATTR = 315  # of x86-64
SCHED_ATTRIBUTES = struct.Struct("=IIQiIQQQ")


def slices(pid):
    """Nanoseconds of a slice of each of the process' threads; 0 where kernels do not say."""
    libc = ctypes.CDLL(None, use_errno=True)
    found = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/comm") as name:
                if name.read().startswith("jemalloc"):
                    continue  # it is there before the program begins
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has ended
        attributes = ctypes.create_string_buffer(SCHED_ATTRIBUTES.size)
        if libc.syscall(SCHED_GETATTR, int(thread), attributes, len(attributes), 0) == 0:
            found.append(SCHED_ATTRIBUTES.unpack(attributes)[5])
    return found


def check_time_slice(sparsed):
    """All threads have short slices, also where threads are told how nice to be."""
    for nice in ("0", "5"):
        process = subprocess.Popen(
            ["nice", "-n", nice, sparsed, "--in-memory", "--listen=127.0.0.1:0",
             "--metrics-listen=off", "--devices=cpu", "--log-format=json"],
            stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            line = process.stderr.readline()
            while "serving" not in line:
                expect(line, "the server ended")
                line = process.stderr.readline()
            # Kernels before 6.12 have none to be set, and say 0.
            if sum(slices(os.getpid())) > 0:
                expect(set(slices(process.pid)) == {100_000}, set(slices(process.pid)))
            expect(os.getpriority(os.PRIO_PROCESS, process.pid) == min(os.nice(0) + int(nice), 19), "it is not as nice")
        finally:
            process.terminate()
            process.stderr.read()
            process.wait(timeout=120)


def check_watchdog(sparsed):
    """What cannot reach itself is to be restarted, unless --give-up-after=0 says never."""
    for give_up, fed in (("0", True), ("60", False)):
        with tempfile.TemporaryDirectory(prefix="sparsed-notify-") as folder:
            manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            manager.bind(f"{folder}/notify")
            manager.settimeout(120)
            process = subprocess.Popen(
                [sparsed, "--in-memory", "--devices=cpu", f"--listen=unix:{folder}/socket",
                 "--metrics-listen=off", "--host-memory=64MiB", f"--give-up-after={give_up}",
                 "--log-format=json"], stderr=subprocess.PIPE, text=True,
                env={**os.environ, "NOTIFY_SOCKET": f"{folder}/notify"})
            try:
                expect(manager.recv(4096).startswith(b"READY=1"), "it does not start")
                os.unlink(f"{folder}/socket")
                for line in process.stderr:  # until it has noticed
                    if json.loads(line)["event"] == "unreachable":
                        break
                manager.setblocking(False)
                try:
                    while manager.recv(4096):
                        pass
                except BlockingIOError:
                    pass
                manager.settimeout(2.5 * PROBE_SECONDS)
                try:
                    said = manager.recv(4096)
                except TimeoutError:
                    said = b""
                expect((said == b"WATCHDOG=1") == fed, f"--give-up-after={give_up}:", said)
            finally:
                process.kill()
                process.communicate()


def check_config(sparsed):
    """--check-config: exit code, and what goes where."""
    with tempfile.TemporaryDirectory(prefix="sparsed-config-") as folder:
        path = f"{folder}/sparsed.yaml"

        def check(text, *flags):
            with open(path, "w") as file:
                file.write(text)
            return subprocess.run([sparsed, f"--config={path}", "--check-config", *flags],
                                  capture_output=True, text=True, timeout=60)

        right = check(f"data_dir: {folder}/data\nworker_slots: 1\n")
        expect(right.returncode == 0 and not right.stderr, right)
        expect(f"# {path}:2" in right.stdout, right.stdout)
        expect(not os.path.exists(f"{folder}/data"), "a check makes the data directory")
        wrong = check("in_memory: true\nworker_slots: several\nthread: 1\n")
        expect(wrong.returncode == 2 and not wrong.stdout, wrong)
        expect(wrong.stderr == f"sparsed: {path}:2:15: worker_slots: 'several' is not a whole number from 1 to 65536\n"
               f"sparsed: {path}:3:1: unknown key 'thread'; did you mean 'threads'?\n"
               "sparsed --help lists the flags.\n", wrong.stderr)
        # Values, limits that contradict each other, and files, in one pass and by their lines.
        all_wrong = check("in_memory: true\nworker_slots: several\nwire_memory: 1KiB\n"
                          "access_file: /no/such/access.yaml\naudit_log: /no/such/audit.log\n"
                          "tls_key: /no/key\n")
        lines = all_wrong.stderr.splitlines()
        begins = ["2:15: worker_slots: 'several'", "3:14: wire_memory: 1KiB is not between",
                  "4:14: access_file: /no/such/access.yaml", "5:12: audit_log: nothing can be made",
                  "6:10: tls_key: it goes together with"]
        expect(all_wrong.returncode == 2 and len(lines) == len(begins) + 1, all_wrong.stderr)
        for line, begin in zip(lines, begins):
            expect(line.startswith(f"sparsed: {path}:{begin}"), line)
        # What a start would find, root's too.
        with open(f"{folder}/a-file", "w") as file:
            file.write("kept")
        not_to_be = check("data_dir: /proc/nope\n"
                          f"listen: [unix:{folder}/a-file, nohost.invalid:7470]\n"
                          "metrics_listen: nohost.invalid:7471\ninsecure: true\n"
                          "tls_certificate: /no/certificate\ntls_key: /no/key\n")
        for sentence in (f"{path}:1:11: data_dir: nothing can be made in /proc: ",
                         f"{path}:2:9: listen: cannot listen on unix:{folder}/a-file: there is a file",
                         "cannot listen on nohost.invalid:7470: ",
                         f"{path}:3:17: metrics_listen: cannot listen on nohost.invalid:7471: ",
                         f"{path}:5:18: tls_certificate: /no/certificate: No such file",
                         f"{path}:6:10: tls_key: /no/key: No such file"):
            expect(sentence in not_to_be.stderr, sentence, "is not in", not_to_be.stderr)
        expect(not_to_be.returncode == 2 and os.path.exists(f"{folder}/a-file"), not_to_be)
        # A start that fails for a file says which line names it.
        with open(path, "w") as file:
            file.write("in_memory: true\naccess_file: /no/such/access.yaml\n")
        started = subprocess.run([sparsed, f"--config={path}", "--listen=127.0.0.1:0",
                                  "--metrics-listen=off", "--devices=cpu"],
                                 capture_output=True, text=True, timeout=60)
        expect(started.returncode == 1, started)
        expect(started.stderr.startswith(f"sparsed: {path}:2:14: access_file: /no/such/access.yaml"),
               started.stderr)


def check_output(sparsed):
    """What is asked for and cannot be written is an error."""
    if not os.path.exists("/dev/full"):
        return
    for flag in ["--help", "--version", "--print-config", "--check-config"]:
        with open("/dev/full", "w") as full:
            done = subprocess.run([sparsed, "--in-memory", flag], stdout=full, stderr=subprocess.PIPE, text=True)
        expect(done.returncode == 1 and "cannot write to standard output" in done.stderr, flag, done)


def check_without_serving(sparsed, sparsectl):
    """--calibrate and --salvage: they do what they are for and end; a server starts with what they left."""
    def said(*flags):
        return subprocess.run([sparsed, "--devices=cpu", "--host-memory=64MiB", "--threads=1", *flags],
                              capture_output=True, text=True, timeout=120)

    with tempfile.TemporaryDirectory(prefix="sparsed-salvage-") as folder:
        data = f"--data-dir={folder}/data"
        with open(f"{folder}/edges.txt", "w") as file:
            file.write("0 1\n1 2\n2 0\n")

        def ask(server, *words):
            done = subprocess.run([sparsectl, f"--server={server}", *words], capture_output=True, text=True,
                                  timeout=60)
            expect(done.returncode == 0, words, done)
            return done.stdout

        Started(sparsed, "--devices=cpu", data=data,
                meanwhile=lambda server: ask(server, "upload", f"{folder}/edges.txt", "--name=mine", "--wait"))
        done = said(data, "--calibrate")
        # A machine on which something else runs is refused, or none of whose memory is free for it.
        expect("cpu" in done.stdout.lower() if done.returncode == 0 else "was not calibrated" in done.stderr,
               done)
        done = said(data, "--salvage")
        expect(done.returncode == 1 and "nothing to salvage" in done.stderr, done)
        catalog = f"{folder}/data/catalog.sqlite"
        with open(catalog, "r+b") as file:
            file.write(b"no database" * 1000)
        done = said(data, "--listen=127.0.0.1:0", "--metrics-listen=off")
        expect(done.returncode == 1 and "--salvage" in done.stderr, done)
        done = said(data, "--salvage")
        expect(done.returncode == 0 and "mine" in done.stdout + done.stderr, done)
        Started(sparsed, "--devices=cpu", data=data,
                meanwhile=lambda server: expect("mine" in ask(server, "list"), "what was salvaged is not served"))
        expect(os.path.exists(f"{folder}/data/damaged-1"), os.listdir(f"{folder}/data"))


def main(sparsed, broken_driver, sparsectl):
    check_gpu(sparsed, broken_driver)
    check_addresses(sparsed)
    check_http_port(sparsed, sparsectl)
    check_data_directory(sparsed)
    check_volumes(sparsed)
    check_service_manager(sparsed)
    check_watchdog(sparsed)
    check_time_slice(sparsed)
    check_config(sparsed)
    check_output(sparsed)
    check_without_serving(sparsed, sparsectl)
    for problem in problems:
        print(problem)
    if not problems:
        print("The server says what an operator should know.")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
