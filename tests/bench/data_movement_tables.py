#!/usr/bin/env python3
"""Prints what sparsed_reorder --json measured as the tables of docs/data-movement.md.

    data_movement_tables.py FILE.jsonl...      one object a line
"""
import json
import os
import sys


def name_of(report):
    return os.path.basename(report["file"]).removesuffix(".gz").removesuffix(".mtx")


def ratio(value, least):
    return f"{value / least:.2f}" if least else ""


def print_movements(reports, operation):
    print("| matrix | nonzeros | least MiB | bound | parts | parts after | moved | moved after "
          "| FLOP/byte | after | at most | partition s |")
    print("| --- |" + " ---: |" * 11)
    for report in reports:
        before, after = report["before"][operation], report["after"][operation]
        least, partition = before["footprint_bytes"], report["partition"]
        bound = f"{partition['upper_bound_ratio']:.2f}" + ("*" if partition["estimate"] else "")
        print(f"| {name_of(report)} | {report['nnz']:,} | {least / 2**20:.1f} | {bound} "
              f"| {ratio(before['partition_bytes'], least)} | {ratio(after['partition_bytes'], least)} "
              f"| {ratio(before['moved_bytes'], least)} | {ratio(after['moved_bytes'], least)} "
              f"| {before['intensity']:.3f} | {after['intensity']:.3f} "
              f"| {before['greatest_intensity']:.3f} | {partition['seconds']:.1f} |")


def print_times(reports):
    print("| matrix | before ms | after ms | | put back ms | with it |")
    print("| --- | ---: | ---: | ---: | ---: | ---: |")
    for report in reports:
        times = report["times"]
        before, after, back = (1e3 * times[f"{when}_seconds"]
                               for when in ("before", "after", "put_back"))
        print(f"| {name_of(report)} | {before:.2f} | {after:.2f} | {before / after:.2f}x "
              f"| {back:.2f} | {before / (after + back):.2f}x |")


for path in sys.argv[1:]:
    with open(path) as file:
        reports = [json.loads(line) for line in file]
    operation = reports[0]["operation"]
    cache = reports[0]["cache_bytes"] / 1024
    print(f"\n{operation}, cache of {cache:.0f} KiB\n")
    print_movements(reports, operation)
    print(f"\n{operation} on the CPU\n")
    print_times(reports)
