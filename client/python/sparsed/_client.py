"""Clients of a server."""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from sparsed import _loading, _native, _numbers, _progress, _sparse
from sparsed._buffers import Buffers
from sparsed._calls import Callbacks, Operation
from sparsed._errors import InvalidArgument, InvalidType
from sparsed._handle import Sizes
from sparsed._matrix import Matrix
from sparsed._names import Problem, c_name, pack_problems, unused_name
from sparsed._progress import Listener, Progress
from sparsed._report import Report


def connect(
    address: str,
    *,
    tls: bool | str | os.PathLike[str] | None = None,
    certificate: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    server_name: str | None = None,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    gateway: str | None = None,
    timeout: float = 10.0,
    ring: bool = False,
    ring_spin: float = 0.0,
    streams: int | None = None,
    attach: bool = True,
    threads: int | None = None,
    priority: int = 0,
    attempts: int = 4,
    keepalive: float = 30.0,
) -> Client:
    """Connects to a server.

    Args:
        address: "host:port" or "unix:/path".
        tls: a PEM file of authorities that may vouch for the server, or True for those of the
            machine: TLS is used. None: as SPARSED_TLS_CA says, or else no TLS.
        certificate: a PEM file that says who calls, in the place of a token
            (SPARSED_TLS_CERTIFICATE).
        key: its private key; refused if others can read it (SPARSED_TLS_KEY).
        server_name: that the server's certificate is for; None: the host of `address`
            (SPARSED_TLS_SERVER_NAME).
        token: says who calls (SPARSED_TOKEN). It goes over TLS, or to this machine, alone.
        token_file: a file whose first line is the token; refused if others can read it, read again
            when it changes (SPARSED_TOKEN_FILE).
        gateway: "host:port" of an HTTP proxy that connects to servers which cannot be reached from
            here, also to the nodes of a cluster; None: the environment's SPARSED_GATEWAY; "off":
            straight there, whatever that says.
        timeout: seconds that the server may take to answer here. Calls have a limit of their own,
            `timeout=`; None, as it is without, is none.
        ring: products that run on a server of this machine go through memory that both share, from
            the second one of a matrix on: the request, and small operands, too, by a copy.
        ring_spin: seconds that who waits for a product looks for its end before it sleeps.
        streams: connections that large operands travel over, 1 to 16; None: 1, or 4 over TLS.
        attach: whether products run in this process where they can.
        threads: of products that run here, on the CPU; None: as many as there are cores.
        priority: of products that wait at the server, 0 to 7: of those of one tenant the highest
            goes first.
        attempts: of a call that is safe to repeat, at a server that does not answer, 1 or more;
            pauses are 50, 100, 200, ... ms, so that one that is gone is given up within a second.
        keepalive: seconds after which a silent server is asked for a sign of life.

    Returns:
        A client, which can be used from many threads, and closes at the end of a `with`.

    Raises:
        Unavailable: no server answers there in time.
        InvalidArgument: the address or an option makes no sense; InvalidType if its type is.
        FailedPrecondition: a file cannot be read, or others can read one that is secret.
        Unauthenticated: the server does not know who calls.
    """
    if not isinstance(address, str):
        raise InvalidType(f"address is a {type(address).__name__}: host:port or unix:/path")
    if not address:
        raise InvalidArgument("address is empty, expected host:port or unix:/path")
    texts = {
        "tls": "system" if tls is True else None if tls is False else tls,
        "certificate": certificate,
        "key": key,
        "server_name": server_name,
        "token": token,
        "token_file": token_file,
        "gateway": gateway,
    }
    for name, text in texts.items():
        if text is not None and not isinstance(text, (str, os.PathLike)):
            raise InvalidType(f"{name} is a {type(text).__name__}, neither a text nor a path")
    options = {
        **texts,
        "timeout": _numbers.seconds(timeout, "timeout"),
        "ring": bool(ring),
        "ring_spin": _numbers.seconds(ring_spin, "ring_spin", "0 or more"),
        "streams": 0 if streams is None else _numbers.count(streams, "streams", most=16),
        "attach": bool(attach),
        "threads": 0 if threads is None else _numbers.count(threads, "threads", most=1024),
        "priority": _numbers.count(priority, "priority", least=0, most=7),
        "attempts": _numbers.count(attempts, "attempts"),
        "keepalive": _numbers.seconds(keepalive, "keepalive"),
    }
    client = Client(address, options)
    client._native_handle()
    return client


