"""Files of sparse matrices: what SciPy and NumPy write is read; what sparsectl writes they read."""

import bz2
import gzip
import lzma
import os
import subprocess
import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy.io
import scipy.sparse as sp

import sparsed

ROOT = Path(__file__).resolve().parents[2]
SERVER = Path(os.environ.get("SPARSED_SERVER", ROOT / "build/cuda/server/sparsed"))
SPARSECTL = SERVER.parents[1] / "client/sparsectl"
KINDS = ["csr", "csc", "coo", "bsr", "dia"]


def example(rows=60, cols=48, dtype=np.float64, seed=3):
    rng = np.random.default_rng(seed)
    return sp.random_array((rows, cols), density=0.2, format="csr", rng=rng).astype(dtype)


def same(csr, expected):
    expected = sp.csr_array(expected)
    expected.sum_duplicates()
    assert csr.shape == expected.shape
    np.testing.assert_array_equal(csr.row_offsets, expected.indptr)
    np.testing.assert_array_equal(csr.column_indices, expected.indices)
    np.testing.assert_array_equal(csr.values, expected.data)


@pytest.mark.parametrize("compressed", [True, False])
@pytest.mark.parametrize("kind", [sp.csr_array, sp.csr_matrix])
@pytest.mark.parametrize("format_", KINDS)
def test_every_archive_of_scipy(tmp_path, format_, kind, compressed):
    for dtype in (np.float32, np.float64):
        a = example(dtype=dtype)
        sp.save_npz(tmp_path / "a.npz", kind(a).asformat(format_), compressed=compressed)
        read = sparsed.read(tmp_path / "a.npz")
        assert read.values.dtype == dtype
        same(read, kind(a).asformat(format_).tocsr())


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int64, np.bool_, np.float16])
def test_archives_of_other_types(tmp_path, dtype):
    np.savez(tmp_path / "a.npz", row=[2, 0, 1], col=[1, 3, 0], format=b"coo", shape=(3, 4),
             data=np.ones(3, dtype))  # fmt: skip
    read = sparsed.read(tmp_path / "a.npz")
    assert read.values.dtype == (np.float16 if dtype == np.float16 else np.float32)
    assert read.column_indices.tolist() == [3, 0, 1]


def test_blocks_keep_their_zeros_and_diagonals_do_not(tmp_path):
    blocks = sp.bsr_array(np.kron(np.eye(3), [[1, 0, 2], [0, 3, 0]]), blocksize=(2, 3))
    sp.save_npz(tmp_path / "a.npz", blocks)
    same(sparsed.read(tmp_path / "a.npz"), blocks.tocsr())
    diagonals = sp.dia_array((np.arange(12.0).reshape(3, 4), [-1, 0, 2]), shape=(5, 4))
    sp.save_npz(tmp_path / "b.npz", diagonals)
    same(sparsed.read(tmp_path / "b.npz"), diagonals.tocsr())


def test_matrix_market_of_scipy(tmp_path):
    a = example()
    scipy.io.mmwrite(tmp_path / "a.mtx", a, precision=17)
    same(sparsed.read(tmp_path / "a.mtx", dtype="f64"), a)
    s = (a @ a.T).tocsr()
    s = s + s.T
    scipy.io.mmwrite(tmp_path / "s.mtx", s, precision=17, symmetry="symmetric")
    same(sparsed.read(tmp_path / "s.mtx", dtype="f64"), s)


@pytest.mark.filterwarnings("ignore")
def test_what_numpy_writes(tmp_path):
    a = example(50, 50).tocoo()
    triples = np.column_stack([a.row, a.col, a.data])
    for name, array in {
        "c": triples,
        "fortran": np.asfortranarray(triples),
        "big": triples.astype(">f8"),
    }.items():
        np.save(tmp_path / name, array)
        same(sparsed.read(tmp_path / f"{name}.npy", shape=50), a)
    pattern = sp.csr_array((np.ones(a.nnz), (a.row, a.col)), shape=a.shape)
    np.save(tmp_path / "pairs.npy", np.column_stack([a.row, a.col]))
    same(sparsed.read(tmp_path / "pairs.npy", shape=50, dtype="f64"), pattern)
    np.save(tmp_path / "two.npy", np.stack([a.row, a.col]))
    same(sparsed.read(tmp_path / "two.npy", shape=50, dtype="f64"), pattern)
    np.savetxt(tmp_path / "a.txt", triples, fmt=["%d", "%d", "%.17g"], header="a comment")
    same(sparsed.read(tmp_path / "a.txt", shape=50, dtype="f64"), a)
    np.savetxt(tmp_path / "a.csv", triples, fmt=["%d", "%d", "%.17g"], delimiter=",",
               header="from,to,weight", comments="")  # fmt: skip
    same(sparsed.read(tmp_path / "a.csv", shape=50, dtype="f64"), a)


