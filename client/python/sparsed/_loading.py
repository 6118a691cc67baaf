"""The native library of this process: which one, its functions, and what becomes of it in a fork.

Which library: `SPARSED_LIBRARY` (a file, or a folder that has it), else the one beside this
package, else the system's; `libsparsed_attached.so` before `libsparsed_client.so`.

After a fork nothing that the parent made may be used or freed in the child, where only one thread
of it is left. `generation` counts forks: what was made in another generation is forgotten. The
child loads a fresh copy of the library without kernels, since the parent's copy has lost its
threads, and neither OpenMP nor CUDA can be used there.
"""

from __future__ import annotations

import ctypes
import os
import threading
from ctypes import CFUNCTYPE, c_char_p, c_int32, c_int64, c_size_t, c_void_p
from pathlib import Path
from typing import Any

from sparsed._errors import FailedPrecondition

C_VERSION = 1
# By the number of the C interface's binary form; development files may be there alone, without it.
CLIENT_LIBRARIES = ("libsparsed_client.so.1", "libsparsed_client.so")
ATTACHED_LIBRARIES = ("libsparsed_attached.so.1", "libsparsed_attached.so")

Progress = CFUNCTYPE(None, c_void_p, c_int64, c_int64)
PreparationProgress = CFUNCTYPE(None, c_void_p, c_char_p, c_char_p, c_int64, c_int64, c_char_p)
RowBlock = CFUNCTYPE(c_int32, c_void_p, c_int64, c_void_p)

