"""The C interface (`sparsed/c.h`) by ctypes: structs, errors, handles, products.

Structs are packed by `struct`, all those of one call into one block of memory (a frame), because
ctypes.Structure would cost microseconds. Functions take addresses as integers.
"""

from __future__ import annotations

import ctypes
import os
import struct
import threading
from collections.abc import Callable
from ctypes import c_void_p
from typing import Any, NamedTuple

from sparsed import _loading, _numbers, _trace
from sparsed._errors import BY_CODE, Unknown
from sparsed._loading import PreparationProgress, Progress, RowBlock, library, lock

__all__ = ["PreparationProgress", "Progress", "RowBlock", "library", "lock"]

# Element types, places, reductions: as in c.h.
F32, F64, F16, BF16, I64 = range(5)
HOST = -1
SUM, MEAN, MAX, MIN = range(4)
DOT, ADD, GATV2 = 1, 2, 3  # scores of attention
TRANSPORT_STREAM, TRANSPORT_ATTACHED = 0, 5
ELEMENT_BYTES = (4, 8, 2, 2, 8)
TYPE_NAMES = ("f32", "f64", "f16", "bf16", "i64")
REDUCTIONS = {"sum": SUM, "mean": MEAN, "max": MAX, "min": MIN}
SEMIRINGS = {"sum-product": 1, "boolean": 2, "min-plus": 3, "plus-pair": 4}
OPERATIONS = {"spmm": 1, "sddmm": 2, "spgemm": 3}

# Structs. N: size_t, P: pointer; "0q" at the end pads to 8 bytes.
DENSE = struct.Struct("@PqqqiiP")
CLIENT_OPTIONS = struct.Struct("@NqiqqqiqiiiiPPPPPPP")
CALL_OPTIONS = struct.Struct("@NqPPP")
PUT_OPTIONS = struct.Struct("@NiPqi4xi4xPi4x")
CSR_VIEW = struct.Struct("@qqqPiiPP")
PROBLEM = struct.Struct("@iiqii")
READ_OPTIONS = struct.Struct("@NPiiiiqq")
UPLOAD_OPTIONS = struct.Struct("@NiiiPPNPPiiP")
PREPARE_OPTIONS = struct.Struct("@NPNiPPi4x")
UPDATE_OPTIONS = struct.Struct("@NiQ")
SPMM_OPTIONS = struct.Struct("@NiiddPPiiP")
SDDMM_OPTIONS = struct.Struct("@NiPq")
ATTENTION_OPTIONS = struct.Struct("@NiiqddPPP")
SPGEMM_OPTIONS = struct.Struct("@NiiiPPi0q")
RESULT = struct.Struct("@Qii8q256s96s")

# ---- Errors and handles --------------------------------------------------------------------------


def check(error: int | None) -> None:
    """Raises what a function of the library gave back, if that is an error, and frees it."""
    if error:
        raise take_error(error)


def take_error(error: int) -> Exception:
    lib = library()
    message = (lib.sparsed_error_message(error) or b"").decode("utf-8", "replace")
    retry_ms = lib.sparsed_error_retry_ms(error)
    request_id = (lib.sparsed_error_request_id(error) or b"").decode("utf-8", "replace")
    kind = BY_CODE.get(lib.sparsed_error_code(error), Unknown)
    lib.sparsed_error_free(error)
    return kind(message, retry_ms / 1000 if retry_ms >= 0 else None, request_id or None)


class Handle:
    """Owns something of the library's, and frees it with its last reference.

    To use one: keep a reference to it while its pointer is in use, so that it cannot be freed.
    """

    __slots__ = ("pointer", "generation", "_free", "__weakref__")

    def __init__(self, pointer: int, free: Callable[[int], None]) -> None:
        self.pointer = pointer
        self.generation = _loading.generation
        self._free = free

    def __del__(self) -> None:
        # Not in a child: it is the parent's.
        if self.generation == _loading.generation:
            self._free(self.pointer)


