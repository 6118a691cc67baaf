#include <fmt/format.h>

#include <algorithm>

#include "tools/corpus/meshes.h"
#include "tools/corpus/systems.h"
#include "tools/corpus/variants.h"

namespace sparsed::corpus {
namespace {

int64_t AtLeastOne(int64_t count) { return std::max<int64_t>(count, 1); }

Variant BandVariant(int64_t half_bandwidth) {
  const auto size = [=](int64_t target) {
    const int64_t width = 2 * half_bandwidth + 1, rows = AtLeastOne(target / width);
    return Sized{rows, rows, rows * std::min(width, rows),
                 fmt::format("rows={} half_bandwidth={}", rows, half_bandwidth),
                 [=](uint64_t) { return Band(rows, half_bandwidth); }};
  };
  return {"banded", fmt::format("full{}", half_bandwidth), size};
}

Variant ThinBandVariant(int64_t half_bandwidth, int kept) {
  const auto size = [=](int64_t target) {
    const int64_t row_nnz = 2 * half_bandwidth * kept / 1000 + 1;
    const int64_t rows = target / row_nnz;
    return Sized{rows, rows, target,
                 fmt::format("rows={} half_bandwidth={} kept={}", rows, half_bandwidth, kept),
                 [=](uint64_t seed) { return ThinBand(rows, half_bandwidth, kept, seed); }};
  };
  return {"banded", fmt::format("thin{}", half_bandwidth), size};
}

Variant DiagonalsVariant(int64_t count, int64_t reach) {
  const auto size = [=](int64_t target) {
    const int64_t rows = target / count;
    const int64_t near = std::min(reach, rows / 4);
    return Sized{rows, rows, target,
                 fmt::format("rows={} diagonals={} reach={}", rows, count, near),
                 [=](uint64_t seed) { return Diagonals(rows, count, near, seed); }};
  };
  return {"banded", fmt::format("diagonals{}", count), size};
}

Variant PowerGridVariant(int chords, int64_t unknowns) {
  const auto size = [=](int64_t target) {
    const int64_t bus_nnz = 3000 + 2 * chords;  // of a thousand buses
    const int64_t buses = target * 1000 / (bus_nnz * unknowns * unknowns);
    return Sized{buses * unknowns, buses * unknowns, target,
                 fmt::format("buses={} chords={} unknowns={}", buses, chords, unknowns),
                 [=](uint64_t seed) {
                   const Pattern grid = PowerGrid(buses, chords, seed);
                   return unknowns == 1 ? grid : WithUnknowns(grid, unknowns);
                 }};
  };
  return {"power_grid", fmt::format("c{}u{}", chords, unknowns), size};
}

Variant CircuitVariant(std::string name, int64_t degree, int64_t rails, int on_rails) {
  const auto size = [=](int64_t target) {
    const int64_t node_nnz = 1000 * degree + 2 * rails * on_rails;  // of a thousand nodes
    const int64_t nodes = target * 1000 / node_nnz;
    return Sized{
        nodes, nodes, target,
        fmt::format("nodes={} degree={} rails={} on_rails={}", nodes, degree, rails, on_rails),
        [=](uint64_t seed) { return Circuit(nodes, degree, rails, on_rails, seed); }};
  };
  return {"circuit", std::move(name), size};
}

std::string TextOf(const ProgramShape& s) {
  return fmt::format("blocks={} block={}x{} column_nnz={}", s.blocks, s.block_rows, s.block_cols,
                     s.column_nnz);
}

Variant AngularVariant(std::string name, ProgramShape shape, int64_t linking, int linked) {
  const auto size = [=](int64_t target) {
    ProgramShape all = shape;
    const int64_t block_nnz = shape.block_cols * (1000 * shape.column_nnz + linked) / 1000;
    all.blocks = AtLeastOne(target / block_nnz);
    return Sized{all.blocks * all.block_rows + linking, all.blocks * all.block_cols,
                 all.blocks * block_nnz,
                 fmt::format("{} linking={} linked={}", TextOf(all), linking, linked),
                 [=](uint64_t seed) { return BlockAngular(all, linking, linked, seed); }};
  };
  return {"linear_program", std::move(name), size};
}

Variant StaircaseVariant(std::string name, ProgramShape shape) {
  const auto size = [=](int64_t target) {
    ProgramShape all = shape;
    const int64_t block_nnz = 2 * shape.block_cols * shape.column_nnz;
    all.blocks = AtLeastOne(target / block_nnz);
    return Sized{(all.blocks + 1) * all.block_rows, all.blocks * all.block_cols,
                 all.blocks * block_nnz, TextOf(all),
                 [=](uint64_t seed) { return Staircase(all, seed); }};
  };
  return {"linear_program", std::move(name), size};
}

/// A constraint for every `share` unknowns.
Variant KktVariant(std::string name, int64_t share, int64_t row_nnz, bool regular) {
  const auto size = [=](int64_t target) {
    // A row of H has 5.8 nonzeros.
    const int64_t constraint_nnz = 58 * share / 10 + 2 * row_nnz + (regular ? 1 : 0);
    const int64_t constraints = target / constraint_nnz, unknowns = share * constraints;
    return Sized{unknowns + constraints, unknowns + constraints, target,
                 fmt::format("unknowns={} constraints={} row_nnz={} regular={}", unknowns,
                             constraints, row_nnz, regular),
                 [=](uint64_t seed) { return Kkt(unknowns, constraints, row_nnz, regular, seed); }};
  };
  return {"quadratic_program", std::move(name), size};
}

Variant TridiagonalVariant(std::string name, int64_t block, int filled, bool periodic) {
  const auto size = [=](int64_t target) {
    const int64_t step_nnz = std::max(3 * block * block * filled / 1000, block);
    const StepShape shape{AtLeastOne(target / step_nnz), block, filled, periodic};
    return Sized{shape.steps * block, shape.steps * block, shape.steps * step_nnz,
                 fmt::format("steps={} block={} filled={} periodic={}", shape.steps, block, filled,
                             periodic),
                 [=](uint64_t seed) { return BlockTridiagonal(shape, seed); }};
  };
  return {"time_steps", std::move(name), size};
}

Variant ArrowVariant(std::string name, int64_t block, int filled, int64_t border) {
  const auto size = [=](int64_t target) {
    const int64_t step_nnz = block * (block * filled / 1000 + 2 * border);
    const StepShape shape{AtLeastOne(target / step_nnz), block, filled, false};
    const int64_t rows = shape.steps * block + border;
    return Sized{
        rows, rows, shape.steps * step_nnz,
        fmt::format("steps={} block={} filled={} border={}", shape.steps, block, filled, border),
        [=](uint64_t seed) { return Arrow(shape, border, seed); }};
  };
  return {"time_steps", std::move(name), size};
}

}  // namespace

std::vector<Variant> SystemVariants() {
  return {BandVariant(2),
          BandVariant(8),
          BandVariant(32),
          ThinBandVariant(64, 100),
          ThinBandVariant(500, 20),
          DiagonalsVariant(7, 5000),
          DiagonalsVariant(25, 200),
          PowerGridVariant(300, 1),
          PowerGridVariant(300, 2),
          PowerGridVariant(700, 2),
          CircuitVariant("d5", 5, 0, 0),
          CircuitVariant("d4rails2", 4, 2, 200),
          CircuitVariant("d8rails16", 8, 16, 20),
          CircuitVariant("d3rail", 3, 1, 500),
          AngularVariant("angular20x30", {1, 20, 30, 3}, 20, 300),
          AngularVariant("angular100x250", {1, 100, 250, 5}, 100, 800),
          AngularVariant("angular5x200", {1, 5, 200, 2}, 3, 1000),
          AngularVariant("angular60x60", {1, 60, 60, 10}, 1, 500),
          StaircaseVariant("staircase10x25", {1, 10, 25, 3}),
          StaircaseVariant("staircase100x150", {1, 100, 150, 4}),
          KktVariant("n2r3", 2, 3, true),
          KktVariant("n4r8", 4, 8, false),
          KktVariant("n10r40", 10, 40, false),
          TridiagonalVariant("tridiagonal4", 4, 1000, false),
          TridiagonalVariant("tridiagonal12", 12, 1000, false),
          TridiagonalVariant("tridiagonal32thin", 32, 400, false),
          TridiagonalVariant("tridiagonal6periodic", 6, 1000, true),
          ArrowVariant("arrow8", 8, 1000, 4),
          ArrowVariant("arrow40thin", 40, 300, 16)};
}

}  // namespace sparsed::corpus
