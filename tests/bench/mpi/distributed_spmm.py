#!/usr/bin/env python3
"""SpMM of a matrix in two shards, on two servers with a processor each, beside PETSc's and Tpetra's
with two ranks.

  tests/bench/mpi/distributed_spmm.py SPARSED BENCH_SHARDS MATRIX... [--k=32,128] [--rounds=5] [--times=10] [--metis]

MATRIX: Matrix Market files, plain or .gz, of square matrices; values are drawn anew. All have the
same rows, and f64 (PETSc and Tpetra as Debian builds them have no other); sparsed in f32, too. Each
round takes them in turn. Prints a JSON object for each matrix and width: the seconds of all products.
Takes Debian's python3-petsc4py-real, python3-scipy, libtrilinos-tpetra-dev, libtrilinos-kokkos-dev,
libtrilinos-teuchos-dev, libtrilinos-kokkos-kernels-dev, openmpi-bin and etcd-server, and two processors.
Run with /usr/bin/python3, whose modules these are.
"""

import argparse
import contextlib
import ctypes
import glob
import gzip
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile

import numpy
import scipy.io
import scipy.sparse

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "e2e"))
from cluster_test import Etcd, wait_for  # noqa: E402
from running import ended, reserved_port, serving  # noqa: E402

TRILINOS = ("tpetra", "kokkoscore", "kokkoskernels", "kokkoscontainers", "teuchoscore",
            "teuchoscomm", "teuchosparameterlist", "teuchosnumerics", "teuchoskokkoscomm",
            "teuchoskokkoscompat")


def in_two(matrix):
    """Rows and columns in the order of METIS's two parts, and where the second begins."""
    graph = (matrix + matrix.T).tocoo()
    apart = graph.row != graph.col
    graph = scipy.sparse.csr_matrix(
        (graph.data[apart], (graph.row[apart], graph.col[apart])), graph.shape)
    rows, one = ctypes.c_int32(matrix.shape[0]), ctypes.c_int32(1)
    offsets, columns = graph.indptr.astype(numpy.int32), graph.indices.astype(numpy.int32)
    weights = numpy.maximum(numpy.diff(matrix.indptr), 1).astype(numpy.int32)
    parts, two = numpy.zeros(matrix.shape[0], numpy.int32), ctypes.c_int32(2)
    options = (ctypes.c_int32 * 40)()
    metis = ctypes.CDLL("libmetis.so.5")
    metis.METIS_SetDefaultOptions(options)
    pointer = [array.ctypes.data_as(ctypes.c_void_p) for array in (offsets, columns, weights, parts)]
    done = metis.METIS_PartGraphKway(
        ctypes.byref(rows), ctypes.byref(one), pointer[0], pointer[1], pointer[2], None, None,
        ctypes.byref(two), None, None, options, ctypes.byref(ctypes.c_int32()), pointer[3])
    assert done == 1, f"METIS says {done}"
    order = numpy.argsort(parts, kind="stable")
    return matrix[order][:, order].tocsr(), int((parts == 0).sum())


def prepare(path, folder, metis):
    """Its arrays, and where the second rank's rows begin: where half of the nonzeros are before, or
    METIS's second part."""
    with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
        matrix = scipy.io.mmread(file).tocsr()
    matrix.sum_duplicates()
    matrix.data = numpy.ones(matrix.nnz)
    cut = int(numpy.searchsorted(matrix.indptr, matrix.nnz / 2))
    if metis:
        matrix, cut = in_two(matrix)
    matrix.sort_indices()
    folder.mkdir()
    matrix.indptr.astype(numpy.int64).tofile(folder / "offsets.i64")
    matrix.indices.astype(numpy.int32).tofile(folder / "columns.i32")
    numpy.random.default_rng(1).standard_normal(matrix.nnz).tofile(folder / "values.f64")
    # Rows of B that the ranks have to get from each other.
    named = [len(numpy.unique(part[(part < cut) if rank else (part >= cut)]))
             for rank, part in enumerate((matrix.indices[:matrix.indptr[cut]],
                                          matrix.indices[matrix.indptr[cut]:]))]
    return {"rows": matrix.shape[0], "nnz": matrix.nnz, "cut": cut, "rows_exchanged": sum(named)}


