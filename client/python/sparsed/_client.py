"""Connections to a server."""

from __future__ import annotations

import ctypes
import json
import os
import re
import uuid
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from sparsed import _native, _operands, _progress, _sparse, _types
from sparsed._calls import Callbacks, Operation
from sparsed._errors import (
    FailedPrecondition,
    InvalidArgument,
    InvalidType,
    NotFound,
    Unimplemented,
)
from sparsed._operands import HeldDense
from sparsed._progress import Listener, Progress
from sparsed._report import Report
from sparsed._shared import SharedPool

if TYPE_CHECKING:
    from sparsed._matrix import Matrix

Problem = int | str
"""A class of products to prepare for: "spmm:128" (the width), "spmm^T:128", "spmm:128:tf32",
"sddmm:64", "spgemm"; a number is the width of an SpMM."""


def connect(
    address: str,
    *,
    tls: Any = None,
    token: str | None = None,
    timeout: float = 10.0,
    ring: bool = False,
    ring_spin: float = 0.0,
    streams: int = 1,
    attach: bool = True,
    threads: int | None = None,
    attempts: int = 4,
    keepalive: float = 30.0,
) -> Client:
    """Connects to a server.

    Args:
        address: "host:port" or "unix:/path".
        tls: not supported by servers yet: has to be None.
        token: not supported by servers yet: has to be None.
        timeout: seconds that the server may take to answer.
        ring: small requests go through memory shared with a server on this machine.
        ring_spin: seconds that who waits looks at the ring before it sleeps.
        streams: connections that large operands travel over.
        attach: whether products run in this process where they can.
        threads: of products that run here, on the CPU; None: as many as there are cores.
        attempts: of a call that is safe to repeat, at a server that does not answer; pauses are 50,
            100, 200, ... ms, so that one that is gone is given up within a second.
        keepalive: seconds after which a silent server is asked for a sign of life.

    Returns:
        A client, which can be used from many threads, and closes at the end of a `with`.

    Raises:
        Unavailable: no server answers there in time.
        InvalidArgument: an option makes no sense.
        Unimplemented: `tls` or `token` was given.
    """
    if tls is not None or token is not None:
        given = "tls" if tls is not None else "token"
        raise Unimplemented(
            f"{given}= was given, and servers know neither TLS nor tokens yet: use a Unix socket, "
            "or a network that you trust, and leave it out"
        )
    if not isinstance(address, str):
        raise InvalidType(f"address is a {type(address).__name__}: host:port or unix:/path")
    options = {
        "timeout": timeout,
        "ring": ring,
        "ring_spin": ring_spin,
        "streams": streams,
        "attach": attach,
        "threads": threads or 0,
        "attempts": attempts,
        "keepalive": keepalive,
    }
    client = Client(address, options)
    client._native_handle()
    return client