class Out:
    """Memory for what a function gives back by pointer."""

    __slots__ = ("_value", "address")

    def __init__(self) -> None:
        self._value = c_void_p()
        self.address = ctypes.addressof(self._value)

    @property
    def value(self) -> int:
        return self._value.value or 0


def take_text(pointer: int) -> str:
    """Decodes and frees text of the library's."""
    text = ctypes.string_at(pointer).decode("utf-8", "replace")
    library().sparsed_text_free(pointer)
    return text


def text(function: Any, *arguments: Any) -> str:
    """What a function whose last parameter is a char** gives back."""
    out = Out()
    check(function(*arguments, out.address))
    return take_text(out.value)


class _CallOptions(bytes):
    """`sparsed_call_options`, and what has to live as long."""

    trace: _trace.Trace


def call_options(timeout: float | None = None, stream: int = 0) -> bytes:
    """`sparsed_call_options`; timeout in seconds, None: none."""
    trace = _trace.current()
    options = _CallOptions(
        CALL_OPTIONS.pack(CALL_OPTIONS.size, nanoseconds(timeout), stream, *trace.addresses)
    )
    options.trace = trace
    return options


def nanoseconds(timeout: float | None) -> int:
    """Of seconds, for the library; 0 of None, which is no limit."""
    return 0 if timeout is None else _numbers.nanoseconds(timeout, "timeout", "; None: no limit")


# ---- Products ------------------------------------------------------------------------------------


class Dense(NamedTuple):
    """`sparsed_dense`. `held` is the address of a name, 0 without."""

    data: int
    rows: int
    cols: int
    leading_dimension: int
    type: int
    device: int = HOST
    held: int = 0


class Result(NamedTuple):
    """How a product was done. Times in nanoseconds, 0 of what did not happen.

    Attributes:
        transport: how operands and results travelled, the slowest way that one of them took:
            "stream", "ring", "shared_host", "shared_device", "held" or "attached".
        plan: "<transform pipeline> / <kernel>".
        version: of the sparse matrix's values that were used.
        batch: calls that the server ran as one with it, itself counted.
        request_id: what the server's log knows it by; "" of one that no request was made for.
    """

    transport: str
    plan: str
    version: int
    batch: int
    queue_ns: int
    receive_ns: int
    to_device_ns: int
    kernel_ns: int
    from_device_ns: int
    send_ns: int
    setup_ns: int
    total_ns: int
    request_id: str = ""


_last = threading.local()


def _forget_results() -> None:
    global _last
    _last = threading.local()


os.register_at_fork(after_in_child=_forget_results)


def set_last_result(frame: Any, offset: int) -> None:
    """`frame` has a sparsed_result at `offset`: that of this thread's last product."""
    _last.result = (frame, offset)


def last_result() -> Result | None:
    """How this thread's last product was done; None before the first one."""
    found = getattr(_last, "result", None)
    if found is None:
        return None
    fields = RESULT.unpack_from(*found)
    transport = library().sparsed_transport_name(fields[1]).decode()
    plan, request_id = (text.split(b"\0", 1)[0].decode("utf-8", "replace") for text in fields[11:])
    result = Result(transport, plan, fields[0], fields[2], *fields[3:11])
    return result._replace(request_id=request_id)


# One block of memory for all that a product's function is given: what an SpMM always has, packed at
# once (two dense matrices, the call's options, its own), up to three more dense matrices, the
# result.
_SPMM = struct.Struct("@PqqqiiP PqqqiiP NqPPP NiiddPPiiP")
_DENSE = (0, 48, 200, 248, 296)
_CALL = 96
_OPTIONS = 136
_RESULT = 344


class _Frame(ctypes.c_char * (_RESULT + RESULT.size)):  # type: ignore[misc]
    trace: _trace.Trace  # that it has the addresses of



_put_dense = DENSE.pack_into
_put_call = CALL_OPTIONS.pack_into
_put_spmm = _SPMM.pack_into
_put_sddmm = SDDMM_OPTIONS.pack_into
_address = ctypes.addressof
_get_int32 = struct.Struct("@i").unpack_from