def test_options_and_what_is_told(tmp_path):
    path = tmp_path / "edges.txt"
    path.write_text("1 2 1999 0.5\n2 3 2000 nan\n1 2 2001 0.5\n")
    with pytest.warns(UserWarning) as told:
        read = sparsed.read(path, one_based=True, weight_column=4, undirected=True)
    assert read.shape == (3, 3)
    np.testing.assert_array_equal(
        read.to_scipy().toarray(), [[0, 1, 0], [1, 0, np.nan], [0, np.nan, 0]]
    )
    notes = " ".join(str(warning.message) for warning in told)
    assert "2 duplicates were summed" in notes and "2 values are NaN" in notes
    with pytest.raises(sparsed.InvalidArgument, match="4 columns: say which has the weights"):
        sparsed.read(path)
    with pytest.raises(sparsed.InvalidArgument, match="none of mtx"):
        sparsed.read(path, format="hdf5")
    path.write_text("3 2\n2\n1 3\n2\n")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert sparsed.read(path).column_indices.tolist() == [1, 0, 2, 1]


def test_compressions(tmp_path):
    text = b"%%MatrixMarket matrix coordinate pattern general\n2 3 2\n2 3\n1 1\n"
    for compress in (gzip.compress, lzma.compress):
        (tmp_path / "m").write_bytes(compress(text))
        assert sparsed.read(tmp_path / "m").column_indices.tolist() == [0, 2]
    (tmp_path / "m").write_bytes(bz2.compress(text))
    with pytest.raises(sparsed.InvalidArgument, match="bunzip2 -c"):
        sparsed.read(tmp_path / "m")


def test_upload_takes_any_of_them(client, name, tmp_path):
    (tmp_path / "a.csv").write_text("0,1\n1,0\n")
    assert client.upload(name, tmp_path / "a.csv", shape=(2, 4)).shape == (2, 4)


def run(server, folder, *words, stdin=None):
    return subprocess.run(
        [SPARSECTL, f"--server={server.address}", *words], cwd=folder, stdin=stdin, check=True,
        capture_output=True, text=True,
    ).stdout  # fmt: skip


def back(path):
    if path.suffix == ".npz":
        return sp.load_npz(path)
    if path.suffix == ".mtx":
        return scipy.io.mmread(path)
    if path.suffix == ".npy":
        entries = np.load(path)
    else:
        csv = path.suffix == ".csv"
        entries = np.loadtxt(path, delimiter="," if csv else None, skiprows=2 if csv else 0)
    return sp.coo_array(
        (entries[:, 2], (entries[:, 0].astype(int), entries[:, 1].astype(int))), shape=(60, 48)
    )


@pytest.mark.parametrize("ending", ["npz", "mtx", "npy", "txt", "tsv", "csv"])
def test_scipy_and_numpy_read_what_sparsectl_writes(server, client, name, tmp_path, ending):
    if not SPARSECTL.exists():
        pytest.skip("sparsectl is not built here")
    a = example()
    client.upload(name, a)
    path = tmp_path / f"b.{ending}"
    run(server, tmp_path, "download", name, f"--out={path}")
    same(sparsed.Csr(a.shape, *_parts(sp.csr_array(back(path)))), a)
    with open(path, "rb") as file:
        told = run(server, tmp_path, "upload", "-", f"--name={name}", "--type=f64", "--replace",
                   "--shape=60x48", stdin=file)  # fmt: skip
    assert f"uploaded {name}: 60 x 48" in told
    same(sparsed.Csr(a.shape, *_parts(client.matrix(name).download())), a)


def _parts(csr):
    csr.sum_duplicates()
    return csr.indptr, csr.indices, csr.data


def test_spgemm_writes_what_upload_and_scipy_read(server, client, name, tmp_path):
    if not SPARSECTL.exists():
        pytest.skip("sparsectl is not built here")
    a = example(40, 40)
    client.upload(name, a)
    run(server, tmp_path, "spgemm", name, name, "--out=square.npz")
    square = sp.load_npz(tmp_path / "square.npz")
    np.testing.assert_allclose(square.toarray(), (a @ a).toarray(), rtol=1e-12)
    run(server, tmp_path, "upload", "square.npz", f"--name={name}", "--type=f64", "--replace")
    np.testing.assert_array_equal(client.matrix(name).download().toarray(), square.toarray())