class Client(Buffers):
    """A connection to a server; made by `connect`.

    Can be used from many threads. A client that was pickled, or that a process inherited by a
    fork, connects anew to the same address when it is first used there. When the server was gone
    and is back, the client works again by itself.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._address, tuple(sorted(self._options.items())))

    # ---- Sparse matrices

    def upload(
        self,
        name: str,
        m: Any,
        *,
        shape: Any = None,
        num_nodes: int | None = None,
        dtype: Any = None,
        values: Any = None,
        replace: bool = False,
        prepare: Iterable[Problem] | None = None,
        wait: bool = False,
        shards: int = 1,
        partition: Any = None,
        replicas: int | None = None,
        progress: Listener = None,
        timeout: float | None = None,
    ) -> Matrix:
        """Uploads a sparse matrix, which can be used, and survives a restart of the server, when
        this returns.

        The matrix is brought to canonical CSR here: ascending columns in each row, duplicates
        summed up. Values everywhere (`values=`, `update_values`, SDDMM) are in that order;
        `sparsed.positions` says where the entries of `m` went. Duplicates that were summed, NaN,
        infinite values and integers that are rounded are told by `warnings.warn`.

        Args:
            name: what the server calls it.
            m: one of
                - a SciPy sparse matrix or array of any format;
                - a PyTorch tensor: sparse COO, CSR, CSC, BSR or BSC;
                - an `edge_index` of PyG's, 2 x E integers as a tensor or an array: the matrix has
                  a nonzero S[edge_index[1], edge_index[0]], target and source, for each edge, so
                  that `g.spmm(x)` is what PyG's propagate sums up; with `shape` or `num_nodes`;
                - an `EdgeIndex` of PyG's, likewise, and a `SparseTensor` as it is;
                - a tuple (row, col, value) or (row, col) of arrays, with `shape`;
                - a `sparsed.Csr`;
                - a 2-D array, whose nonzeros are taken;
                - the path of a file, which is read as `sparsed.read` reads it.
            shape: (rows, cols), or a number for both, where `m` does not say it.
            num_nodes: a square `shape`.
            dtype: "f32", "f64", "f16", "bf16", or such a dtype of NumPy's or PyTorch's; by default
                that of the values, and f32 of integers and booleans (which holds them exactly up
                to 2^24) and where there are no values, which stands for ones.
            values: of the edges of an `edge_index`, one each.
            replace: a matrix of this name, if there is one.
            prepare: what to prepare for at once: "spmm:128", "spmm^T:128", "sddmm:64", "spgemm";
                a number is K, the dense operand's columns. The server's default otherwise.
            wait: until it is prepared.
            shards: cuts the rows into so many parts with as many nonzeros each, which different
                nodes of a cluster keep, where no node has room for all.
            partition: an integer for each row: its shard, from 0.
            replicas: on how many nodes of a cluster it is to be, each of its shards if it has
                some, 1 to 16; as the matrix that it replaces, or as the nodes say, otherwise.
            progress: True for a bar on stderr, or a function of a `sparsed.Progress`.
            timeout: seconds.

        Raises:
            AlreadyExists: there is a matrix of this name, and `replace` is not set.
            InvalidArgument: the matrix or the name is wrong; InvalidType if its type is.
            ResourceExhausted: the server has no room for it.
        """
        call, bar = _progress.listener(progress, str(name))
        try:
            matrix = self._upload(
                name, m, shape, num_nodes, dtype, values, replace, prepare, call, timeout, shards,
                partition, replicas,
            ).wait()
            if wait:
                matrix._wait_ready(call, timeout).wait()
        finally:
            if bar is not None:
                bar.close()
        return matrix

    def _upload(
        self,
        name: str,
        m: Any,
        shape: Any,
        num_nodes: int | None,
        dtype: Any,
        values: Any,
        replace: bool,
        prepare: Iterable[Problem] | None,
        progress: Any,
        timeout: float | None,
        shards: int = 1,
        partition: Any = None,
        replicas: int | None = None,
    ) -> Operation[Matrix]:
        encoded = c_name(name)
        handle = self._native_handle()
        csr = _sparse.canonical(m, shape, dtype, values, num_nodes)
        view = _native.CSR_VIEW.pack(
            csr.rows, csr.cols, len(csr.column_indices), _pointer(csr.row_offsets),
            csr.row_offsets.dtype.itemsize, csr.type, _pointer(csr.column_indices),
            0 if csr.values is None else _pointer(csr.values),
        )  # fmt: skip
        problems = pack_problems(prepare)
        if not 1 <= shards <= 1024:
            raise InvalidArgument(f"shards is {shards}, expected 1 to 1024")
        if replicas is not None and not 1 <= replicas <= 16:
            raise InvalidArgument(f"replicas is {replicas}, expected 1 to 16")
        parts = None if partition is None else _shards_of_rows(partition, csr.rows, shards)
        callbacks = Callbacks(progress) if progress is not None else None
        c_progress = _native.Progress(
            lambda _, done, total: callbacks(Progress("upload", done, total)) if callbacks else None
        )
        c_problems = ctypes.create_string_buffer(problems, max(len(problems), 1))
        upload = _native.UPLOAD_OPTIONS.pack(
            _native.UPLOAD_OPTIONS.size, replace, 0, 0, 0,
            ctypes.addressof(c_problems) if problems else 0,
            len(problems) // _native.PROBLEM.size,
            ctypes.cast(c_progress, ctypes.c_void_p).value or 0 if callbacks else 0, 0,
            shards, replicas or 0, 0 if parts is None else _pointer(parts),
        )  # fmt: skip
        options = _native.call_options(timeout)
        out = _native.Out()
        lib = _native.library()

        def start(call: int | None) -> int | None:
            error: int | None = lib.sparsed_upload(
                handle.pointer, encoded, view, upload, options, out.address, call
            )
            return error

        def finish() -> Matrix:
            made = _native.Handle(out.value, lib.sparsed_matrix_free)
            sizes = Sizes(csr.rows, csr.cols, len(csr.column_indices), csr.type)
            matrix = Matrix(self, name, sizes, made)
            # Of a file without weights they are ones.
            from_file = isinstance(m, (str, os.PathLike))
            matrix._weighted = None if from_file else csr.values is not None
            return matrix

        keep = (handle, csr, view, upload, c_problems, c_progress, out, options, parts)
        return Operation(start, finish, keep, callbacks)

    def matrix(self, name: str) -> Matrix:
        """The matrix of that name, which is on the server already.

        Raises:
            NotFound: there is none.
        """
        matrix = Matrix(self, name, None, None)
        c_name(name)
        matrix._known_sizes()
        return matrix

    def matrices(self, prefix: str = "", everybody: bool = False) -> list[Report]:
        """What the server says about each matrix whose name begins with `prefix`, by name.

        Args:
            everybody: those of all tenants, each called "TENANT~NAME", by tenant, then by name; for
                operators.
        """
        function = "sparsed_all_matrices" if everybody else "sparsed_matrix_list"
        listed = self._json(function, c_name(prefix, "prefix"))
        if isinstance(listed, dict):
            listed = listed["matrices"]
        return [Report(one, f"matrix {one['name']}") for one in listed]

    @contextmanager
    def temporary(self, m: Any, **options: Any) -> Iterator[Matrix]:
        """Uploads a matrix under a name that nobody has, for a `with`; it is deleted at the end.
        Options are those of `upload`."""
        matrix = self.upload(unused_name(), m, **options)
        try:
            yield matrix
        finally:
            matrix._delete_if_there()

    # ---- The server

    def info(self) -> Report:
        """Version, devices, limits and sockets of the server."""
        return Report(self._json("sparsed_server_info"), f"sparsed at {self._address}")

    def stats(self) -> Report:
        """Counters since the server's start."""
        return Report(self._json("sparsed_server_stats"), f"sparsed at {self._address}")

    def measurements(self, everybody: bool = False) -> list[dict[str, Any]]:
        """Everything that was measured on all matrices' patterns.

        Args:
            everybody: of all tenants' matrices, and what is kept of patterns that no matrix has
                any more, with density maps; for operators.
        """
        if everybody:
            return list(self._json("sparsed_all_measurements"))
        return list(self._json("sparsed_measurements", None))


# Clients that were unpickled in this process, so that what was pickled apart shares connections.
_restored: weakref.WeakValueDictionary[Any, Client] = weakref.WeakValueDictionary()


def _restore(address: str, options: tuple[tuple[str, Any], ...]) -> Client:
    with _native.lock():
        key = (_loading.generation, address, options)
        client = _restored.get(key)
        if client is None or client._closed:
            client = Client(address, dict(options))
            _restored[key] = client
        return client


def _pointer(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _shards_of_rows(partition: Any, rows: int, shards: int) -> np.ndarray[Any, Any]:
    given = np.asarray(partition)
    if given.shape != (rows,):
        raise InvalidArgument(f"partition has shape {given.shape}, expected ({rows},)")
    if given.dtype.kind not in "iu":
        raise InvalidArgument(f"partition is of {given.dtype}, expected integers")
    outside = np.flatnonzero((given < 0) | (given >= shards))
    if outside.size > 0:
        first = outside[0]
        raise InvalidArgument(f"partition[{first}] = {given[first]}, expected 0 to {shards - 1}")
    return np.ascontiguousarray(given, np.int32)