class Product:
    """A product that is ready to be started: `start(0)` blocks, `start(address)` puts the call
    that is under way there. The frame must live until its end."""

    __slots__ = ("frame", "_function", "_arguments")
    at_result = _RESULT  # in the frame

    def __init__(self, frame: Any, function: Any, arguments: tuple[Any, ...]) -> None:
        self.frame = frame
        self._function = function
        self._arguments = arguments

    def start(self, call: int | None = None) -> int | None:
        error: int | None = self._function(*self._arguments, call)
        return error

    def run(self) -> None:
        """Blocks until it is done (on a GPU: queued). Raises its error."""
        error = self._function(*self._arguments, None)
        if error:
            raise take_error(error)
        _last.result = (self.frame, self.at_result)

    def done(self) -> None:
        """To be called in the thread that waited for it, when it has ended well."""
        _last.result = (self.frame, self.at_result)

    @property
    def transport(self) -> int:
        """How its operands travelled; SPARSED_TRANSPORT_... of c.h."""
        number: int = _get_int32(self.frame, self.at_result + 8)[0]
        return number


def spmm(
    matrix: int,
    b: Dense | tuple[int, ...],
    c: Dense | tuple[int, ...],
    transpose: bool = False,
    reduce: int = SUM,
    alpha: float = 1.0,
    beta: float = 0.0,
    accumulate: Dense | tuple[int, ...] | None = None,
    values: Dense | tuple[int, ...] | None = None,
    unscaled: bool = False,
    allow_tf32: bool = False,
    which: Dense | tuple[int, ...] | None = None,
    timeout_ns: int = 0,
    stream: int = 0,
) -> Product:
    """c = alpha op(S) b + beta accumulate. `matrix`: a handle's pointer. See sparsed_spmm."""
    frame = _Frame()
    frame.trace = trace = _trace.current()
    at = _address(frame)
    at_accumulate = at_values = at_which = 0
    if accumulate is not None:
        _put_dense(frame, 200, *accumulate)
        at_accumulate = at + 200
    if values is not None:
        _put_dense(frame, 248, *values)
        at_values = at + 248
    if which is not None:
        _put_dense(frame, 296, *which)
        at_which = at + 296
    _put_spmm(
        frame, 0, *b, *c, 40, timeout_ns, stream, *trace.addresses, 64, transpose, reduce, alpha,
        beta, at_accumulate, at_values, unscaled, allow_tf32, at_which,
    )  # fmt: skip
    arguments = (matrix, at, at + 48, at + _OPTIONS, at + _CALL, at + _RESULT)
    return Product(frame, (_loading._library or library()).sparsed_spmm, arguments)


def sddmm(
    matrix: int,
    a: Dense | tuple[int, ...],
    b: Dense | tuple[int, ...],
    out: Dense | tuple[int, ...],
    unscaled: bool = False,
    values: Dense | tuple[int, ...] | None = None,
    heads: int = 1,
    timeout_ns: int = 0,
    stream: int = 0,
) -> Product:
    """out = S .* (a b^T), nnz x heads. See sparsed_sddmm."""
    frame = _Frame()
    at = _address(frame)
    _put_dense(frame, 0, *a)
    _put_dense(frame, 48, *b)
    _put_dense(frame, 200, *out)
    at_values = 0
    if values is not None:
        _put_dense(frame, 248, *values)
        at_values = at + 248
    frame.trace = trace = _trace.current()
    _put_call(frame, _CALL, 40, timeout_ns, stream, *trace.addresses)
    _put_sddmm(frame, _OPTIONS, 32, unscaled, at_values, heads)
    arguments = (matrix, at, at + 48, at + 200, at + _OPTIONS, at + _CALL, at + _RESULT)
    return Product(frame, (_loading._library or library()).sparsed_sddmm, arguments)


