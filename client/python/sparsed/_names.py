"""Small things that calls take: names, problem signatures."""

from __future__ import annotations

import os
import re
import uuid
from collections.abc import Iterable
from typing import Any

from sparsed import _native, _types
from sparsed._errors import InvalidArgument, InvalidType

Problem = int | str
"""A problem signature to tune for: "spmm:128" (the width), "spmm^T:128", "spmm:128:tf32",
"sddmm:64", "spgemm"; a number is the width of an SpMM."""


def c_name(name: Any, what: str = "name") -> bytes:
    if not isinstance(name, str):
        raise InvalidType(f"{what} is a {type(name).__name__}, expected a string")
    if "\0" in name:
        raise InvalidArgument(f"{what} has a zero byte in it")
    return name.encode("utf-8", "surrogateescape")


def unused_name() -> str:
    return f"tmp-{os.getpid()}-{uuid.uuid4().hex}"


def host_array(x: Any) -> Any:
    """Copies what is on a GPU to host memory."""
    torch = _types.torch()
    if torch is not None and isinstance(x, torch.Tensor):
        return x.cpu()
    if hasattr(x, "__cuda_array_interface__") and hasattr(x, "get"):
        return x.get()
    return x


_PROBLEM = re.compile(r"(spmm|spmm\^T|sddmm|spgemm)(?::(\d{1,18}))?(:tf32)?")


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
        if found[2] is not None and int(found[2]) == 0:
            raise InvalidArgument(f"{text!r} is of width 0, expected 1 or more")
        operation = _native.OPERATIONS[found[1].removesuffix("^T")]
        packed.append(
            _native.PROBLEM.pack(
                operation, found[1].endswith("^T"), int(found[2] or 0), found[3] is not None, 0
            )
        )
    return b"".join(packed)