_P, _I, _L, _D, _S = c_void_p, c_int32, c_int64, ctypes.c_double, c_char_p
# name: (what it returns, what it takes). Pointers to errors come back as integers, None for NULL.
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "sparsed_c_version": (_I, ()),
    "sparsed_version": (_S, ()),
    "sparsed_has_kernels": (_I, ()),
    "sparsed_error_code": (_I, (_P,)),
    "sparsed_error_message": (_S, (_P,)),
    "sparsed_error_retry_ms": (_L, (_P,)),
    "sparsed_error_request_id": (_S, (_P,)),
    "sparsed_error_free": (None, (_P,)),
    "sparsed_text_free": (None, (_P,)),
    "sparsed_connect": (_P, (_S, _P, _P)),
    "sparsed_client_free": (None, (_P,)),
    "sparsed_server_info": (_P, (_P, _P, _P)),
    "sparsed_server_stats": (_P, (_P, _P, _P)),
    "sparsed_call_wait": (_I, (_P, _L)),
    "sparsed_call_cancel": (None, (_P,)),
    "sparsed_call_finish": (_P, (_P,)),
    "sparsed_call_free": (None, (_P,)),
    "sparsed_dense_put": (_P, (_P, _S, _P, _P, _P, _P)),
    "sparsed_dense_read_of": (_P, (_P, _S, _S, _P, _P, _P)),
    "sparsed_dense_renew_of": (_P, (_P, _S, _S, _P)),
    "sparsed_dense_delete_of": (_P, (_P, _S, _S, _P)),
    "sparsed_dense_info_of": (_P, (_P, _S, _S, _P, _P)),
    "sparsed_dense_list": (_P, (_P, _S, _P, _P)),
    "sparsed_memory_allocate": (_P, (_P, c_size_t, _P)),
    "sparsed_memory_data": (_P, (_P,)),
    "sparsed_memory_free": (None, (_P,)),
    "sparsed_gpu_allocate": (_P, (_P, _I, c_size_t, _P, _P)),
    "sparsed_gpu_free": (_P, (_P, _I, _P, _P)),
    "sparsed_gpu_pool_set": (_P, (_P,)),
    "sparsed_csr_get": (None, (_P, _P)),
    "sparsed_csr_free": (None, (_P,)),
    "sparsed_csr_read": (_P, (_S, _P, _P, _P)),
    "sparsed_upload": (_P, (_P, _S, _P, _P, _P, _P, _P)),
    "sparsed_matrix_named": (_P, (_P, _S, _P)),
    "sparsed_matrix_free": (None, (_P,)),
    "sparsed_matrix_name": (_S, (_P,)),
    "sparsed_matrix_list": (_P, (_P, _S, _P, _P)),
    "sparsed_all_matrices": (_P, (_P, _S, _P, _P)),
    "sparsed_matrix_info": (_P, (_P, _P, _P)),
    "sparsed_matrix_features": (_P, (_P, _P, _P)),
    "sparsed_matrix_explain": (_P, (_P, _L, _S, _P, _P)),
    "sparsed_measurements": (_P, (_P, _P, _P, _P)),
    "sparsed_all_measurements": (_P, (_P, _P, _P)),
    "sparsed_prepare": (_P, (_P, _P, _P)),
    "sparsed_wait_ready": (_P, (_P, PreparationProgress, _P, _P, _P)),
    "sparsed_update_values": (_P, (_P, _P, _L, _I, _P, _P, _P, _P)),
    "sparsed_download": (_P, (_P, _P, _P, _P)),
    "sparsed_matrix_delete": (_P, (_P, _P)),
    "sparsed_transport_name": (_S, (_I,)),
    "sparsed_spmm": (_P, (_P,) * 7),
    "sparsed_sddmm": (_P, (_P,) * 8),
    "sparsed_softmax": (_P, (_P, _P, _P, _D, _P, _P, _P)),
    "sparsed_softmax_gradient": (_P, (_P, _P, _P, _P, _D, _P, _P, _P)),
    "sparsed_scale": (_P, (_P,) * 8),
    "sparsed_total": (_P, (_P, _P, _I, _P, _P, _P, _P)),
    "sparsed_attention": (_P, (_P,) * 10),
    "sparsed_attention_gradient": (_P, (_P,) * 15),
    "sparsed_spgemm": (_P, (_P,) * 7),
    "sparsed_spgemm_blocks": (_P, (_P, _P, _P, RowBlock, _P, _P, _P, _P)),
    "sparsed_attach": (_P, (_P, _I)),
    "sparsed_chain_new": (_P, (_P, _P)),
    "sparsed_chain_free": (None, (_P,)),
    "sparsed_chain_input": (_P, (_P, _P, _P)),
    "sparsed_chain_spmm": (_P, (_P, _P, _I, _I, _I, _D, _D, _I, _I, _I, _I, _P, _P)),
    "sparsed_chain_sddmm": (_P, (_P, _P, _I, _I, _I, _I, _L, _P)),
    "sparsed_chain_softmax": (_P, (_P, _P, _I, _I, _D, _P)),
    "sparsed_chain_scale": (_P, (_P, _P, _I, _I, _I, _P)),
    "sparsed_chain_total": (_P, (_P, _P, _I, _I, _P)),
    "sparsed_chain_attention": (
        _P,
        (_P, _P, _I, _I, _I, _I, _I, _L, _D, _D, _P, _P),
    ),
    "sparsed_chain_attention_gradient": (
        _P,
        (_P, _P, _I, _I, _I, _I, _I, _L, _D, _D, _I, _I, _I, _P, _P, _P, _P),
    ),
    "sparsed_chain_gatv2": (
        _P,
        (_P, _P, _I, _I, _I, _I, _I, _L, _D, _P, _P),
    ),
    "sparsed_chain_gatv2_gradient": (
        _P,
        (_P, _P, _I, _I, _I, _I, _I, _L, _D, _I, _I, _I, _P, _P, _P, _P, _P),
    ),
    "sparsed_chain_sum": (_P, (_P, _P, _P, c_size_t, _P)),
    "sparsed_chain_output": (_P, (_P, _I, _P)),
    "sparsed_chain_run": (_P, (_P, _P, _P, _P)),
}

# Counts forks of this process's line since the package was imported.
generation = 0
_library: Any = None
_lock = threading.RLock()
# Whether a parent of this process had loaded the library before it forked.
_lost_in_fork = False