def _dense_frame(
    dense: tuple[Dense | tuple[int, ...] | None, ...], timeout_ns: int, stream: int
) -> tuple[Any, list[int], int]:
    """A frame with up to five dense matrices; their addresses (0 of None), and its own."""
    frame = _Frame()
    at = _address(frame)
    addresses = []
    for offset, one in zip(_DENSE, dense, strict=False):
        if one is not None:
            _put_dense(frame, offset, *one)
        addresses.append(at + offset if one is not None else 0)
    frame.trace = trace = _trace.current()
    _put_call(frame, _CALL, 40, timeout_ns, stream, *trace.addresses)
    return frame, addresses, at


def softmax(
    matrix: int,
    x: Dense | tuple[int, ...],
    y: Dense | tuple[int, ...],
    scale: float = 1.0,
    timeout_ns: int = 0,
    stream: int = 0,
) -> Product:
    """y = softmax of scale x over the nonzeros of each row, nnz x H. See sparsed_softmax."""
    frame, (at_x, at_y), at = _dense_frame((x, y), timeout_ns, stream)
    arguments = (matrix, at_x, at_y, scale, at + _CALL, at + _RESULT)
    return Product(frame, library().sparsed_softmax, arguments)


def softmax_gradient(
    matrix: int,
    y: Dense | tuple[int, ...],
    dy: Dense | tuple[int, ...],
    dx: Dense | tuple[int, ...],
    scale: float = 1.0,
    timeout_ns: int = 0,
    stream: int = 0,
) -> Product:
    """See sparsed_softmax_gradient."""
    frame, (at_y, at_dy, at_dx), at = _dense_frame((y, dy, dx), timeout_ns, stream)
    arguments = (matrix, at_y, at_dy, at_dx, scale, at + _CALL, at + _RESULT)
    return Product(frame, library().sparsed_softmax_gradient, arguments)


def scale(
    matrix: int,
    values: Dense | tuple[int, ...] | None,
    rows: Dense | tuple[int, ...] | None,
    cols: Dense | tuple[int, ...] | None,
    y: Dense | tuple[int, ...],
    timeout_ns: int = 0,
    stream: int = 0,
) -> Product:
    """y[p] = rows[i] values[p] cols[j] for each nonzero p = (i, j). See sparsed_scale."""
    frame, addresses, at = _dense_frame((values, rows, cols, y), timeout_ns, stream)
    arguments = (matrix, *addresses, at + _CALL, at + _RESULT)
    return Product(frame, library().sparsed_scale, arguments)


def total(
    matrix: int,
    values: Dense | tuple[int, ...] | None,
    transpose: bool,
    y: Dense | tuple[int, ...],
    timeout_ns: int = 0,
    stream: int = 0,
) -> Product:
    """What the values of each row (transpose: column) add up to. See sparsed_total."""
    frame, (at_values, at_y), at = _dense_frame((values, y), timeout_ns, stream)
    arguments = (matrix, at_values, transpose, at_y, at + _CALL, at + _RESULT)
    return Product(frame, library().sparsed_total, arguments)


# ---- Attention -----------------------------------------------------------------------------------

# As _SPMM: the call's options, those of attention, five dense matrices that there always are, up to
# eight more, and the result.
_ATTENTION = struct.Struct("@NqPPP NiiqddPPP" + " PqqqiiP" * 5)
_ATTENTION_OPTIONS = 40
_ATTENTION_FIRST = _ATTENTION_OPTIONS + ATTENTION_OPTIONS.size
_ATTENTION_DENSE = tuple(range(_ATTENTION_FIRST, _ATTENTION_FIRST + 13 * DENSE.size, DENSE.size))
_ATTENTION_RESULT = _ATTENTION_FIRST + 13 * DENSE.size


class _AttentionFrame(ctypes.c_char * (_ATTENTION_RESULT + RESULT.size)):  # type: ignore[misc]
    trace: _trace.Trace


_put_attention = _ATTENTION.pack_into


