// The device's calls and their errors, on a real one.
#include "kernels/cuda/device.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/gpu/gpu.h"

namespace sparsed::test {
namespace {

#define SKIP_WITHOUT_GPU() \
  if (Gpu::Get() == nullptr) GTEST_SKIP() << Gpu::WhyNot()

/// There and back.
void ExpectThatItWorks(Gpu& gpu) {
  const std::vector<int> sent = {3, 1, 4, 1, 5};
  std::vector<int> back(sent.size());
  const Buffer there = gpu.Upload(sent.data(), sent.size() * sizeof(int));
  gpu.Download(back.data(), there.data(), sent.size() * sizeof(int));
  EXPECT_EQ(back, sent);
}

TEST(GpuDevice, AnErrorOfOneCallIsNotALostDevice) {
  SKIP_WITHOUT_GPU();
  Gpu& gpu = *Gpu::Get();
  // Never recorded: an error that nothing in our list of errors names.
  const cuda::Event first = cuda::Event::Create().value(), second = cuda::Event::Create().value();
  const absl::Status status = second.MillisecondsSince(first).status();
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  ExpectThatItWorks(gpu);
  // More than any card has.
  const absl::Status memory = gpu.memory().Allocate(size_t{1} << 50).status();
  EXPECT_TRUE(absl::IsResourceExhausted(memory)) << memory;
  ExpectThatItWorks(gpu);
}

TEST(GpuDevice, CopiesRowsThatLieFarApart) {
  SKIP_WITHOUT_GPU();
  Gpu& gpu = *Gpu::Get();
  constexpr size_t kFar = size_t{1} << 31;  // one more than a copy's pitch may be
  constexpr size_t kRow = 12;
  absl::StatusOr<Buffer> there = gpu.memory().Allocate(kFar + kRow);
  if (absl::IsResourceExhausted(there.status())) GTEST_SKIP() << there.status();
  Must(there.status());
  const char sent[] = "first row...second row..";
  Must(gpu.stream().CopyRows(there->mutable_data(), kFar, sent, kRow, kRow, 2));
  char back[2 * kRow] = {};
  Must(gpu.stream().CopyRows(back, kRow, there->data(), kFar, kRow, 2));
  Must(gpu.stream().Synchronize());
  EXPECT_EQ(std::memcmp(back, sent, sizeof back), 0);
}

template <typename T>
void ExpectScattered(Gpu& gpu) {
  const std::vector<int64_t> order = {4, 0, 3, 1, 2};
  const std::vector<T> from = {T(1.F), T(2.F), T(3.F), T(4.F), T(5.F)};
  const size_t bytes = from.size() * sizeof(T);
  const Buffer order_there = gpu.Upload(order.data(), order.size() * sizeof(int64_t));
  const Buffer from_there = gpu.Upload(from.data(), bytes);
  Buffer to_there = gpu.memory().Allocate(bytes).value();
  Must(cuda::ScatterElements(gpu.stream(),
                             {reinterpret_cast<const int64_t*>(order_there.data()), order.size()},
                             ElementTypeOf<T>(), from_there.data(), to_there.mutable_data()));
  std::vector<T> to(from.size());
  gpu.Download(to.data(), to_there.data(), bytes);
  for (size_t i = 0; i < order.size(); ++i) {
    EXPECT_EQ(static_cast<float>(to[order[i]]), static_cast<float>(from[i])) << i;
  }
}

TEST(GpuDevice, PutsElementsInOrder) {
  SKIP_WITHOUT_GPU();
  ExpectScattered<float>(*Gpu::Get());
  ExpectScattered<double>(*Gpu::Get());
  ExpectScattered<Float16>(*Gpu::Get());
  ExpectScattered<BFloat16>(*Gpu::Get());
  Must(cuda::ScatterElements(Gpu::Get()->stream(), {}, ElementType::kF32, nullptr, nullptr));
}

}  // namespace
}  // namespace sparsed::test
