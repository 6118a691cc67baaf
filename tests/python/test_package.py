"""The package as such: what it imports, its types, its documents."""

import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, files, version
from pathlib import Path

import numpy as np
import pytest

import sparsed

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(sparsed.__file__).parent


def run(program, *arguments, **environment):
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=120,
        env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_but_numpy_is_imported(server):
    """Not even by products with NumPy's arrays."""
    program = """
import sys
import numpy as np
before = set(sys.modules)
import sparsed, sparsed.aio
c = sparsed.connect(sys.argv[1])
g = c.upload("imports", (np.array([0, 1]), np.array([1, 0]), np.ones(2, np.float32)), shape=2,
             replace=True)
g.spmm(np.ones((2, 3), np.float32))
g.sddmm(np.ones((2, 3), np.float32), np.ones((2, 3), np.float32))
g.T @ np.ones(2, np.float32)
g._repr_html_()
top = {name.split(".")[0] for name in set(sys.modules) - before}
print(sorted(top & {"torch", "scipy", "cupy", "torch_geometric", "ml_dtypes", "jax"}))
"""
    assert run(program, server.address).strip() == "[]"


def test_results_without_scipy(server):
    program = """
import sys
sys.modules["scipy"] = sys.modules["scipy.sparse"] = None
import numpy as np, sparsed
c = sparsed.connect(sys.argv[1])
g = c.upload("no-scipy", np.array([[0, 2], [3, 0]], np.float32), replace=True)
t = g.spgemm(g)
assert isinstance(t, sparsed.Csr), type(t)
print(t.shape, t.row_offsets.tolist(), t.column_indices.tolist(), t.values.tolist(), t.nnz)
c.upload("no-scipy-2", t, replace=True)
"""
    assert run(program, server.address).strip() == "(2, 2) [0, 1, 2] [0, 1] [6.0, 6.0] 2"


def test_loaded_late(server):
    """When PyTorch has been at work already."""
    pytest.importorskip("torch")
    program = """
import sys, torch
list(torch.utils.data.DataLoader(list(range(8)), num_workers=0))
torch.nn.Linear(300, 300)(torch.ones(300, 300)).sum().backward()
import sparsed
c = sparsed.connect(sys.argv[1])
g = c.upload("late", torch.eye(3), replace=True)
print(g.spmm(torch.ones(3, 1)).sum().item(), sparsed.last_transport())
"""
    assert run(program, server.address).strip() == "3.0 attached"


def test_no_library():
    program = """
import sparsed
try:
    sparsed.connect("127.0.0.1:1")
except ImportError as error:
    print(error)
"""
    assert "SPARSED_LIBRARY" in run(program, SPARSED_LIBRARY="/nothing/lib.so")


def test_what_is_public():
    for name in sparsed.__all__:
        assert getattr(sparsed, name).__doc__, name
    assert {"connect", "Client", "Matrix", "last_transport"} <= set(sparsed.__all__)
    assert (FOLDER / "py.typed").exists()
    # Every public method says what it does.
    for kind in (sparsed.Client, sparsed.Matrix, sparsed.DenseMatrix, sparsed.Transposed):
        for name, member in vars(kind).items():
            if not name.startswith("_") and (callable(member) or isinstance(member, property)):
                assert member.__doc__, f"{kind.__name__}.{name}"