def run(*command):
    environment = dict(os.environ, OMP_NUM_THREADS="1", OMPI_ALLOW_RUN_AS_ROOT="1",
                       OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True,
                          check=False, env=environment)
    if done.returncode != 0:
        raise SystemExit(f"{command}: {done.stdout}{done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])


def ranks(*command):
    return run("mpirun", "-n", 2, "--bind-to", "core", *command)


@contextlib.contextmanager
def nodes(sparsed, folder, etcd):
    """Two servers, a processor each."""
    with contextlib.ExitStack() as stack:
        addresses = []
        for processor in range(2):
            address = f"127.0.0.1:{reserved_port()}"
            log = folder / f"node-{processor}.log"
            with open(log, "wb") as out:
                process = subprocess.Popen(
                    ["taskset", "-c", str(processor), sparsed, f"--listen={address}",
                     f"--etcd=127.0.0.1:{etcd.port}", f"--advertise={address}",
                     f"--node=node-{processor}", "--devices=cpu", "--threads=1", "--in-memory",
                     "--metrics-listen=off", "--log-format=json", "--local-listen=off"],
                    stdout=out, stderr=out)
            stack.enter_context(ended(process))
            serving(process, log, 0, 120)
            addresses.append(address)
        yield addresses


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sparsed")
    parser.add_argument("bench_shards")
    parser.add_argument("matrices", nargs="+", type=pathlib.Path)
    parser.add_argument("--k", default="32,128")
    parser.add_argument("--metis", action="store_true",
                        help="rows and columns in the order of METIS's two parts, for all of them")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--times", type=int, default=10)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        libraries = [found for name in TRILINOS
                     for found in glob.glob(f"/usr/lib/*/libtrilinos_{name}.so")]
        tpetra = folder / "tpetra_spmm"
        subprocess.run(["mpicxx", "-O3", "-march=native", "-fopenmp", "-std=c++14", "-w",
                        "-I/usr/include/trilinos", HERE / "tpetra_spmm.cc", "-o", tpetra,
                        *libraries], check=True)
        etcd = Etcd(folder)
        etcd.start()
        try:
            with nodes(arguments.sparsed, folder, etcd) as addresses:
                for path in arguments.matrices:
                    measure(arguments, path, folder, tpetra, addresses[0])
        finally:
            etcd.kill()
    return 0


def measure(arguments, path, folder, tpetra, address):
    name = path.name.split(".")[0]
    csr = folder / name
    sizes = prepare(path, csr, arguments.metis)
    cut = sizes["cut"]
    for k in (int(text) for text in arguments.k.split(",")):
        ours = [arguments.bench_shards, f"--server={address}", f"--csr={csr}", f"--k={k}",
                f"--times={arguments.times}", f"--cut={cut}"]
        rivals = {
            "sparsed": lambda: run(*ours),
            "sparsed f32": lambda: run(*ours, "--f32"),
            "petsc": lambda: ranks(sys.executable, HERE / "petsc_spmm.py", csr, cut, k,
                                   arguments.times),
            "tpetra": lambda: ranks(tpetra, csr, cut, k, arguments.times)}
        seconds = {rival: [] for rival in rivals}
        for _ in range(arguments.rounds):
            sums = {}
            for rival, product in rivals.items():
                done = product()
                seconds[rival] += done["seconds"]
                sums[rival] = done["sum"]
            for rival, total in sums.items():
                bound = 1e-4 if "f32" in rival else 1e-9
                assert abs(total - sums["petsc"]) <= bound * sums["petsc"], (name, k, sums)
        medians = {rival: statistics.median(of) for rival, of in seconds.items()}
        print(json.dumps({"matrix": name, "order": "METIS" if arguments.metis else "as it is",
                          **sizes, "k": k,
                          "median_ms": {rival: round(1e3 * of, 4) for rival, of in medians.items()},
                          "petsc_over_sparsed": medians["petsc"] / medians["sparsed"],
                          "tpetra_over_sparsed": medians["tpetra"] / medians["sparsed"],
                          "seconds": {rival: [float(f"{one:.6g}") for one in of]
                                      for rival, of in seconds.items()}}), flush=True)


if __name__ == "__main__":
    sys.exit(main())
