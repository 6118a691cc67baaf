"""Products with sparse matrices that a sparsed server holds.

    import sparsed
    c = sparsed.connect("unix:/run/sparsed/sparsed.sock")
    g = c.upload("cora", A)                # SciPy, PyTorch, edge_index with shape=, files, ...
    y = g.spmm(x)                          # x: NumPy, PyTorch on the CPU or a GPU, CuPy, ...
    o = g.sddmm(a, b); t = g.spgemm(h)
    print(sparsed.last_transport())

`sparsed.aio` has the same to be awaited, `sparsed.torch` operators of PyTorch's. Nothing but NumPy
is imported until it is asked for.
"""

from __future__ import annotations

from sparsed._attachment import NotAttachedWarning
from sparsed._client import Client, connect
from sparsed._csr import Csr
from sparsed._errors import (
    Aborted,
    AlreadyExists,
    Cancelled,
    DataLoss,
    DeadlineExceeded,
    Error,
    FailedPrecondition,
    Internal,
    InvalidArgument,
    InvalidType,
    NotFound,
    OutOfRange,
    PermissionDenied,
    ResourceExhausted,
    Unauthenticated,
    Unavailable,
    Unimplemented,
    Unknown,
)
from sparsed._files import read
from sparsed._held import DenseMatrix
from sparsed._matrix import Matrix
from sparsed._native import Result, last_result
from sparsed._progress import Progress
from sparsed._report import Report
from sparsed._sparse import positions
from sparsed._trace import trace
from sparsed._transposed import Transposed

__version__ = "0.1.0"

__all__ = [
    "Aborted",
    "AlreadyExists",
    "Cancelled",
    "Client",
    "Csr",
    "DataLoss",
    "DeadlineExceeded",
    "DenseMatrix",
    "Error",
    "FailedPrecondition",
    "Internal",
    "InvalidArgument",
    "InvalidType",
    "Matrix",
    "NotAttachedWarning",
    "NotFound",
    "OutOfRange",
    "PermissionDenied",
    "Progress",
    "Report",
    "ResourceExhausted",
    "Result",
    "Transposed",
    "Unauthenticated",
    "Unavailable",
    "Unimplemented",
    "Unknown",
    "connect",
    "last_result",
    "last_transport",
    "positions",
    "read",
    "trace",
]


def last_transport() -> str | None:
    """How this thread's last product got its operands, the slowest way that one of them took:
    "attached" (not at all: it ran in this process), "shared_device", "shared_host", "ring", "held"
    or "stream". None before the first product."""
    result = last_result()
    return None if result is None else result.transport