class Client:
    """A connection to a server; made by `connect`.

    Can be used from many threads. A client that was pickled, or that a process inherited by a
    fork, connects anew to the same address when it is first used there. When the server was gone
    and is back, the client works again by itself.
    """

    def __init__(self, address: str, options: dict[str, Any]) -> None:
        self._address = address
        self._options = options
        self._handle: _native.Handle | None = None
        self._closed = False
        self._pool = SharedPool()
        self._local: bool | None = None
        self._matrices: weakref.WeakSet[Matrix] = weakref.WeakSet()

    @property
    def address(self) -> str:
        """As `connect` was given it."""
        return self._address

    def close(self) -> None:
        """Ends the connection. Calls under way go on; later ones raise FailedPrecondition."""
        self._closed = True
        self._handle = None
        for matrix in list(self._matrices):
            matrix._handle = None

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<sparsed.Client {self._address}{', closed' if self._closed else ''}>"

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
        progress: Listener = None,
        timeout: float | None = None,
    ) -> Matrix:
        """Uploads a sparse matrix, which can be used, and survives a restart of the server, when
        this returns.

        The matrix is brought to canonical CSR here: ascending columns in each row, duplicates
        summed up. Values everywhere (`values=`, `update_values`, SDDMM) are in that order;
        `sparsed.positions` says where the entries of `m` went.

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
                - the path of a .mtx, .mtx.gz or .npz file, the last as
                  `scipy.sparse.save_npz` writes it.
            shape: (rows, cols), or a number for both, where `m` does not say it.
            num_nodes: a square `shape`.
            dtype: "f32", "f64", "f16", "bf16", or such a dtype of NumPy's or PyTorch's; by default
                that of the values, and f32 of integers and booleans (which holds them exactly up
                to 2^24) and where there are no values, which stands for ones.
            values: of the edges of an `edge_index`, one each.
            replace: a matrix of this name, if there is one.
            prepare: what to prepare for at once: "spmm:128", "spmm^T:128", "sddmm:64", "spgemm";
                a number is the width of an SpMM. The server's default otherwise.
            wait: until it is prepared.
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
                name, m, shape, num_nodes, dtype, values, replace, prepare, call, timeout
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
    ) -> Operation[Matrix]:
        from sparsed._matrix import Matrix, Sizes

        c_name = _c_name(name)
        handle = self._native_handle()
        csr = _sparse.canonical(m, shape, dtype, values, num_nodes)
        view = _native.CSR_VIEW.pack(
            csr.rows, csr.cols, len(csr.column_indices), _pointer(csr.row_offsets),
            csr.row_offsets.dtype.itemsize, csr.type, _pointer(csr.column_indices),
            0 if csr.values is None else _pointer(csr.values),
        )  # fmt: skip
        problems = pack_problems(prepare)
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
        )  # fmt: skip
        options = _native.call_options(timeout)
        out = _native.Out()
        lib = _native.library()

        def start(call: int | None) -> int | None:
            error: int | None = lib.sparsed_upload(
                handle.pointer, c_name, view, upload, options, out.address, call
            )
            return error

        def finish() -> Matrix:
            made = _native.Handle(out.value, lib.sparsed_matrix_free)
            sizes = Sizes(csr.rows, csr.cols, len(csr.column_indices), csr.type)
            return Matrix(self, name, sizes, made)

        keep = (handle, csr, view, upload, c_problems, c_progress, out, options)
        return Operation(start, finish, keep, callbacks)

    def matrix(self, name: str) -> Matrix:
        """The matrix of that name, which is on the server already.

        Raises:
            NotFound: there is none.
        """
        from sparsed._matrix import Matrix

        matrix = Matrix(self, name, None, None)
        _c_name(name)
        matrix._known_sizes()
        return matrix

    def matrices(self, prefix: str = "") -> list[Report]:
        """What the server says about each matrix whose name begins with `prefix`, by name."""
        listed = self._json("sparsed_matrix_list", _c_name(prefix, "prefix"), None)
        if isinstance(listed, dict):
            listed = listed["matrices"]
        return [Report(one, f"matrix {one['name']}") for one in listed]

    @contextmanager
    def temporary(self, m: Any, **options: Any) -> Iterator[Matrix]:
        """Uploads a matrix under a name that nobody has, for a `with`; it is deleted at the end.
        Options are those of `upload`."""
        matrix = self.upload(_unused_name(), m, **options)
        try:
            yield matrix
        finally:
            matrix._delete_if_there()

    # ---- Dense matrices that the server holds

    def put(
        self,
        name: str | None,
        x: Any,
        *,
        dtype: Any = None,
        durable: bool = False,
        owner: str | None = None,
        time_to_live: float | None = None,
        timeout: float | None = None,
    ) -> HeldDense:
        """Has the server hold a copy of a dense matrix, in the place of one of this name. Products
        take it as operand or `out` without its travelling.

        Args:
            name: None: one that nobody has; to be used in a `with`.
            x: a 2-D array in host memory; a 1-D one is a column.
            dtype: of lists; else that of `x` counts.
            durable: on disk before this returns.
            owner: whom it is listed for, a job or a person.
            time_to_live: seconds that it stays though nothing uses it; the server decides
                otherwise.
        """
        return self._put(name, x, dtype, durable, owner, time_to_live, timeout).wait()

    def zeros(
        self,
        name: str | None,
        shape: tuple[int, int],
        dtype: Any = "f32",
        *,
        owner: str | None = None,
        time_to_live: float | None = None,
        timeout: float | None = None,
    ) -> HeldDense:
        """Has the server hold a dense matrix of zeros: a place for results. See `put`."""
        rows, cols = _dense_shape(shape)
        dense = (0, rows, cols, cols, _types.parse(dtype), _native.HOST, 0)
        return self._put_dense(name, dense, None, False, owner, time_to_live, timeout).wait()

    def _put(
        self, name: str | None, x: Any, dtype: Any, durable: bool, owner: str | None,
        time_to_live: float | None, timeout: float | None,
    ) -> Operation[HeldDense]:  # fmt: skip
        x = _host_array(x)
        if dtype is None:
            dtype = getattr(x, "dtype", "f32")
        operand = _operands.operand(x, "x", _types.parse(dtype))
        return self._put_dense(name, operand.dense, operand, durable, owner, time_to_live, timeout)

    def _put_dense(
        self, name: str | None, dense: Any, keep: Any, durable: bool, owner: str | None,
        time_to_live: float | None, timeout: float | None,
    ) -> Operation[HeldDense]:  # fmt: skip
        name = _unused_name() if name is None else name
        c_name = _c_name(name)
        handle = self._native_handle()
        c_owner = ctypes.create_string_buffer(owner.encode()) if owner else None
        put = _native.PUT_OPTIONS.pack(
            _native.PUT_OPTIONS.size, durable, ctypes.addressof(c_owner) if c_owner else 0,
            _native.nanoseconds(time_to_live),
        )  # fmt: skip
        packed = _native.DENSE.pack(*dense)
        options = _native.call_options(timeout)
        lib = _native.library()

        def start(call: int | None) -> int | None:
            error: int | None = lib.sparsed_dense_put(
                handle.pointer, c_name, packed, put, options, call
            )
            return error

        def finish() -> HeldDense:
            return HeldDense(self, name, dense[1], dense[2], dense[4])

        return Operation(start, finish, (handle, keep, c_owner, put, packed, options))

    def held(self, name: str) -> HeldDense:
        """The dense matrix of that name that the server holds already.

        Raises:
            NotFound: there is none.
        """
        for one in self.buffers(name):
            if one["name"] == name:
                return HeldDense(self, name, one["rows"], one["cols"], _types.parse(one["type"]))
        raise NotFound(f"the server holds no dense matrix {name!r}")

    def buffers(self, prefix: str = "") -> list[Report]:
        """What the server says about each dense matrix that it holds whose name begins with
        `prefix`, by name."""
        listed = self._json("sparsed_dense_list", _c_name(prefix, "prefix"), None)
        if isinstance(listed, dict):
            listed = listed["buffers"]
        return [Report(one, f"held dense matrix {one['name']}") for one in listed]

    def _read_held(self, held: HeldDense, out: Any, timeout: float | None) -> Operation[Any]:
        rows, cols = held.shape
        if out is None:
            into = _operands.empty_numpy(rows, cols, held._type, 2)
        else:
            into = _operands.destination(out, "out", held.shape, held._type)
        handle = self._native_handle()
        packed = _native.DENSE.pack(*into.dense)
        options = _native.call_options(timeout)
        name = held.name.encode()
        lib = _native.library()

        def start(call: int | None) -> int | None:
            error: int | None = lib.sparsed_dense_read(handle.pointer, name, packed, options, call)
            return error

        return Operation(start, lambda: _operands.give(into), (handle, packed, options, into))

    def _renew_held(self, name: str) -> None:
        lib = _native.library()
        handle = self._native_handle()
        _native.check(lib.sparsed_dense_renew(handle.pointer, name.encode(), None))

    def _delete_held(self, name: str) -> None:
        lib = _native.library()
        handle = self._native_handle()
        _native.check(lib.sparsed_dense_delete(handle.pointer, name.encode(), None))

    def _release_held(self, name: str) -> None:
        try:
            self._delete_held(name)
        except NotFound:
            pass

    # ---- Memory that the server shares

    def empty(self, shape: int | tuple[int, ...], dtype: Any = "f32") -> np.ndarray[Any, Any]:
        """A NumPy array in memory that a server on this machine maps, too: operands and results in
        it are not copied on their way. Elsewhere it is an array like any other. Its contents are
        anything."""
        extents = (shape,) if isinstance(shape, int) else tuple(shape)
        if any(not isinstance(extent, int) or extent < 0 for extent in extents):
            raise InvalidArgument(f"shape {shape!r} is none of an array")
        handle = self._native_handle()
        array: np.ndarray[Any, Any] = self._pool.array(
            handle.pointer, extents, _types.numpy_dtype(_types.parse(dtype))
        )
        return array

    # ---- The server

    def info(self) -> Report:
        """Version, devices, limits and sockets of the server."""
        return Report(self._json("sparsed_server_info", None), f"sparsed at {self._address}")

    def stats(self) -> Report:
        """Counters since the server's start."""
        return Report(self._json("sparsed_server_stats", None), f"sparsed at {self._address}")

    def measurements(self) -> list[dict[str, Any]]:
        """Everything that was measured on all matrices' patterns."""
        listed = self._json("sparsed_measurements", None, None)
        return list(listed)

    # ---- Inside

    def _native_handle(self) -> _native.Handle:
        """The connection in this process; connects if there is none yet."""
        handle = self._handle
        if handle is not None and handle.generation == _native.generation:
            return handle
        return self._connect()

    def _connect(self) -> _native.Handle:
        if self._closed:
            raise FailedPrecondition(f"the client of {self._address} is closed")
        with _native.lock():
            if self._handle is not None and self._handle.generation == _native.generation:
                return self._handle
            lib = _native.library()
            out = _native.Out()
            address = _c_name(self._address, "address")
            _native.check(lib.sparsed_connect(address, _pack_options(self._options), out.address))
            self._pool = SharedPool()
            self._local = None
            self._handle = _native.Handle(out.value, lib.sparsed_client_free)
            return self._handle

    def _json(self, function: str, *arguments: Any) -> Any:
        lib = _native.library()
        handle = self._native_handle()
        return json.loads(_native.text(getattr(lib, function), handle.pointer, *arguments))

    def _shares_memory(self) -> bool:
        """Whether the server is on this machine and shares memory; asked once."""
        if self._local is None:
            socket = self.info().get("local_socket") or ""
            self._local = bool(socket) and os.path.exists(socket)
        return self._local


