"""Tokens, certificates and the users of Unix sockets, through the whole library."""

import hashlib
import os
import socket
import subprocess

import numpy as np
import pytest
from conftest import Server

import sparsed

TOKEN = "a-token-of-these-tests"


@pytest.fixture(scope="module")
def secured(tmp_path_factory):
    """TLS at loopback, and an access file with a token of one tenant and this user as another."""
    folder = tmp_path_factory.mktemp("access")
    names = "subjectAltName=IP:127.0.0.1"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
         "-nodes", "-days", "2", "-subj", "/CN=sparsed", "-addext", names,
         "-keyout", folder / "key.pem", "-out", folder / "ca.pem"],
        check=True, capture_output=True,
    )  # fmt: skip
    (folder / "key.pem").chmod(0o600)
    digest = hashlib.sha256(TOKEN.encode()).hexdigest()
    access = folder / "access.yaml"
    access.write_text(
        f"tokens:\n  - {{name: t, sha256: {digest}, tenant: by-token}}\n"
        "certificates:\n  - {common_name: sparsed, tenant: by-certificate}\n"
        f"peers:\n  - {{user: '{os.geteuid()}', tenant: by-user}}\n"
    )
    access.chmod(0o600)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        tcp = f"127.0.0.1:{free.getsockname()[1]}"
    started = Server(
        f"--listen={tcp}",
        f"--access-file={access}",
        f"--tls-certificate={folder / 'ca.pem'}",
        f"--tls-key={folder / 'key.pem'}",
        f"--tls-client-ca={folder / 'ca.pem'}",
    )
    started.tcp = tcp
    started.ca = folder / "ca.pem"
    started.key = folder / "key.pem"
    yield started
    started.close()


def test_a_token_over_tls(secured, monkeypatch):
    with sparsed.connect(secured.tcp, tls=secured.ca, token=TOKEN) as c:
        assert c.info()["tenant"] == "by-token"
    monkeypatch.setenv("SPARSED_TLS_CA", str(secured.ca))
    with pytest.raises(sparsed.Unauthenticated, match="nothing says who calls"):
        sparsed.connect(secured.tcp)
    monkeypatch.setenv("SPARSED_TOKEN", TOKEN)
    with sparsed.connect(secured.tcp) as c:
        assert c.info()["tenant"] == "by-token"


def test_tenants_have_names_of_their_own(secured, name):
    matrix = np.eye(5, dtype=np.float32)
    with (
        sparsed.connect(secured.address) as user,
        sparsed.connect(secured.address, token=TOKEN) as other,
    ):
        user.upload(name, matrix)
        with pytest.raises(sparsed.NotFound):
            other.matrix(name).info()
        other.upload(name, 2 * matrix)
        assert (user.matrix(name) @ matrix == matrix).all()
        assert (other.matrix(name) @ matrix == 2 * matrix).all()


@pytest.mark.parametrize("token", [None, TOKEN])
def test_the_local_socket_knows_who_calls(secured, name, token):
    """What is attached, and what lies in shared memory, is the caller's own."""
    with sparsed.connect(secured.address, token=token) as c:
        g = c.upload(name + "local", np.eye(64, dtype=np.float32))
        x = c.empty((64, 4))
        x[:] = 1
        assert (g @ x == x).all()
        g.attach()
        assert (g @ x == x).all()
        assert sparsed.last_transport() == "attached"


def test_a_certificate_does_not_go_over_the_local_socket(secured, name):
    """There the same process is another tenant: it does without what is shared."""
    own = {"tls": secured.ca, "certificate": secured.ca, "key": secured.key}
    with sparsed.connect(secured.tcp, **own) as c, sparsed.connect(secured.address) as user:
        assert c.info()["tenant"] == "by-certificate"
        assert user.info()["tenant"] == "by-user"
        g = c.upload(name, np.eye(64, dtype=np.float32))
        x = np.ones((64, 4), dtype=np.float32)
        assert (g @ x == x).all()
        assert sparsed.last_transport() == "stream"
        with pytest.raises(sparsed.Error, match="by-user"):
            g.attach()
        with pytest.raises(sparsed.NotFound):
            user.matrix(name).info()