def _candidates(names: tuple[str, ...]) -> list[str]:
    chosen = os.environ.get("SPARSED_LIBRARY")
    if chosen:
        path = Path(chosen)
        return [str(path / name) for name in names] if path.is_dir() else [chosen]
    here = Path(__file__).parent
    beside = [str(here / "lib" / name) for name in names if (here / "lib" / name).exists()]
    return beside or list(names)


def _open(names: tuple[str, ...]) -> Any:
    reasons = []
    for candidate in _candidates(names):
        try:
            return ctypes.CDLL(candidate, mode=os.RTLD_NOW | os.RTLD_LOCAL)
        except OSError as error:
            reasons.append(str(error))
    raise ImportError(
        "the native library of sparsed cannot be loaded (SPARSED_LIBRARY may name it): "
        + "; ".join(reasons)
    )


def _open_copy() -> Any:
    """A second copy of the library without kernels, apart from the one that the parent loaded."""
    for candidate in _candidates(CLIENT_LIBRARIES):
        # SPARSED_LIBRARY may name a file: the thin library lies beside it.
        path = Path(candidate)
        if path.name in ATTACHED_LIBRARIES:
            path = path.with_name(CLIENT_LIBRARIES[ATTACHED_LIBRARIES.index(path.name)])
        try:
            content = (
                _read_system_library(path.name) if path.parent == Path() else path.read_bytes()
            )
        except OSError:
            continue
        descriptor = os.memfd_create("sparsed_client")
        try:
            with open(descriptor, "wb", closefd=False) as file:
                file.write(content)
            return ctypes.CDLL(f"/proc/self/fd/{descriptor}", mode=os.RTLD_NOW | os.RTLD_LOCAL)
        finally:
            os.close(descriptor)
    raise FailedPrecondition(
        f"this process was forked from one that uses sparsed, and {CLIENT_LIBRARIES[0]}, "
        "of which it needs a copy of its own, was not found: set SPARSED_LIBRARY to the folder "
        "that has it, or start processes with 'spawn'"
    )


def _read_system_library(name: str) -> bytes:
    # What the dynamic linker finds, /proc says once it is loaded; nothing of it is used.
    ctypes.CDLL(name, mode=os.RTLD_NOW | os.RTLD_LOCAL)
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = Path(line.rstrip().split(maxsplit=5)[-1])
            if path.name.startswith(name):
                return path.read_bytes()
    raise OSError(f"{name} is not in this process")


def _declare(opened: Any) -> Any:
    for name, (returns, takes) in _FUNCTIONS.items():
        try:
            function = getattr(opened, name)
        except AttributeError:
            raise ImportError(
                f"the native library of sparsed has no {name}: it is older than this package"
            ) from None
        function.restype = returns
        function.argtypes = takes
    version = opened.sparsed_c_version()
    if version < C_VERSION:
        raise ImportError(
            f"the native library of sparsed has version {version} of the C interface, and this "
            f"package needs {C_VERSION}"
        )
    return opened


def library() -> Any:
    """The library of this process, loaded at the first call; its functions are its attributes."""
    global _library
    if _library is None:
        with _lock:
            if _library is None:
                if _lost_in_fork:
                    _library = _declare(_open_copy())
                else:
                    _library = _declare(_open(ATTACHED_LIBRARIES + CLIENT_LIBRARIES))
    return _library


def forked() -> bool:
    """Whether this process was forked from one that had loaded the library, so that it has none
    with kernels."""
    return _lost_in_fork


def lock() -> threading.RLock:
    """Guards what is set up once in a process: the library, connections. Free after a fork."""
    return _lock


def _after_fork_in_child() -> None:
    global generation, _library, _lock, _lost_in_fork
    generation += 1
    _lost_in_fork = _lost_in_fork or _library is not None
    _library = None
    _lock = threading.RLock()


os.register_at_fork(after_in_child=_after_fork_in_child)
