"""Buffers, dense matrices that a server keeps under names, as a client sees them."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, cast

from sparsed import _native, _numbers, _operands, _types
from sparsed._calls import Operation
from sparsed._connection import Connection
from sparsed._errors import InvalidArgument, NotFound
from sparsed._held import DenseMatrix
from sparsed._names import c_name, host_array, unused_name
from sparsed._report import Report

if TYPE_CHECKING:
    from sparsed._client import Client


class Buffers(Connection):
    """Put, find, read, delete."""

    def put(
        self,
        name: str | None,
        x: Any,
        *,
        dtype: Any = None,
        durable: bool = False,
        owner: str | None = None,
        time_to_live: float | None = None,
        distribution: str = "whole",
        rows_of: str | None = None,
        timeout: float | None = None,
    ) -> DenseMatrix:
        """Has the server hold a copy of a dense matrix, in the place of one of this name. Products
        take it as operand or `out` without its travelling.

        Args:
            name: None: one that nobody has; to be used in a `with`.
            x: a 2-D array in host memory; a 1-D one is a column.
            dtype: of lists; else that of `x` counts.
            durable: on disk before this returns.
            owner: whom it is listed for, a job or a person.
            time_to_live: seconds that it stays though nothing uses it; None: as the server
                decides.
            distribution: "columns": each GPU of a server that has several gets as many of its
                columns, and computes with them; "rows": each gets rows of it, and computes the
                same rows of products; "auto": whole, or as one of these, as the server finds best
                for products with the matrix `rows_of`. Results that stay there lie likewise.
            rows_of: with "rows", a matrix with as many rows: each GPU gets those with as many of
                its nonzeros; None: as many rows. With "auto", the matrix that it is for. If it is
                in shards, their nodes have the rows.
            timeout: seconds; None: no limit.
        """
        operation = self._put(
            name, x, dtype, durable, owner, time_to_live, distribution, rows_of, timeout
        )
        return operation.wait()

    def zeros(
        self,
        name: str | None,
        shape: tuple[int, int],
        dtype: Any = "f32",
        *,
        owner: str | None = None,
        time_to_live: float | None = None,
        distribution: str = "whole",
        rows_of: str | None = None,
        timeout: float | None = None,
    ) -> DenseMatrix:
        """Makes a buffer of zeros on the server: a place for results. See `put`."""
        rows, cols = _shape(shape)
        dense = (0, rows, cols, cols, _types.parse(dtype), _native.HOST, 0)
        operation = self._put_dense(
            name, dense, None, False, owner, time_to_live, distribution, rows_of, timeout
        )
        return operation.wait()

    def _put(
        self, name: str | None, x: Any, dtype: Any, durable: bool, owner: str | None,
        time_to_live: float | None, distribution: str, rows_of: str | None,
        timeout: float | None,
    ) -> Operation[DenseMatrix]:  # fmt: skip
        x = host_array(x)
        if dtype is None:
            dtype = getattr(x, "dtype", "f32")
        operand = _operands.operand(x, "x", _types.parse(dtype))
        return self._put_dense(
            name, operand.dense, operand, durable, owner, time_to_live, distribution, rows_of,
            timeout,
        )  # fmt: skip

    def _put_dense(
        self, name: str | None, dense: Any, keep: Any, durable: bool, owner: str | None,
        time_to_live: float | None, distribution: str, rows_of: str | None,
        timeout: float | None,
    ) -> Operation[DenseMatrix]:  # fmt: skip
        name = unused_name() if name is None else name
        encoded = c_name(name)
        if dense[2] < 1:
            raise InvalidArgument(f"{name!r} has no columns: a buffer has 1 or more")
        if distribution not in ("whole", "columns", "rows", "auto"):
            raise InvalidArgument(
                f"distribution is {distribution!r}, expected 'whole', 'columns', 'rows' or 'auto'"
            )
        if rows_of is not None and distribution not in ("rows", "auto"):
            raise InvalidArgument("rows_of is for distribution='rows' or 'auto'")
        if rows_of is None and distribution == "auto":
            raise InvalidArgument("distribution='auto' needs rows_of, the matrix that it is for")
        handle = self._native_handle()
        c_owner = ctypes.create_string_buffer(owner.encode()) if owner else None
        of = None if rows_of is None else ctypes.create_string_buffer(c_name(rows_of, "rows_of"))
        put = _native.PUT_OPTIONS.pack(
            _native.PUT_OPTIONS.size, durable, ctypes.addressof(c_owner) if c_owner else 0,
            _numbers.nanoseconds(time_to_live, "time_to_live", "; None: as the server decides"),
            distribution == "columns", distribution == "rows", ctypes.addressof(of) if of else 0,
            distribution == "auto",
        )  # fmt: skip
        packed = _native.DENSE.pack(*dense)
        options = _native.call_options(timeout)
        lib = _native.library()

        def start(call: int | None) -> int | None:
            error: int | None = lib.sparsed_dense_put(
                handle.pointer, encoded, packed, put, options, call
            )
            return error

        def finish() -> DenseMatrix:
            return DenseMatrix(
                cast("Client", self), name, dense[1], dense[2], dense[4], rows_of
            )

        return Operation(start, finish, (handle, keep, c_owner, of, put, packed, options))

    def held(self, name: str, *, rows_of: str | None = None) -> DenseMatrix:
        """The buffer of that name, which the server has already.

        Args:
            rows_of: the matrix that it was put for, or whose product was kept in it, if that is in
                shards.

        Raises:
            NotFound: there is none.
        """
        of = _matrix(rows_of)
        one = self._json("sparsed_dense_info_of", of, c_name(name))
        return DenseMatrix(
            cast("Client", self), name, one["rows"], one["cols"], _types.parse(one["type"]), rows_of
        )

    def buffers(self, prefix: str = "") -> list[Report]:
        """What the server says about each buffer whose name begins with `prefix`, by name."""
        listed = self._json("sparsed_dense_list", c_name(prefix, "prefix"))
        if isinstance(listed, dict):
            listed = listed["buffers"]
        return [Report(one, f"buffer {one['name']}") for one in listed]

    def _read_held(self, held: DenseMatrix, out: Any, timeout: float | None) -> Operation[Any]:
        rows, cols = held.shape
        if out is None:
            into = _operands.empty_numpy(rows, cols, held._type, 2)
        else:
            into = _operands.destination(out, "out", held.shape, held._type)
        handle = self._native_handle()
        packed = _native.DENSE.pack(*into.dense)
        options = _native.call_options(timeout)
        of, name = _matrix(held.rows_of), held.name.encode()
        lib = _native.library()

        def start(call: int | None) -> int | None:
            error: int | None = lib.sparsed_dense_read_of(
                handle.pointer, of, name, packed, options, call
            )
            return error

        return Operation(start, lambda: _operands.give(into), (handle, packed, options, into))

    def _renew_held(self, held: DenseMatrix) -> None:
        self._call_held("sparsed_dense_renew_of", held)

    def _delete_held(self, held: DenseMatrix) -> None:
        self._call_held("sparsed_dense_delete_of", held)

    def _release_held(self, held: DenseMatrix) -> None:
        try:
            self._delete_held(held)
        except NotFound:
            pass

    def _call_held(self, function: str, held: DenseMatrix) -> None:
        handle = self._native_handle()
        options = _native.call_options()
        of = _matrix(held.rows_of)
        _native.check(
            getattr(_native.library(), function)(handle.pointer, of, held.name.encode(), options)
        )


def _matrix(rows_of: str | None) -> bytes | None:
    return None if rows_of is None else c_name(rows_of, "rows_of")


def _shape(shape: Any) -> tuple[int, int]:
    try:
        rows, cols = (int(extent) for extent in shape)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"shape {shape!r} is not (rows, cols)") from error
    if rows < 0 or cols < 0 or rows * cols > 2**60:
        raise InvalidArgument(f"shape {shape!r} makes no dense matrix")
    return rows, cols
