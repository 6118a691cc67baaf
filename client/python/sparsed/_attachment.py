"""Whether a matrix's products run in this process, and if not, why: its user is told once."""

from __future__ import annotations

import ipaddress
import warnings
from typing import TYPE_CHECKING

from sparsed import _loading, _native
from sparsed._caller import callers_level
from sparsed._errors import Error, NotFound

if TYPE_CHECKING:
    from sparsed._handle import MatrixHandle


class NotAttachedWarning(UserWarning):
    """Products run on a server of this machine, which takes many times as long for small ones: they
    could run in this process, but for the reason that is given. Once for each client.
    `connect(attach=False)` says that this is meant."""


def look(matrix: MatrixHandle, product: _native.Product, device: int) -> None:
    """After a matrix's first product in this process whose operands were all here: warns if it ran
    elsewhere without need."""
    matrix._looked = True
    if product.transport == _native.TRANSPORT_ATTACHED or matrix.client._warned:
        return
    try:
        reason = _reason(matrix, device)
    except Error:  # of the server's: the next call says it
        return
    if reason is None:
        return
    matrix.client._warned = True
    warnings.warn(
        f"products with {matrix.name!r} run on the server at {matrix.client.address}, not in this "
        f"process: {reason}. connect(attach=False) says that this is meant",
        NotAttachedWarning,
        stacklevel=callers_level(),
    )


def _reason(matrix: MatrixHandle, device: int) -> str | None:
    """Why a matrix is not attached, if it was to be."""
    client = matrix.client
    # A forked child has no kernels, wherever the server is.
    if not client._options["attach"] or _loading.forked() or not _on_this_machine(client.address):
        return None
    info = client.info()
    if not client.address.startswith("unix:") and not client._shares_memory():
        return None  # at the other end of a tunnel
    if device == _native.HOST and any(
        one["name"].startswith("cuda") and not one["unavailable"] for one in info["devices"]
    ):
        return None  # operands of the host go to the server's GPU
    try:
        matrix._attach(device)
    except NotFound:
        return None
    except Error as error:
        return str(error)
    return None


def _on_this_machine(address: str) -> bool:
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].strip("[]")
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