def test_types(tmp_path, monkeypatch):
    """mypy's strict mode has nothing to say, about the package and about its use."""
    api = pytest.importorskip("mypy.api")
    folder = ROOT / "client/python"
    sources = [str(path) for path in sorted((folder / "sparsed").glob("*.py"))]
    config = ["--config-file", str(folder / "pyproject.toml"), "--cache-dir", str(tmp_path)]
    out, errors, _ = api.run([*config, *sources])
    wrong = [line for line in out.splitlines() if ": error:" in line and "/torch/" not in line]
    assert not wrong, out + errors
    # A program that uses the package is checked against its types.
    program = tmp_path / "program.py"
    program.write_text(
        "import sparsed\n"
        "g = sparsed.connect('x').upload('g', None)\n"
        "n: int = g.nnz\n"
        "m: str = g.nnz\n"
        "g.spmm(None, transposed=True)\n"
    )
    monkeypatch.setenv("MYPYPATH", str(FOLDER.parent) if FOLDER.parent == folder else "")
    out, errors, _ = api.run([*config, "--python-executable", sys.executable, str(program)])
    assert "program.py:4: error: Incompatible types in assignment" in out, out + errors
    assert 'program.py:5: error: Unexpected keyword argument "transposed"' in out
    assert "program.py:3" not in out


def test_lines_fit():
    """100 columns, in the package, its examples and its tests."""
    long = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in ("client/python", "tests/python")
        for path in sorted((ROOT / folder).rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if len(line) > 100
    ]
    assert not long


def test_the_reference_is_current():
    generator = ROOT / "client/python/reference"
    done = subprocess.run(
        [sys.executable, generator, "--check"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "page, needs",
    [
        ("docs/python.md", "scipy"),
        ("docs/python-torch.md", "torch"),
        ("docs/python-migration.md", "torch"),
    ],
)
def test_examples_of_the_documentation(own_server, page, needs):
    """Its blocks of Python are one program."""
    pytest.importorskip(needs)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert len(blocks) > 2
    program = "\n".join(blocks).replace("unix:/tmp/sparsed.sock", own_server().address)
    # Inductor would call a C++ compiler for a minute; the program that it gets is the same.
    program = program.replace("fullgraph=True)", 'fullgraph=True, backend="aot_eager")')
    assert "attached" in run(program)


def test_example_of_the_readme(server):
    sparse = pytest.importorskip("scipy.sparse")
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    program = block.replace('"127.0.0.1:7470"', repr(server.address)).replace("cora", "readme")
    a = sparse.random_array((20, 10), density=0.2, dtype=np.float32)
    given = {"A": a, "x": np.ones((10, 3), np.float32)}
    exec(program, given)
    assert np.allclose(given["y"], a @ given["x"], atol=1e-5)


@pytest.mark.parametrize("page", ["graph-network", "recommender", "solver"])
def test_tutorials(page):
    """Commands and blocks of Python, one after the other on one server, as a reader has them."""
    pytest.importorskip("torch")
    server = os.environ.get("SPARSED_SERVER", str(ROOT / "build/cuda/server/sparsed"))
    sparsectl = Path(server).parents[1] / "client/sparsectl"
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    tutorial = ROOT / f"docs/tutorial-{page}.md"
    done = subprocess.run(
        [sys.executable, ROOT / "tests/e2e/docs_test.py", server, sparsectl, "--python", tutorial],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PATH": path},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    blocks = re.findall(r"^```(?:sh|python)$", tutorial.read_text(), re.MULTILINE)
    assert f": {len(blocks)} blocks ran, 0 did not" in done.stdout


def test_installed_files():
    """Of the wheel, where the package was installed by one."""
    try:
        installed = {str(path) for path in files("sparsed")}
    except PackageNotFoundError:
        pytest.skip("the package is not installed, it is imported from its source")
    assert version("sparsed") == sparsed.__version__
    names = {os.path.basename(path) for path in installed}
    assert {
        "libsparsed_client.so.1", "libsparsed_attached.so.1", "libsparsed_kernels.so", "LICENSE",
        "py.typed",
    } <= names  # fmt: skip
    assert any("/notices/" in path for path in installed)
    tags = [
        line.split(": ")[1]
        for path in files("sparsed") if path.name == "WHEEL"
        for line in path.read_text().splitlines() if line.startswith("Tag: ")
    ]  # fmt: skip
    assert all(re.fullmatch(r"py3-none-manylinux_2_\d+_x86_64", tag) for tag in tags), tags
