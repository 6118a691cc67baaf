// Sizes of the rows of a product, found in pieces while somebody waits for the worker slot.
#include "engine/execution/row_blocks.h"

#include <gtest/gtest.h>

#include <atomic>
#include <vector>

#include "engine/execution/cpu_backend.h"
#include "tests/unit/engine/modules.h"

namespace sparsed::engine {
namespace {

struct Found {
  std::vector<int64_t> sizes;
  int64_t products = 0;
  int pieces = 0;
};

Found FindSizes(Modules& modules, CpuBackend& cpu, bool count_first, bool is_wanted) {
  const auto matrix = modules.catalog.Find("t", "s");
  EXPECT_TRUE(matrix.ok()) << matrix.status();
  const auto csr = (*matrix)->pattern()->Csr();
  EXPECT_TRUE(csr.ok()) << csr.status();
  const SpgemmFactor factor{*csr, cpu.ValuesFor(**matrix, **csr, HeapMemory(), 1).value()};
  const Token token([] {});
  const std::atomic<bool> wanted = is_wanted;
  const auto blocks =
      RowBlocks::Of(BoundSpgemm(cpu, SpgemmKernels().front(), {.operation = Operation::kSpgemm},
                                PlaceFactors(cpu, factor, factor, nullptr, HeapMemory()).value()),
                    std::nullopt,
                    {.host = modules.budget,
                     .owner = modules.budget.OwnerOf("t"),
                     .token = token,
                     .wanted = &wanted,
                     .count_first = count_first,
                     .most_entries = int64_t{1} << 20});
  WorkerSlot slot = std::move(cpu.NewWorkerSlots().front());
  EXPECT_TRUE(blocks->Begin(slot).ok());
  Found found;
  absl::StatusOr<bool> all = false;
  for (; all.ok() && !*all && found.pieces < 1000; ++found.pieces) all = blocks->FindSizes(slot);
  EXPECT_TRUE(all.ok() && *all) << all.status();
  EXPECT_EQ(blocks->sizes().exact, count_first);
  const auto sizes = blocks->sizes().rows.As<int64_t>();
  found.sizes = {sizes.begin(), sizes.end()};
  found.products = blocks->sizes().products;
  return found;
}

TEST(RowBlocks, SizesAreTheSameHoweverOftenTheSlotWasWanted) {
  Modules modules;
  CpuBackend cpu(modules.budget, 1, 1);
  const test::Pattern pattern = test::Uniform(20'000, 20'000, 16, 4);
  ASSERT_TRUE(SendMatrix(modules.catalog, "s", pattern).ok());
  for (const bool count_first : {false, true}) {
    SCOPED_TRACE(count_first);
    const Found alone = FindSizes(modules, cpu, count_first, /*is_wanted=*/false);
    EXPECT_EQ(alone.pieces, 1);
    EXPECT_EQ(alone.products, 20'000 * 16 * 16);
    const Found wanted = FindSizes(modules, cpu, count_first, /*is_wanted=*/true);
    EXPECT_EQ(wanted.sizes, alone.sizes);
    EXPECT_EQ(wanted.products, alone.products);
    // The analysis has two at the least, and what is counted blocks of 2^18 by their bounds.
    EXPECT_GE(wanted.pieces, count_first ? 20 : 2);
  }
}

}  // namespace
}  // namespace sparsed::engine
