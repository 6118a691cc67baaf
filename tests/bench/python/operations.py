#!/usr/bin/env python3
"""SpMM, its transpose and SDDMM with sparsed and with PyTorch's sparse tensors, side by side in one run.

    tests/bench/python/operations.py MATRIX.mtx.gz... [--device cuda] [--k 128] [--out operations.jsonl]

Operands and results are tensors on the device, f32, and both are called from Python, as a training
does. PyTorch's fastest known form: CSR tensors with 32-bit indices, for the transpose a second CSR
tensor of it, for SDDMM `sampled_addmm`; and, as it comes, `S.t() @ x`. Ways take turns in blocks of
ten calls between two events, until the time is over. For each matrix and operation a line of JSON:
median milliseconds of a call of each way, the speed-up over PyTorch's fastest, the largest
difference of the results over the largest result, and the plan.

Without --server one is started on this machine, SPARSED_SERVER or `sparsed`.
"""

import argparse
import json
import statistics
import time
import traceback
from pathlib import Path

import numpy as np
import scipy.io
import scipy.sparse as sp
import torch
from epochs import plans_of, server_for, synchronize

import sparsed
import sparsed.torch as st

CALLS = 10


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("matrices", nargs="+")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--k", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=1, help="of each matrix and operation")
    parser.add_argument("--server", help="its address; one is started otherwise")
    parser.add_argument("--out", help="a file for the lines, too")
    return parser.parse_args()


def csr_tensor(matrix, device):
    return torch.sparse_csr_tensor(
        torch.from_numpy(matrix.indptr.astype(np.int32)),
        torch.from_numpy(matrix.indices.astype(np.int32)),
        torch.from_numpy(matrix.data),
        size=matrix.shape,
    ).to(device)


def operations(g, matrix, k, device):
    """What each operation is with sparsed, and with PyTorch."""
    rows, cols = matrix.shape
    x = torch.randn(cols, k, device=device)
    y = torch.randn(rows, k, device=device)
    s = csr_tensor(matrix, device)
    transposed = csr_tensor(sp.csr_matrix(matrix.T), device)
    right = x.t()
    return {
        "spmm": {"sparsed": lambda: st.spmm(g, x), "torch": lambda: s @ x},
        "spmm^T": {
            "sparsed": lambda: st.spmm(g, y, transpose=True),
            "torch": lambda: transposed @ y,
            "torch, S.t()": lambda: s.t() @ y,
        },
        "sddmm": {
            "sparsed": lambda: st.sddmm(g, y, x, unscaled=True),
            "torch": lambda: torch.sparse.sampled_addmm(s, y, right, beta=0),
        },
    }


def block(call, device):
    """Milliseconds of each of some calls."""
    if device.type == "cuda":
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(CALLS):
            call()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / CALLS
    begin = time.perf_counter()
    for _ in range(CALLS):
        call()
    return (time.perf_counter() - begin) * 1e3 / CALLS


def values_of(result):
    return result.values() if result.layout is torch.sparse_csr else result


def measure(ways, device, seconds):
    """Medians in milliseconds of each way that runs, and why others do not."""
    times, errors = {}, {}
    for way, call in ways.items():
        try:
            call()
            synchronize(device)
            times[way] = []
        except Exception as error:
            traceback.print_exc()
            errors[way] = f"{type(error).__name__}: {str(error)[:200]}"
    order = list(times)
    for way in order:
        block(ways[way], device)
    end = time.monotonic() + seconds
    while time.monotonic() < end or len(times[order[0]]) < 5:
        for way in order:
            times[way].append(block(ways[way], device))
        order.reverse()
    return {way: statistics.median(of_way) for way, of_way in times.items()}, errors


def main():
    arguments = parse()
    device = torch.device(arguments.device)
    server = server_for(arguments)
    out = open(arguments.out, "a") if arguments.out else None
    torch.manual_seed(0)
    k = arguments.k
    try:
        with sparsed.connect(arguments.server or server.address) as client:
            for path in arguments.matrices:
                matrix = sp.csr_matrix(scipy.io.mmread(path)).astype(np.float32)
                matrix.sort_indices()
                matrix.data = np.random.default_rng(1).uniform(0.5, 1, matrix.nnz).astype(np.float32)
                prepare = [f"spmm:{k}", f"spmm^T:{k}", f"sddmm:{k}"]
                with client.temporary(matrix, prepare=prepare, wait=True) as g:
                    for name, ways in operations(g, matrix, k, device).items():
                        ms, errors = measure(ways, device, arguments.seconds)
                        line = {
                            "matrix": Path(path).name.split(".")[0], "rows": matrix.shape[0],
                            "nnz": int(matrix.nnz), "operation": name, "k": k,
                            "device": torch.cuda.get_device_name(device)
                            if device.type == "cuda" else "cpu",
                            "torch": torch.__version__,
                            "ms": {way: round(of_way, 5) for way, of_way in ms.items()},
                        }  # fmt: skip
                        if errors:
                            line["errors"] = errors
                        theirs = [of_way for way, of_way in ms.items() if way != "sparsed"]
                        if "sparsed" in ms and theirs:
                            line["speedup"] = round(min(theirs) / ms["sparsed"], 4)
                        if "torch" in ms and "sparsed" in ms:
                            expected = values_of(ways["torch"]())
                            error = (values_of(ways["sparsed"]()) - expected).abs().max()
                            line["error"] = float(error / expected.abs().max())
                        line["transport"] = sparsed.last_transport()
                        line["plans"] = plans_of(g)
                        text = json.dumps(line)
                        print(text, flush=True)
                        if out is not None:
                            out.write(text + "\n")
                            out.flush()
                torch.cuda.empty_cache()
    finally:
        if server is not None:
            server.close()


if __name__ == "__main__":
    main()