# Clients that were unpickled in this process, so that what was pickled apart shares connections.
_restored: weakref.WeakValueDictionary[Any, Client] = weakref.WeakValueDictionary()


def _restore(address: str, options: tuple[tuple[str, Any], ...]) -> Client:
    with _native.lock():
        key = (_native.generation, address, options)
        client = _restored.get(key)
        if client is None or client._closed:
            client = Client(address, dict(options))
            _restored[key] = client
        return client


def _pack_options(options: dict[str, Any]) -> bytes:
    try:
        milliseconds = round(options["timeout"] * 1000)
        return _native.CLIENT_OPTIONS.pack(
            _native.CLIENT_OPTIONS.size,
            max(1, milliseconds),
            options["attempts"],
            0,
            0,
            round(options["keepalive"] * 1000),
            bool(options["ring"]),
            round(options["ring_spin"] * 1e6),
            options["streams"],
            0 if options["attach"] else 1,
            options["threads"],
        )
    except Exception as error:
        raise InvalidArgument(f"the options of the connection are wrong: {error}") from error


def _c_name(name: Any, what: str = "name") -> bytes:
    if not isinstance(name, str):
        raise InvalidType(f"{what} is a {type(name).__name__}, expected a string")
    if "\0" in name:
        raise InvalidArgument(f"{what} has a zero byte in it")
    return name.encode("utf-8", "surrogateescape")


