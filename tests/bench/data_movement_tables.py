"""The tables of docs/data-movement.md: what sparsed_reorder --json measured, and what a GPU's profiler counted.

tests/bench/pages.py writes them into the page.
"""

import csv
import pathlib

from measurements import read_lines

FOLDER = pathlib.Path(__file__).resolve().parents[2] / "docs/results/data-movement"
COUNTERS = FOLDER / "h100-counters.csv"


def name_of(report):
    return pathlib.PurePath(report["file"]).name.removesuffix(".gz").removesuffix(".mtx")


def reports(operation):
    """Those of `spgemm`, `spgemm-whole` or `spmm`, by matrix."""
    return {name_of(report): report for report in read_lines(FOLDER / f"{operation}.jsonl")}


def counted():
    """[bytes read, bytes written] by all kernels of a product, by (matrix, product)."""
    found = {}
    with open(COUNTERS, encoding="utf-8") as file:
        for row in csv.DictReader(file):
            both = found.setdefault((row["matrix"], row["product"]), [0, 0])
            both[0] += int(row["bytes_read"])
            both[1] += int(row["bytes_written"])
    return found


def ratio(value, least):
    return f"{value / least:.2f}" if least else ""


def share(partition):
    """Of the products that the partition is of, in per cent."""
    percent = 100 * partition["products"] / partition["all_products"]
    return f"{percent:.0f} %" if percent >= 10 else f"{percent:.1f} %"


def bound(partition):
    """Algorithm 3's; parts that do not fit the cache bound nothing."""
    if not partition["fits"]:
        return "none"
    return f"{partition['upper_bound_ratio']:.2f}" + ("*" if partition["estimate"] else "")


def movements(name):
    operation = name.partition("-")[0]
    lines = ["| matrix | nonzeros | least MiB | bound | of the products | parts | parts after | moved | moved after "
             "| FLOP/byte | after | at most | partition s |",
             "| --- |" + " ---: |" * 12]
    for matrix, report in reports(name).items():
        before, after = report["before"][operation], report["after"][operation]
        least, partition = before["footprint_bytes"], report["partition"]
        lines.append(f"| {matrix} | {report['nnz']:,} | {least / 2**20:.1f} | {bound(partition)} | {share(partition)} "
                     f"| {ratio(before['partition_bytes'], least)} | {ratio(after['partition_bytes'], least)} "
                     f"| {ratio(before['moved_bytes'], least)} | {ratio(after['moved_bytes'], least)} "
                     f"| {before['intensity']:.3f} | {after['intensity']:.3f} "
                     f"| {before['greatest_intensity']:.3f} | {partition['seconds']:.1f} |")
    return lines


def times(operation):
    lines = ["| matrix | before ms | after ms | | put back ms | with it |", "| --- | ---: | ---: | ---: | ---: | ---: |"]
    for name, report in reports(operation).items():
        before, after, back = (1e3 * report["times"][f"{when}_seconds"] for when in ("before", "after", "put_back"))
        lines.append(f"| {name} | {before:.2f} | {after:.2f} | {before / after:.2f}x "
                     f"| {back:.2f} | {before / (after + back):.2f}x |")
    return lines


class Counted:
    """What a product of a matrix must move, moves by the model, and was seen to move on a GPU; bytes."""

    def __init__(self, line, operation, both):
        stored = operation["stored"]
        self.matrix = line["name"]
        self.estimate = stored["estimate"]
        self.least, self.modelled = stored["footprint_bytes"], stored["moved_bytes"]
        if operation["operation"] == "spgemm":
            self.product, self.result = "S * S", 8 * stored["result_nnz"] + 8 * (line["rows"] + 1)
        else:
            k = operation["k"]
            self.product, self.result = f"SpMM K={k}" if k > 1 else "SpMV", 4 * k * line["rows"]
        self.read, self.written = both[self.matrix, self.product]

    @property
    def with_result(self):
        """Had all of the result been written: some of it is still in the cache at the end."""
        return self.read + max(self.written, self.result)


def counted_products():
    both = counted()
    return [Counted(line, operation, both) for line in read_lines(FOLDER / "explain.jsonl") for operation in line["operations"]]


def modelled_and_counted():
    lines = ["| matrix | product | least | modelled | counted | of it written | the result | reads, counted / modelled |",
             "| --- | --- |" + " ---: |" * 6]
    for p in counted_products():
        star = "*" if p.estimate else ""
        mib = [f"{b / 2**20:.1f}" for b in (p.least, p.modelled, p.read + p.written, p.written, p.result)]
        reads = "" if p.product == "S * S" else f"{p.read / (p.modelled - p.result):.2f}"
        lines.append(f"| {p.matrix} | {p.product} | {mib[0]}{star} | {mib[1]}{star} | {mib[2]} | {mib[3]} | {mib[4]}{star} | {reads} |")
    counted_over_least = [(p.read + p.written) / p.least for p in counted_products() if p.product == "S * S"]
    with_result = [p.with_result / p.least for p in counted_products() if p.product == "S * S"]
    return lines + [
        "", f"S * S moved {min(counted_over_least):.2f} to {max(counted_over_least):.2f} times the least, and would have moved "
        f"{min(with_result):.2f} to {max(with_result):.2f} times as much, had all of the result been written: mostly since each of its "
        "kernels began with empty caches, and read the operands anew."]
