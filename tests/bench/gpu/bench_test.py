#!/usr/bin/env python3
"""sparsed_bench on small matrices on the CPU, and the page that is made of its lines.

usage: bench_test.py SPARSED_BENCH H100_TABLES
"""

import gzip
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

BENCH, TABLES = sys.argv[1:3]
MATRIX = """%%MatrixMarket matrix coordinate real symmetric
4 4 5
1 1 1
2 1 2
3 3 3
4 2 4
4 3 5
"""


def run(*arguments):
    return subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)


def lines(result):
    return [json.loads(line) for line in result.stdout.splitlines()]


class BenchTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.file = self.folder / "small.mtx"
        self.file.write_text(MATRIX)

    def measure(self, *arguments):
        return run(BENCH, "--device=cpu", "--rounds=1", *map(str, arguments))

    def test_measures_every_operation_width_type_and_layout(self):
        result = self.measure("spmm", "spmm^T", "sddmm", "--matrix", self.file, "--k", "1,8", "--type", "f32,f64",
                              "--pipeline", "aspt(panel=2,min_dense=2)", "--copy-rate", "10")
        self.assertEqual(result.returncode, 0, result.stderr)
        measured = lines(result)
        self.assertEqual({(m["op"], m["transposed"]) for m in measured},
                         {("spmm", False), ("spmm", True), ("sddmm", False)})
        self.assertEqual({(m["k"], m["type"]) for m in measured},
                         {(1, "f32"), (1, "f64"), (8, "f32"), (8, "f64")})
        self.assertEqual({m["layout"] for m in measured}, {"csr", "transpose", "aspt(panel=2,min_dense=2)"})
        for m in measured:
            self.assertEqual((m["matrix"], m["rows"], m["cols"], m["nnz"]), ("small", 4, 4, 8))
            self.assertLess(m["error"], 1e-6 if m["type"] == "f32" else 1e-14)
            self.assertGreater(m["ms"], 0)
            self.assertGreater(m["preparation_ms"], 0)
            self.assertAlmostEqual(m["gflops"], 16 * m["k"] / m["ms"] / 1e6)
            self.assertAlmostEqual(m["floor_share"], m["floor_ms"] / m["ms"])
        # B and C of 4 x 8 in f32, 8 nonzeros with an index and a value, 4 row offsets, at 10 GB/s.
        spmm = next(m for m in measured if m["op"] == "spmm" and m["type"] == "f32" and m["k"] == 8)
        self.assertAlmostEqual(spmm["floor_ms"], (2 * 4 * 8 * 4 + 8 * 8 + 4 * 8) / 10e6)

    def test_measures_iterations_of_both_products(self):
        result = self.measure("iteration", "--matrix", self.file, "--k", "1,8", "--type", "f32,f64", "--copy-rate=10",
                              "--pipeline", "breadth_first", "--recipe", "transpose > breadth_first")
        self.assertEqual(result.returncode, 0, result.stderr)
        measured = lines(result)
        self.assertEqual([(m["type"], m["k"], m["way"]) for m in measured],
                         [(t, k, way) for t in ("f32", "f64") for k in (1, 8)
                          for way in ("csr", "row_segments", "two_layouts")])
        for m in measured:
            self.assertNotIn("wrong", m)
            self.assertGreater(m["ms"], 0)
            one = m["plain_layout"] == m["transposed_layout"]
            self.assertEqual(one, m["way"] != "two_layouts")
            self.assertEqual(m["build_ms"] > 0, m["way"] != "csr")
        # Row offsets, columns and values of the transpose, besides those of CSR.
        self.assertGreater(measured[2]["layout_bytes"], measured[0]["layout_bytes"] * 2 - 1)

    def test_measures_what_is_packed(self):
        pack = self.folder / "pack.xz"
        result = run(BENCH, "pack", str(pack), str(self.file))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("1 of 1 matrices, 8 nonzeros", result.stderr)
        result = self.measure("spmm", "--pack", pack, "--k", "4")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([(m["matrix"], m["nnz"]) for m in lines(result)], [("small", 8)])
        result = run(BENCH, "pack", str(pack), str(self.file), "--least-nonzeros=9")
        self.assertIn("0 of 1 matrices", result.stderr)

    def test_says_what_a_deadline_leaves_out(self):
        result = self.measure("spmm", "--matrix", self.file, "--deadline=0", "--copy-rate=10")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertIn("left out: small: no time", result.stderr)

    def test_says_what_is_wrong(self):
        for arguments, sentence in (
                (["spmm"], "no matrix to measure"),
                (["spmm", "--matrix", "/does/not/exist"], "cannot read /does/not/exist"),
                (["spmm", "--pack", self.file], "is no xz file"),
                (["spmm", "--generated", "rmat99"], "no generated matrix rmat99"),
                (["spmm", "--matrix", self.file, "--recipe", "nonsense"], "unknown step 'nonsense'"),
                (["spmm", "--matrix", self.file, "--type", "f8"], "f8"),
                (["spgemm", "--matrix", self.file], "bench_spgemm measures spgemm on the CPU"),
                (["spgemm", "spmm", "--matrix", self.file], "spgemm, build and iteration are measured alone"),
                (["iteration", "spmm", "--matrix", self.file], "are measured alone"),
                (["iteration", "--matrix", self.file, "--type", "f16"], "in f32 and f64"),
                (["build", "--matrix", self.file, "--pipeline", "dcsr"], "build needs a GPU and --pipeline"),
                ([], "subcommand")):
            with self.subTest(arguments=arguments):
                result = self.measure(*arguments)
                self.assertNotEqual(result.returncode, 0)
                self.assertEqual(result.stdout, "")
                self.assertIn(sentence, result.stderr)

    def page(self, measured):
        results, out = self.folder / "results.jsonl.gz", self.folder / "page.md"
        with gzip.open(results, "wt") as file:
            file.write("".join(json.dumps(m) + "\n" for m in measured))
        result = run(TABLES, str(results), str(out))
        self.assertEqual(result.returncode, 0, result.stderr)
        return out.read_text()

    def test_makes_a_page(self):
        def line(matrix, k, kernel, ms, layout="csr", **more):
            return {"matrix": matrix, "op": "spmm", "transposed": False, "type": "f32", "k": k, "layout": layout,
                    "kernel": kernel, "ms": ms, "floor_share": 0.25, "device": "a GPU", "nnz": 10,
                    "preparation_ms": 1, **more}

        page = self.page([
            line("one", 32, "cuda.cusparse.alg1", 4), line("one", 32, "cuda.cusparse.alg2", 2),
            line("one", 32, "cuda.csr.merge", 1), line("one", 32, "cuda.csr.fast", 0.1, wrong=True),
            line("two", 32, "cuda.cusparse.alg1", 1), line("two", 32, "cuda.panels", 2, layout="row_panels(rows=8)"),
            line("two", 32, "cuda.cusparse.alg1", 0.5, layout="transpose"),
            line("two", 32, "cuda.cusparse.alg3", 4, layout="transpose", transposed=True),
            line("two", 32, "cuda.csr.merge", 2, layout="transpose", transposed=True),
            line("one", 64, "cuda.cusparse.alg1", 2), line("one", 64, "cuda.csr.merge", 0.5)])
        # Own: 2 / 1 and 1 / 2. With cuSPARSE, also on a layout of ours: 2 / 1 and 1 / 0.5.
        self.assertIn("| spmm | f32 | 32 | 2 | 2.00 | 2.00 (one) | 0 | 1.00 | 0.50 (two) | 1 | 25 % |", page)
        # Transposed, without cuSPARSE on plain CSR: over that on the transpose's.
        self.assertIn("| spmm^T | f32 | 32 | 1 | 2.00 | 2.00 (two) | 0 | 2.00 | 2.00 (two) | 0 | 25 % |", page)
        self.assertIn("| one | 2.00 | 1.00 `csr.merge` | 2.00 | 25 % |", page)
        self.assertIn("`panels` on `row_panels`", page)
        self.assertIn("| one | spmm | f32 | 32 | 1.00 | 64 | 0.500 |", page)
        self.assertIn("a GPU", page)

    def test_tells_what_a_service_chose(self):
        def line(kernel, ms, plan):
            return {"matrix": "one", "op": "sddmm", "transposed": False, "type": "f64", "k": 8, "layout": "csr",
                    "kernel": kernel, "ms": ms, "floor_share": 0.5 / ms, "device": "a GPU", "nnz": 10, "plan": plan}

        page = self.page([line("cuda.cusparse.sddmm", 4, False), line("cuda.csr.slow", 2, True),
                          line("cuda.csr.fast", 1, False)])
        self.assertIn("| sddmm | f64 | 8 | 1 | 2.00 | 2.00 (one) | 0 | 4.00 | 4.00 (one) | 0 | 25 % |", page)

    def test_makes_a_page_of_what_the_bench_prints(self):
        result = self.measure("spmm", "spmm^T", "sddmm", "--matrix", self.file, "--copy-rate=10")
        self.assertIn("small", self.page(lines(result)))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