def _unused_name() -> str:
    return f"tmp-{os.getpid()}-{uuid.uuid4().hex}"


def _pointer(array: np.ndarray[Any, Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _dense_shape(shape: Any) -> tuple[int, int]:
    try:
        rows, cols = (int(extent) for extent in shape)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"shape {shape!r} is not (rows, cols)") from error
    if rows < 0 or cols < 0 or rows * cols > 2**60:
        raise InvalidArgument(f"shape {shape!r} makes no dense matrix")
    return rows, cols


def _host_array(x: Any) -> Any:
    """Copies what is on a GPU to host memory."""
    torch = _types.torch()
    if torch is not None and isinstance(x, torch.Tensor):
        return x.cpu()
    if hasattr(x, "__cuda_array_interface__") and hasattr(x, "get"):
        return x.get()
    return x


_PROBLEM = re.compile(r"(spmm|spmm\^T|sddmm|spgemm)(?::(\d+))?(:tf32)?")


def pack_problems(problems: Iterable[Problem] | Problem | None) -> bytes:
    """An array of sparsed_problem."""
    if problems is None:
        return b""
    packed = []
    for problem in [problems] if isinstance(problems, (int, str)) else problems:
        text = f"spmm:{problem}" if isinstance(problem, int) else str(problem)
        found = _PROBLEM.fullmatch(text)
        sparse = found is not None and found[1] == "spgemm"
        if found is None or sparse != (found[2] is None) or (found[3] and found[1][:4] != "spmm"):
            raise InvalidArgument(
                f"{problem!r} is none of spmm:K, spmm^T:K (both also with :tf32 behind), sddmm:K "
                "and spgemm"
            )
        operation = _native.OPERATIONS[found[1].removesuffix("^T")]
        packed.append(
            _native.PROBLEM.pack(
                operation, found[1].endswith("^T"), int(found[2] or 0), found[3] is not None, 0
            )
        )
    return b"".join(packed)
