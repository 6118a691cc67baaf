"""Fixtures: a real server on Unix sockets in a folder of its own, and clients of it.

Where the server's program is says SPARSED_SERVER (build/cuda/server/sparsed otherwise); where the
libraries are, SPARSED_LIBRARY, if they are not in the installed package. To attach, both have to be
of one build.
"""

import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

import sparsed

ROOT = Path(__file__).resolve().parents[2]


class Server:
    """A server's process, its addresses, and its end."""

    def __init__(self, *flags, folder=None, local=True, memory="1GiB"):
        self.folder = Path(folder or tempfile.mkdtemp(prefix="sparsed-"))
        self.address = f"unix:{self.folder}/s.sock"
        self.flags = [
            f"--listen={self.address}",
            "--metrics-listen=off",
            f"--local-listen=unix:{self.folder}/local.sock" if local else "--local-listen=off",
            f"--host-memory={memory}",
            "--devices=cpu",
            *flags,
        ]
        if not any(flag.startswith("--data-dir") for flag in flags):
            self.flags.append("--in-memory")
        self.process = None
        self.start()

    def start(self):
        program = os.environ.get("SPARSED_SERVER", ROOT / "build/cuda/server/sparsed")
        log = open(self.folder / "log", "ab")
        begin = log.tell()
        self.process = subprocess.Popen([program, *self.flags], stdout=log, stderr=log)
        log.close()
        deadline = time.monotonic() + 60
        said = re.compile(rb' serving |"serving"')  # as text, or as JSON
        while not said.search((self.folder / "log").read_bytes(), begin):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"no server: {(self.folder / 'log').read_text()}")
            time.sleep(0.01)

    def kill(self):
        self.process.kill()
        self.process.wait()
        for name in ("s.sock", "local.sock"):
            (self.folder / name).unlink(missing_ok=True)

    def close(self):
        self.process.terminate()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise
        finally:
            shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="session")
def server():
    """One for all tests that leave it as it is."""
    started = Server()
    yield started
    started.close()


@pytest.fixture
def own_server():
    """A function that starts further ones, with flags."""
    started = []

    def start(*flags, **options):
        started.append(Server(*flags, **options))
        return started[-1]

    yield start
    for one in started:
        one.close()


@pytest.fixture(scope="session")
def client(server):
    with sparsed.connect(server.address) as connected:
        yield connected


@pytest.fixture(scope="session")
def remote(server):
    """A client that does not attach."""
    with sparsed.connect(server.address, attach=False) as connected:
        yield connected


@pytest.fixture
def name(request):
    """A matrix's name that no other test has."""
    return "".join(c if c.isalnum() else "-" for c in request.node.name)[:100]
