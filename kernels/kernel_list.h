// Lists of kernels: what a folder's table (spmm.h, sddmm.h, spgemm.h) is made with.
#pragma once

#include <span>
#include <type_traits>
#include <vector>

namespace sparsed {

/// Kernels, and spans of them, in this order.
template <typename Kernel, typename... Parts>
std::vector<Kernel> KernelList(const Parts&... parts) {
  std::vector<Kernel> list;
  const auto add = [&list](std::span<const Kernel> part) {
    list.insert(list.end(), part.begin(), part.end());
  };
  const auto as_span = []<typename Part>(const Part& part) {
    if constexpr (std::is_same_v<Part, Kernel>) {
      return std::span<const Kernel>(&part, 1);
    } else {
      return std::span<const Kernel>(part);
    }
  };
  (add(as_span(parts)), ...);
  return list;
}

}  // namespace sparsed
