"""Servers of tests, on ports that nobody else has."""

import contextlib
import json
import socket
import subprocess
import time


def reserved_port():
    """A port for a program that cannot take port 0 and say which it got.

    A connection of it is left in TIME_WAIT: for a minute the system hands the port out to nobody,
    while a listener that says SO_REUSEADDR, as servers do, gets it.
    """
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)):
            listener.accept()[0].close()  # who closes first waits
    return port


class Running:
    """A `sparsed` that serves: `listen`, `metrics` and `page` are where it says it does."""

    def __init__(self, process, said):
        self.process, self.pid = process, process.pid
        self.listen, self.metrics = said["listen"], said["metrics"]
        self.page = f"http://{self.metrics}"


@contextlib.contextmanager
def running(sparsed, log, *flags, seconds=120):
    """Starts it with its status page on a free port and, unless `flags` say where, on a free port of
    this machine; its log, in JSON, goes to the path `log`. It is ended when the context is."""
    listen = [] if any(flag.startswith("--listen=") for flag in flags) else ["--listen=127.0.0.1:0"]
    with open(log, "ab") as out:
        begin = out.tell()
        process = subprocess.Popen(
            [sparsed, *listen, "--metrics-listen=127.0.0.1:0", "--log-format=json", *flags],
            stdout=out, stderr=out)
    with ended(process):
        yield Running(process, serving(process, log, begin, seconds))


@contextlib.contextmanager
def ended(process, seconds=60):
    """Terminates the process when the context is left, and kills it if that takes longer."""
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def serving(process, log, begin, seconds):
    """What it logs when it serves."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with open(log, encoding="utf-8", errors="replace") as lines:
            lines.seek(begin)
            for line in lines:
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    if event.get("event") == "serving":
                        return event
        if process.poll() is not None:
            break
        time.sleep(0.05)
    with open(log, encoding="utf-8", errors="replace") as lines:
        raise SystemExit(f"the server does not serve: {lines.read()[-4000:]}")
