#!/usr/bin/env python3
"""A gateway between a client and the nodes of a cluster, whose names it alone knows.

gateway_test.py SPARSED SPARSECTL
"""

import os
import pathlib
import shutil
import socket
import socketserver
import subprocess
import sys
import tempfile
import threading

from cluster_test import Etcd
from running import ended, reserved_port, serving

NODES = ("a", "b")


class Gateway(socketserver.ThreadingTCPServer):
    """A proxy that connects for its callers, and notes what they asked for."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, known):
        self.known, self.asked, self.refuses = known, [], False
        super().__init__(("127.0.0.1", 0), Tunnel)
        threading.Thread(target=self.serve_forever, daemon=True).start()
        self.address = f"127.0.0.1:{self.server_address[1]}"


class Tunnel(socketserver.BaseRequestHandler):
    def handle(self):
        head = b""
        while b"\r\n\r\n" not in head:
            got = self.request.recv(4096)
            if not got:
                return
            head += got
        verb, target, _ = head.split(b"\r\n", 1)[0].decode().split(" ")
        self.server.asked.append(target)
        if verb != "CONNECT" or self.server.refuses or target not in self.server.known:
            self.request.sendall(b"HTTP/1.1 403 Forbidden\r\n\r\n")
            return
        with socket.create_connection(self.server.known[target]) as there:
            self.request.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=self.copy, args=(there, self.request), daemon=True)
            back.start()
            self.copy(self.request, there)
            back.join()

    @staticmethod
    def copy(source, sink):
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


def start(sparsed, folder, name, etcd):
    """Its process, the address that it advertises, which nobody here can resolve, and the real one."""
    port = reserved_port()
    advertised = f"node-{name}.sparsed.invalid:{port}"
    log = folder / f"{name}.log"
    with open(log, "wb") as out:
        process = subprocess.Popen(
            [sparsed, f"--listen=127.0.0.1:{port}", f"--advertise={advertised}", f"--node={name}",
             f"--etcd=127.0.0.1:{etcd.port}", f"--data-dir={folder / name}", "--devices=cpu",
             "--host-memory=512MiB", "--threads=1", "--preparation-workers=0",
             "--metrics-listen=off", "--log-format=json", "--shutdown-grace=1"],
            stdout=out, stderr=out)
    serving(process, log, 0, 120)
    return process, advertised, ("127.0.0.1", port)


def expect(right, *what):
    if not right:
        raise SystemExit(" ".join(map(str, what)))


def through_it(sparsectl, folder, known):
    """What the nodes have is found through the gateway, and nothing without it."""
    gateway = Gateway(known)
    first, second = known

    def call(*words, server=first, through=gateway.address, status=0, **environment):
        environment = {**os.environ, **environment}
        if through:
            environment["SPARSED_GATEWAY"] = through
        done = subprocess.run([sparsectl, f"--server={server}", *words], cwd=folder, check=False,
                              capture_output=True, text=True, timeout=120, env=environment)
        expect(done.returncode == status, words, done.stdout, done.stderr)
        return done.stdout + done.stderr

    expect("no sparsed at" in call("info", through="", status=5), "the name is known here")
    call("generate", "matrix", "300x200", "--row-nonzeros=8", "--out=m.npz")
    call("generate", "dense", "200x16", "--out=B.npy")
    # So many that both nodes have some, and each node is asked for what the other one has.
    names = [f"m{i}" for i in range(6)]
    for name in names:
        call("upload", "m.npz", f"--name={name}")
    for name in names:
        for server in known:
            call("spmm", name, "--operand=B.npy", f"--out={name}.npy", server=server)
    expect(set(gateway.asked) == set(known), "the gateway was asked for", gateway.asked)
    results = {(folder / f"{name}.npy").read_bytes() for name in names}
    expect(len(results) == 1, "the same product has several results")
    # A flag goes before the environment.
    asked = len(gateway.asked)
    call(f"--gateway={gateway.address}", "info", through="127.0.0.1:1")
    expect(len(gateway.asked) > asked, "the flag is not taken")

    # Here these servers have names that the gateway alone knows.
    said = call("--gateway=off", "info", status=5)
    expect("gateway" not in said, said)
    said = call("info", through="127.0.0.1:1", status=5)
    expect("through the gateway 127.0.0.1:1" in said, said)
    gateway.refuses = True
    said = call("info", status=5)
    expect(f"through the gateway {gateway.address}" in said and "403" in said, said)
    gateway.refuses = False
    for wrong in ("gateway", "http://gateway:1", "gateway:", ":1", "gateway:65536", "gateway:0", "g\u00e4teway:1", "a?b:1"):
        said = call("info", through=wrong, status=3)
        expect(f'the gateway "{wrong}" is not HOST:PORT' in said, said)
    said = call("info", through="me:secret@gateway:1", status=3)
    expect("is not HOST:PORT" in said and "secret" not in said, said)
    # What the gateway calls this machine is not this one.
    said = call("info", server=f"127.0.0.1:{known[second][1]}", status=3, SPARSED_TOKEN="t" * 40)
    expect("does not travel" in said, said)



def with_a_token(sparsed, sparsectl, folder):
    """TLS goes through to the server; a Unix socket goes by no gateway."""
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-keyout", "tls.key", "-out", "tls.crt", "-days", "2", "-subj", "/CN=node",
         "-addext", "subjectAltName=DNS:node-tls.sparsed.invalid"],
        cwd=folder, check=True, capture_output=True)
    said = subprocess.check_output(
        [sparsectl, "token", "new", "me", "--tenant=me", "--role=user"], text=True)
    token = said.split("\n", 1)[0]
    access = folder / "access.yaml"
    access.write_text("tokens:\n" + next(line for line in said.splitlines() if "sha256" in line))
    access.chmod(0o600)
    port = reserved_port()
    server = f"node-tls.sparsed.invalid:{port}"
    gateway = Gateway({server: ("127.0.0.1", port)})
    log = folder / "tls.log"
    with open(log, "wb") as out:
        process = subprocess.Popen(
            [sparsed, "--in-memory", f"--listen=127.0.0.1:{port}", f"--listen=unix:{folder}/s",
             f"--tls-certificate={folder}/tls.crt", f"--tls-key={folder}/tls.key",
             f"--access-file={access}", "--metrics-listen=off", "--devices=cpu",
             "--host-memory=512MiB", "--threads=1", "--log-format=json"], stdout=out, stderr=out)
    with ended(process):
        serving(process, log, 0, 120)
        environment = {**os.environ, "SPARSED_TOKEN": token, "SPARSED_TLS_CA": f"{folder}/tls.crt",
                       "SPARSED_GATEWAY": gateway.address}

        def call(*words):
            done = subprocess.run([sparsectl, *words], cwd=folder, check=False, text=True,
                                  capture_output=True, timeout=120, env=environment)
            expect(done.returncode == 0, words, done.stdout, done.stderr)

        call(f"--server={server}", "upload", "m.npz")
        call(f"--server={server}", "spmm", "m", "--operand=B.npy", "--out=C.npy")
        expect(gateway.asked == [server] * len(gateway.asked) and gateway.asked, gateway.asked)
        asked = len(gateway.asked)
        # By flags alone, as docs/cluster.md has it.
        certificate = environment.pop("SPARSED_TLS_CA")
        del environment["SPARSED_GATEWAY"]
        call(f"--gateway={gateway.address}", f"--server={server}", f"--tls-ca={certificate}", "list")
        expect(len(gateway.asked) > asked, "the gateway was not asked")
        asked = len(gateway.asked)
        environment["SPARSED_TLS_CA"] = certificate
        environment["SPARSED_GATEWAY"] = "nothing that is one"
        call(f"--server=unix:{folder}/s", "list")
        expect(len(gateway.asked) == asked, "a Unix socket went through the gateway")


def main():
    sparsed, sparsectl = sys.argv[1:3]
    if shutil.which("etcd") is None:
        print("no etcd is installed")
        return 77
    with tempfile.TemporaryDirectory(prefix="sparsed-gateway-") as folder:
        folder = pathlib.Path(folder)
        etcd = Etcd(folder)
        etcd.start()
        processes = []
        try:
            known = {}
            for name in NODES:
                process, advertised, real = start(sparsed, folder, name, etcd)
                processes.append(process)
                known[advertised] = real
            through_it(sparsectl, folder, known)
            with_a_token(sparsed, sparsectl, folder)
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait(timeout=60)
            etcd.kill()
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
