"""Graphs made of a graph: with self-loops, normalised, averaged.

Each is a matrix of its own on the server, so that a layer's propagation is one plain product with
plans of its own. It is made here once, at the first use, and kept with the graph that it is made
of. Its name says what its content is, so processes that make the same one share it; the one that
uploaded it deletes it in the end, and another that still uses it then makes it again.

Functions take and give graphs' numbers, and are constants to torch.compile.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
import time
import weakref
from collections.abc import Callable

import numpy as np

from sparsed import Client, Csr, Matrix, connect
from sparsed._errors import AlreadyExists, Error, FailedPrecondition, InvalidArgument, NotFound
from sparsed.torch._graphs import Graph, Pattern, constant, find, graph_of

Triples = tuple[np.ndarray, np.ndarray, np.ndarray]
# For which another process's upload of the same matrix is waited for.
_PATIENCE_SECONDS = 60.0
# Held by who makes one, or makes it again.
_making = threading.RLock()


@constant
def normalized(number: int, loops: float) -> int:
    """D^-1/2 A D^-1/2 as PyG's gcn_norm has it: A with self-loops of that weight where it has none
    (0: as it is; at most 1 if A has no weights), D what its rows add up to; 0 for the inverse of
    0."""
    _square(find(number))
    return _derive(number, ("normalized", loops), lambda pattern: _normalize(pattern, loops))


@constant
def with_loops(number: int) -> int:
    """Ones at the graph's nonzeros and on its diagonal."""
    return _derive(number, "loops", _add_loops)


@constant
def averaged(number: int) -> int:
    """One over the number of its row's nonzeros at each nonzero."""
    return _derive(number, "averaged", _average)


@constant
def unweighted(number: int) -> int:
    """Ones at the graph's nonzeros."""
    return _derive(number, "ones", _ones)


def _square(graph: Graph) -> None:
    if graph.rows != graph.cols:
        raise InvalidArgument(
            f"the matrix {graph.matrix().name!r} is {graph.rows} x {graph.cols}, and only a square "
            "one can be normalised by its degrees"
        )


# ---- Content -------------------------------------------------------------------------------------


def _normalize(pattern: Pattern, loops: float) -> Triples:
    rows, columns, values = pattern.rows, pattern.columns, pattern.values
    count = pattern.shape[0]
    if not pattern.weighted:  # without weights PyG's loops are like all edges, also improved ones
        loops = min(loops, 1.0)
    if loops:
        missing = np.ones(count, bool)
        missing[rows[rows == columns]] = False
        added = np.flatnonzero(missing).astype(np.int32)
        rows, columns = np.concatenate((rows, added)), np.concatenate((columns, added))
        values = np.concatenate((values, np.full(len(added), loops)))
    degrees = np.bincount(rows, values, count)
    with np.errstate(divide="ignore", invalid="ignore"):
        roots = degrees**-0.5
    roots[np.isinf(roots)] = 0
    return rows, columns, (roots[rows] * roots[columns]) * values  # of both ends the same


def _add_loops(pattern: Pattern) -> Triples:
    others = pattern.rows != pattern.columns
    diagonal = np.arange(min(pattern.shape), dtype=np.int32)
    rows = np.concatenate((pattern.rows[others], diagonal))
    columns = np.concatenate((pattern.columns[others], diagonal))
    return rows, columns, np.ones(len(rows))


def _average(pattern: Pattern) -> Triples:
    counts = np.bincount(pattern.rows, minlength=pattern.shape[0])
    return pattern.rows, pattern.columns, 1.0 / counts[pattern.rows]


def _ones(pattern: Pattern) -> Triples:
    return pattern.rows, pattern.columns, np.ones(len(pattern.rows))


def _is_symmetric(shape: tuple[int, int], triples: Triples) -> bool:
    """Of triples in row-major order."""
    if shape[0] != shape[1]:
        return False
    rows, columns, values = triples
    order = np.lexsort((rows, columns))
    return (
        np.array_equal(columns[order], rows)
        and np.array_equal(rows[order], columns)
        and np.array_equal(values[order], values)
    )


# ---- Matrices ------------------------------------------------------------------------------------


def _derive(number: int, key: object, make: Callable[[Pattern], Triples]) -> int:
    base = find(number)
    found = base.derived.get(key)
    if found is None:
        with _making:
            found = base.derived.get(key)
            if found is None:
                found = base.derived[key] = _build(base, key, make)
    return graph_of(found).number


def _build(base: Graph, key: object, make: Callable[[Pattern], Triples]) -> Matrix:
    csr, symmetric = _content(base, make)
    matrix, delete = _upload(base, csr)
    graph = graph_of(matrix)
    graph.symmetric = symmetric
    weak_base, weak_graph = weakref.ref(base), weakref.ref(graph)

    def restore(stale_only: bool = False) -> None:
        nonlocal delete
        owner, restored = weak_base(), weak_graph()
        if owner is None or restored is None:
            return
        with _making:
            if stale_only and not restored.stale:
                return
            csr, symmetric = _content(owner, make)
            before = owner.derived.get(key)
            matrix, anew = _upload(owner, csr)
            # Of the same name: the one before must not delete it when it goes.
            if before is not None and before.name == matrix.name and delete is not None:
                if delete.detach() is not None and anew is None:
                    anew = _delete_with(matrix)
            delete = anew
            restored.use(matrix)
            restored.symmetric = symmetric
            restored.stale = False
            owner.derived[key] = matrix

    graph.restore = restore
    return matrix


def _content(base: Graph, make: Callable[[Pattern], Triples]) -> tuple[Csr, bool]:
    """And whether it is symmetric."""
    pattern = Pattern(base.matrix())
    rows, columns, values = make(pattern)
    order = np.lexsort((columns, rows))
    rows, columns, values = rows[order], columns[order], values[order]
    symmetric = _is_symmetric(pattern.shape, (rows, columns, values))
    offsets = np.zeros(pattern.shape[0] + 1, np.int64)
    np.cumsum(np.bincount(rows, minlength=pattern.shape[0]), out=offsets[1:])
    return Csr(pattern.shape, offsets, columns, values), symmetric


def _upload(base: Graph, csr: Csr) -> tuple[Matrix, weakref.finalize[..., Matrix] | None]:
    """And what deletes it on the server, if it is ours."""
    matrix = base.matrix()
    client, kind = matrix.client, matrix.type
    digest = hashlib.sha256(f"{csr.shape} {kind}".encode())
    for array in (csr.row_offsets, csr.column_indices, csr.values):
        digest.update(np.ascontiguousarray(array).data)
    name = f"{matrix.name[:200]}+{digest.hexdigest()[:16]}"
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            made = client.upload(name, csr, dtype=kind)
            return made, _delete_with(made)
        except AlreadyExists:
            # Another process's. It may not be there yet, or any more.
            try:
                found = client.matrix(name)
                found.nnz  # noqa: B018
                return found, None
            except NotFound:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)


def _delete_with(matrix: Matrix) -> weakref.finalize[..., Matrix]:
    return weakref.finalize(matrix, _delete, matrix.client, matrix.name, os.getpid())


def _delete(client: Client, name: str, owner: int) -> None:
    if os.getpid() != owner:  # a child's copy
        return
    with contextlib.suppress(Error):
        try:
            client.matrix(name).delete()
        except FailedPrecondition:  # the client was closed before the graph went
            with connect(client.address, timeout=1.0) as again:
                again.matrix(name).delete()
