"""SpMM of PETSc, distributed over the ranks of mpirun: petsc_spmm.py FOLDER CUT K TIMES

FOLDER has a matrix as bench_shards reads it; CUT says the first row of each rank but the first,
with commas. Rank 0 prints a JSON object: the seconds of each product, and the sum of the result's
magnitudes. PETSc multiplies in f64 (MPIAIJ with MPIDENSE, the result's matrix reused).
"""

import glob
import json
import sys
import time

# Where Debian's python3-petsc4py-real has it.
sys.path[:0] = glob.glob("/usr/lib/petscdir/petsc*/*/lib/python3/dist-packages")
import numpy  # noqa: E402
import petsc4py  # noqa: E402

petsc4py.init([sys.argv[0]])
from petsc4py import PETSc  # noqa: E402


def main():
    folder, k, times = sys.argv[1], int(sys.argv[3]), int(sys.argv[4])
    comm = PETSc.COMM_WORLD
    offsets = numpy.memmap(f"{folder}/offsets.i64", numpy.int64, "r")
    columns = numpy.memmap(f"{folder}/columns.i32", numpy.int32, "r")
    values = numpy.memmap(f"{folder}/values.f64", numpy.float64, "r")
    rows = len(offsets) - 1
    cut = [0, *(int(row) for row in sys.argv[2].split(",")), rows]
    low, high = cut[comm.rank], cut[comm.rank + 1]
    first, last = offsets[low], offsets[high]
    s = PETSc.Mat().createAIJ(((high - low, rows), (high - low, rows)), comm=comm, csr=(
        (offsets[low:high + 1] - first).astype(numpy.int32), numpy.array(columns[first:last]),
        numpy.array(values[first:last])))
    b = PETSc.Mat().createDense(((high - low, rows), (PETSc.DECIDE, k)), comm=comm)
    b.setUp()
    row, column = numpy.arange(low, high)[:, None], numpy.arange(k)[None, :]
    b.getDenseArray()[:] = ((row * 7 + column * 3) % 11 - 5) / 8
    b.assemble()
    c = s.matMult(b)
    seconds = []
    for _ in range(times):
        comm.barrier()
        begun = time.perf_counter()
        s.matMult(b, c)
        comm.barrier()
        seconds.append(time.perf_counter() - begun)
    sums = PETSc.Vec().createMPI((1, comm.size), comm=comm)
    sums.getArray()[:] = numpy.abs(c.getDenseArray()).sum()
    total = sums.sum()
    if comm.rank == 0:
        print(json.dumps({"seconds": seconds, "sum": total}))


main()