class _Attention(Product):
    __slots__ = ()
    at_result = _ATTENTION_RESULT


def _attention_frame(
    dense: tuple[Dense | tuple[int, ...], ...],
    more: tuple[Dense | tuple[int, ...] | None, ...],
    scores: int,
    heads: int,
    factor: float,
    timeout_ns: int,
    stream: int,
) -> tuple[Any, int, list[int], list[int]]:
    """A frame with five dense matrices and more, the first of which are the bias, att and where its
    gradient goes; the frame's address, those of the five, and those of the others (0 of None)."""
    frame = _AttentionFrame()
    frame.trace = trace = _trace.current()
    at = _address(frame)
    addresses = []
    for offset, one in zip(_ATTENTION_DENSE[5:], more, strict=False):
        if one is not None:
            _put_dense(frame, offset, *one)
        addresses.append(at + offset if one is not None else 0)
    one, two, three, four, five = dense
    _put_attention(
        frame, 0, 40, timeout_ns, stream, *trace.addresses, ATTENTION_OPTIONS.size, scores, 0,
        heads, factor, factor, *addresses[:3], *one, *two, *three, *four, *five,
    )  # fmt: skip
    return frame, at, [at + offset for offset in _ATTENTION_DENSE[:5]], addresses[3:]


def attention(
    matrix: int,
    left: Dense | tuple[int, ...],
    right: Dense | tuple[int, ...],
    values: Dense | tuple[int, ...],
    bias: Dense | tuple[int, ...] | None,
    att: Dense | tuple[int, ...] | None,
    out: Dense | tuple[int, ...],
    log_sums: Dense | tuple[int, ...],
    scores: int,
    heads: int,
    factor: float,
    timeout_ns: int = 0,
    stream: int = 0,
) -> Product:
    """See sparsed_attention. factor: the scale of DOT, the slope of ADD and GATV2."""
    frame, at, at_dense, _ = _attention_frame(
        (left, right, values, out, log_sums), (bias, att, None), scores, heads, factor,
        timeout_ns, stream,
    )  # fmt: skip
    arguments = (matrix, *at_dense, at + _ATTENTION_OPTIONS, at, at + _ATTENTION_RESULT)
    return _Attention(frame, (_loading._library or library()).sparsed_attention, arguments)


def attention_gradient(
    matrix: int,
    left: Dense | tuple[int, ...],
    right: Dense | tuple[int, ...],
    values: Dense | tuple[int, ...],
    bias: Dense | tuple[int, ...] | None,
    att: Dense | tuple[int, ...] | None,
    out: Dense | tuple[int, ...],
    log_sums: Dense | tuple[int, ...],
    gradient: Dense | tuple[int, ...],
    wanted: tuple[Dense | tuple[int, ...] | None, ...],
    scores: int,
    heads: int,
    factor: float,
    timeout_ns: int = 0,
    stream: int = 0,
) -> Product:
    """See sparsed_attention_gradient. wanted: where the gradients of left, right, values, bias and
    att go."""
    *operands, of_att = wanted
    frame, at, at_dense, (at_gradient, *at_wanted) = _attention_frame(
        (left, right, values, out, log_sums), (bias, att, of_att, gradient, *operands), scores,
        heads, factor, timeout_ns, stream,
    )  # fmt: skip
    arguments = (
        matrix, *at_dense, at_gradient, *at_wanted, at + _ATTENTION_OPTIONS, at,
        at + _ATTENTION_RESULT,
    )  # fmt: skip
    return _Attention(frame, (_loading._library or library()).sparsed_attention_gradient, arguments)


# ---- Chains --------------------------------------------------------------------------------------


def run_chain(chain: int, timeout_ns: int = 0, stream: int = 0) -> Product:
    """See sparsed_chain_run; the chain is put together by the library's own functions."""
    frame, _, at = _dense_frame((), timeout_ns, stream)
    return Product(frame, library().sparsed_chain_run, (chain, at + _CALL, at + _RESULT))
