// What the kernels of attention share: how lanes divide heads and columns among them, exponentials,
// and the rows' nonzeros that a group goes over.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <type_traits>

#include "absl/status/statusor.h"
#include "kernels/attention.h"
#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/row_chunks.cuh"
#include "kernels/formats/csr.h"
#include "kernels/problem.h"
#include "kernels/value_source.h"

namespace sparsed::cuda::attention {

/// Small blocks, since one stays until the longest of its rows is done.
constexpr int kThreads = 64;

/// Powers of two, which the hardware has: scores are multiplied by log2(e) once.
constexpr double kLog2E = 1.4426950408889634;
__device__ inline float Power(float x) {
  float power;  // within 2^-22; what is below 2^-126 is 0
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}
__device__ inline double Power(double x) { return exp2(x); }
__device__ inline float Logarithm(float x) { return log2f(x); }
__device__ inline double Logarithm(double x) { return log2(x); }

/// A row-major operand as a kernel has it.
template <typename T>
struct Rows {
  T* data = nullptr;
  uint32_t stride = 0;  ///< bytes from one row to the next

  template <typename Index>
  __device__ T* At(Index row) const {
    using Byte = std::conditional_t<std::is_const_v<T>, const char, char>;
    return reinterpret_cast<T*>(reinterpret_cast<Byte*>(data) +
                                static_cast<uint64_t>(row) * stride);
  }
};
template <typename T, typename Operand>
Rows<T> RowsOf(const Operand& operand) {
  return {static_cast<T*>(operand.data),
          static_cast<uint32_t>(operand.leading_dimension * static_cast<int64_t>(sizeof(T)))};
}
/// Whether 32 bits hold the bytes of each one's row.
inline bool StridesFit(std::initializer_list<ConstDense> operands) {
  return std::all_of(operands.begin(), operands.end(), [](const ConstDense& operand) {
    return operand.leading_dimension <= std::numeric_limits<uint32_t>::max() / 8;
  });
}
inline ConstDense AsConst(const Dense& dense) {
  return {dense.data, dense.rows, dense.cols, dense.leading_dimension};
}

/// Heads side by side: each takes 2^shift lanes, 4 or more, of a group of kGroup; what a group has
/// no lanes for is in gridDim.y.
struct Heads {
  int heads = 1;
  int shift = 2;

  __host__ __device__ int lanes() const { return 1 << shift; }
  __device__ int Of(int lane, int group) const {
    return static_cast<int>(blockIdx.y) * (group >> shift) + (lane >> shift);
  }
  __device__ int Within(int lane) const { return lane & (lanes() - 1); }
};

/// The row that a part is of, where a head has more columns than a group has room for.
template <typename T, bool kWide>
struct WholeRow {};
template <typename T>
struct WholeRow<T, true> {
  const T* row = nullptr;  ///< none was loaded
};

/// A lane's elements of a head's part of a row, as they are stored. Aligned ones are kPieces times
/// 16 bytes; of the others, neighbouring lanes have neighbouring elements. Of wide heads they are
/// those of a column block of the head's columns, blockIdx.z: sums over columns go over the whole
/// row, sums of rows over the column block.
template <typename T, bool kAligned, int kPieces, bool kWideHeads = false>
struct Part : WholeRow<T, kWideHeads> {
  using Element = T;
  using Sum = SumOf<T>;
  static constexpr bool kWide = kWideHeads;
  static constexpr int kPiece = kAligned ? kWidest<T> : 1;
  static constexpr int kCount = kAligned ? kPieces : 8;
  static constexpr int kWidth = kPiece * kCount;

  T at[kWidth];

  /// Where the lane's pieces are.
  struct Place {
    int first;       // column of the first piece, from the row's beginning
    int step;        // from one piece to the next
    int count;       // pieces
    int begin, end;  // of wide heads: the lane's columns are every step-th from begin on

    /// `width`: columns of a head; `active`: whether the lane has a head.
    __device__ Place(const Heads& heads, int head, int within, int width, bool active)
        : first(head * width + within * kPiece),
          step(kPiece << heads.shift),
          count(0),
          begin(first),
          end(active ? (head + 1) * width : first) {
      const int before = kWide ? static_cast<int>(blockIdx.z) * kCount * step : 0;
      first += before;
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        count += active && within * kPiece + before + i * step < width ? 1 : 0;
      }
      if (count == 0) first = 0;
    }
  };

  /// Of several column blocks one says what all of them know.
  __device__ static bool IsOfFirstSlab() { return !kWide || blockIdx.z == 0; }

  __device__ void Load(const T* row, const Place& place) {
    if constexpr (kWide) this->row = row;
    const T* const from = row + place.first;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if constexpr (kAligned) {
        uint4 loaded = {0, 0, 0, 0};
        // A lane without columns reads the row's first ones, and its sums go nowhere.
        if (kCount == 1 || i < place.count) {
          loaded = __ldg(reinterpret_cast<const uint4*>(from + i * place.step));
        }
        __builtin_memcpy(at + i * kPiece, &loaded, sizeof(loaded));
      } else {
        at[i] = i < place.count ? ReadOnly(from + i * place.step) : T{};
      }
    }
  }
  /// The lane's share of the sum over the head's columns of `term` of the parts' elements.
  template <typename Term, typename... Parts>
  __device__ static Sum SumOver(const Place& place, const Term& term, const Parts&... parts) {
    Sum sum = 0;
    if constexpr (kWide) {
      if (((parts.row == nullptr) || ...)) return 0;
      for (int k = place.begin; k < place.end; k += place.step) {
        term(sum, Widen(ReadOnly(parts.row + k))...);
      }
      return sum;
    } else {
#pragma unroll
      for (int j = 0; j < kWidth; ++j) term(sum, Widen(parts.at[j])...);
      return place.count == 0 ? Sum(0) : sum;
    }
  }
  __device__ Sum Dot(const Part& other, const Place& place) const {
    return SumOver(
        place, [](Sum& sum, Sum a, Sum b) { sum += a * b; }, *this, other);
  }
  /// Of att * LeakyReLU(this + other).
  __device__ Sum Gatv2(const Part& other, const Part& att, Sum slope, const Place& place) const {
    const auto term = [slope](Sum& sum, Sum a, Sum b, Sum of_att) {
      const Sum z = a + b;
      sum += of_att * (z > 0 ? z : slope * z);
    };
    return SumOver(place, term, *this, other, att);
  }
};

/// Blocks that are to run on a multiprocessor at once, that its registers suffice for. `parts`:
/// that a lane keeps besides those of a pass of dot products.
template <typename P>
constexpr int BlocksFor(int parts = 0) {
  return (P::kWidth > 8 || P::kCount > 1 ? 8 : P::kWidth > 4 ? 12 : 14) - 2 * parts;
}

/// A lane's sums of as many columns.
template <typename P>
struct Sums {
  using T = typename P::Element;
  using Sum = typename P::Sum;

  Sum at[P::kWidth] = {};

  __device__ void Scale(Sum factor) {
#pragma unroll
    for (int j = 0; j < P::kWidth; ++j) at[j] *= factor;
  }
  __device__ void Add(Sum factor, const P& part) {
#pragma unroll
    for (int j = 0; j < P::kWidth; ++j) at[j] += factor * Widen(part.at[j]);
  }
  /// Adds factor times the slopes of LeakyReLU(a + b); and to `of_att` (null: nothing) the same
  /// times a + b.
  __device__ void AddSlopes(Sum factor, const P& a, const P& b, Sum slope, Sums* of_att) {
#pragma unroll
    for (int j = 0; j < P::kWidth; ++j) {
      const Sum z = Widen(a.at[j]) + Widen(b.at[j]);
      const Sum share = z > 0 ? factor : factor * slope;
      at[j] += share;
      if (of_att != nullptr) of_att->at[j] += share * z;
    }
  }
  __device__ void Multiply(const P& part) {
#pragma unroll
    for (int j = 0; j < P::kWidth; ++j) at[j] *= Widen(part.at[j]);
  }
  /// Out: T or Sum, aligned like parts.
  template <typename Out>
  __device__ void Store(Out* row, const typename P::Place& place, Sum factor) const {
    Out* const to = row + place.first;
#pragma unroll
    for (int i = 0; i < P::kCount; ++i) {
      if (i >= place.count) break;
      Vector<Out, P::kPiece> out;
#pragma unroll
      for (int j = 0; j < P::kPiece; ++j) {
        out.at[j] = Narrow<Out>(factor * at[i * P::kPiece + j]);
      }
      if constexpr (sizeof(out) % 16 == 0) {
        uint4 words[sizeof(out) / 16];
        __builtin_memcpy(words, &out, sizeof(out));
#pragma unroll
        for (size_t w = 0; w < sizeof(out) / 16; ++w) {
          __stcs(reinterpret_cast<uint4*>(to + i * place.step) + w, words[w]);
        }
      } else {
        for (int j = 0; j < P::kPiece; ++j) to[i * place.step + j] = out.at[j];
      }
    }
  }
};

/// Groups of a warp stay together until the longest of their rows is done: those that wait for it
/// cost nothing that the others would not.
constexpr unsigned kWarp = 0xffffffffu;

/// The lanes of a head in quarters, each of which sees to one of four numbers. All lanes of the
/// warp exchange them at once.
template <int kGroup>
struct Quarters {
  int half;  // of the head's lanes, how many
  int fourth;
  int within;   // which of them this is
  int first;    // the group's lane that is the head's first
  int quarter;  // that this one is in

  __device__ Quarters(const Heads& heads, int lane)
      : half(1 << (heads.shift - 1)),
        fourth(1 << (heads.shift - 2)),
        within(heads.Within(lane)),
        first(lane - within),
        quarter(within >> (heads.shift - 2)) {}

  template <typename Sum>
  __device__ Sum From(Sum number, int lanes) const {
    return __shfl_xor_sync(kWarp, number, lanes, kGroup);
  }
  /// The sum of the head's lanes of number `quarter`: half as many numbers are exchanged in each
  /// of two steps.
  template <typename Sum>
  __device__ Sum SumOf(const Sum (&numbers)[4]) const {
    const bool upper = quarter >= 2, odd = quarter % 2 != 0;
    const Sum one = (upper ? numbers[2] : numbers[0]) + From(upper ? numbers[0] : numbers[2], half);
    const Sum two = (upper ? numbers[3] : numbers[1]) + From(upper ? numbers[1] : numbers[3], half);
    Sum sum = (odd ? two : one) + From(odd ? one : two, fourth);
#pragma unroll
    for (int lanes = 4; lanes > 0; lanes /= 2) {
      if (lanes < fourth) sum += From(sum, lanes);
    }
    return sum;
  }
  /// The greatest of the quarters' numbers, and their sum.
  template <typename Sum>
  __device__ Sum Greatest(Sum number) const {
    number = max(number, From(number, half));
    return max(number, From(number, fourth));
  }
  template <typename Sum>
  __device__ Sum Total(Sum number) const {
    number += From(number, half);
    return number + From(number, fourth);
  }
  /// What quarter i has.
  template <typename Sum>
  __device__ Sum Of(Sum number, int i) const {
    return __shfl_sync(kWarp, number, first + i * fourth, kGroup);
  }
};

/// Plain CSR, whose long rows are cut into chunks: what a group goes over.
struct Nonzeros {
  const int64_t* row_offsets = nullptr;
  const int32_t* columns = nullptr;
  int64_t rows = 0, nnz = 0;
  int64_t chunks = 0;           // 0: rows are not split
  int64_t chunk = 0;            // nonzeros; rows of more than two are split
  int64_t* first_of = nullptr;  // for each chunk: the split row whose first chunk it is, or -1
  ValueSource position;         // in S's CSR

  __device__ bool IsSplit(int64_t length) const { return chunks > 0 && length > 2 * chunk; }
};

/// Chunks, in whole blocks of the narrowest group.
inline int64_t ChunksOf(const Layout& layout) {
  return cuda::ChunksOf(layout, ShortChunkFor(layout.nnz), kThreads / 8);
}
inline Nonzeros NonzerosOf(const Layout& layout) {
  const CsrView s = ViewCsr(layout);
  Nonzeros nonzeros;
  nonzeros.row_offsets = s.row_offsets.data();
  nonzeros.columns = s.column_indices.data();
  nonzeros.rows = layout.rows;
  nonzeros.nnz = layout.nnz;
  nonzeros.chunks = ChunksOf(layout);
  nonzeros.chunk = ShortChunkFor(layout.nnz);
  nonzeros.position = ValueSource(layout);
  return nonzeros;
}

/// Of a group: a row, or a chunk of one.
struct Task {
  int64_t row = -1;  // none: nothing to do
  int64_t begin = 0;
  int count = 0;
  int64_t chunk = -1;  // a whole row

  /// Its own, or one that is there.
  __device__ int64_t existing_row() const { return row < 0 ? 0 : row; }
};
template <int kGroup>
__device__ inline Task TaskOf(const Nonzeros& s, int lane) {
  const int64_t team =
      static_cast<int64_t>(blockIdx.x) * (kThreads / kGroup) + threadIdx.x / kGroup;
  Task task;
  if (team < s.chunks) {
    int64_t first_of, row;
    const Span span = ChunkOf<kGroup>(s, team, lane, &first_of, &row);
    if (lane == 0 && blockIdx.y == 0 && blockIdx.z == 0) s.first_of[team] = first_of;
    if (span.begin == span.end) return task;
    task = {row, span.begin, static_cast<int>(span.end - span.begin), team};
  } else if (team - s.chunks < s.rows) {
    const int64_t row = team - s.chunks;
    const int64_t begin = __ldg(s.row_offsets + row), end = __ldg(s.row_offsets + row + 1);
    if (s.IsSplit(end - begin)) return task;
    task = {row, begin, static_cast<int>(end - begin), -1};
  }
  return task;
}

/// Numbers of a task's nonzeros, four of which are looked at a time: a group's lanes read one each,
/// as many ahead, and pass them around. `read(i)` is that of the task's nonzero i; there is 0
/// behind the last.
template <int kGroup, typename Read>
class Ahead {
 public:
  __device__ Ahead(const Read& read, int count, int lane)
      : read_(read), count_(count), lane_(lane), held_(At(lane)), next_(At(kGroup + lane)) {}

  /// To the four from nonzero `done` on: after those before.
  __device__ void MoveTo(int done) {
    if (done > 0 && done % kGroup == 0) {
      held_ = next_;
      next_ = At(done + kGroup + lane_);
    }
    base_ = done % kGroup;
  }
  /// Of the i-th of the four. All lanes of the warp call it.
  __device__ uint32_t Of(int i) const { return __shfl_sync(kWarp, held_, base_ + i, kGroup); }

 private:
  __device__ uint32_t At(int i) const { return i < count_ ? read_(i) : 0; }

  const Read read_;
  const int count_, lane_;
  uint32_t held_, next_;
  int base_ = 0;
};

/// Calls `add(done, there)` for every four nonzeros from `done` on, of which `there` says whether
/// all groups of the warp have all; those that have none left are called, too.
template <typename Add>
__device__ inline void ForEachFour(const Task& task, const Add& add) {
  const int most = __reduce_max_sync(kWarp, task.count);
  const int least = __reduce_min_sync(kWarp, task.count);
  int done = 0;
#pragma unroll 1
  for (; done + 4 <= least; done += 4) add(done, std::true_type());
#pragma unroll 1
  for (; done < most; done += 4) add(done, std::false_type());
}

/// The columns of a task's nonzeros.
template <int kGroup>
__device__ inline auto ColumnsOf(const Nonzeros& s, const Task& task, int lane) {
  const int32_t* const columns = s.columns + task.begin;
  const auto read = [columns](int i) { return static_cast<uint32_t>(__ldg(columns + i)); };
  return Ahead<kGroup, decltype(read)>(read, task.count, lane);
}

/// How the kernel is cut out for a problem.
struct Shape {
  bool aligned = false;
  int pieces = 1;
  int group = 32;
  int64_t slabs_of_head = 1;  ///< more than one: its columns do not fit a group
  Heads heads;

  int64_t slabs() const {
    const int at_once = group / heads.lanes();
    return (heads.heads + at_once - 1) / at_once;
  }
  /// Groups of a grid.
  dim3 Grid(const Nonzeros& s) const {
    const int64_t teams = kThreads / group;
    return {static_cast<unsigned>((s.chunks + s.rows + teams - 1) / teams),
            static_cast<unsigned>(slabs()), static_cast<unsigned>(slabs_of_head)};
  }
};

/// `widest`: columns of a head, the most of any operand. `aligned`: all rows and heads begin at 16
/// bytes. UNIMPLEMENTED of more than a grid has room for, and of heads of more than 16,384 columns:
/// each column block of a head reads all of it, so that what they take grows with the square of
/// that.
template <typename T>
absl::StatusOr<Shape> ShapeOf(int64_t heads, int64_t widest, bool aligned) {
  constexpr int64_t kMostHeads = 65535, kMostSlabs = 64;
  Shape shape;
  shape.aligned = aligned && sizeof(T) <= 4;
  int64_t lane = shape.aligned ? kWidest<T> : 8;
  if (shape.aligned && widest > 32 * lane) shape.pieces = 2;
  if (widest > 32 * lane * shape.pieces) {
    shape.aligned = false;
    shape.pieces = 1;
    lane = 8;
    shape.slabs_of_head = (widest + 32 * lane - 1) / (32 * lane);
  }
  if (heads > kMostHeads || shape.slabs_of_head > kMostSlabs || widest > kMostSpmmWidth / heads) {
    return absl::UnimplementedError("the heads are too wide for the GPU's kernel");
  }
  const int64_t wanted =
      std::min<int64_t>(32, (widest + lane * shape.pieces - 1) / (lane * shape.pieces));
  shape.heads.heads = static_cast<int>(heads);
  while (shape.heads.lanes() < wanted) ++shape.heads.shift;
  const int64_t all = heads * shape.heads.lanes();
  shape.group = shape.pieces > 1 || all > 16 ? 32
                : all > 8 && shape.aligned   ? 16
                : all > 8                    ? 32
                                             : 8;
  return shape;
}

/// Calls `visit` with a Part and a group, as integral constants.
template <typename T, typename Visit>
void WithShape(const Shape& shape, Visit visit) {
  using Eight = std::integral_constant<int, 8>;
  using Sixteen = std::integral_constant<int, 16>;
  using Warp = std::integral_constant<int, 32>;
  if constexpr (sizeof(T) <= 4) {
    if (shape.aligned) {
      if (shape.pieces == 2) return visit(Part<T, true, 2>(), Warp());
      if (shape.group == 8) return visit(Part<T, true, 1>(), Eight());
      if (shape.group == 16) return visit(Part<T, true, 1>(), Sixteen());
      return visit(Part<T, true, 1>(), Warp());
    }
  }
  if (shape.slabs_of_head > 1) return visit(Part<T, false, 1, true>(), Warp());
  if (shape.group == 8) return visit(Part<T, false, 1>(), Eight());
  return visit(Part<T, false, 1>(), Warp());
}

/// Padded, so that rows of sums begin at 64 bytes.
inline int64_t PaddedWidth(int64_t columns) { return (columns + 15) / 16 * 16; }

/// Whether an operand's heads begin at 16 bytes.
template <typename T>
bool HeadsAreWide(const ConstDense& operand, int64_t heads) {
  return operand.data == nullptr ||
         (reinterpret_cast<uintptr_t>(operand.data) % 16 == 0 &&
          operand.leading_dimension % kWidest<T> == 0 && operand.cols / heads % kWidest<T> == 0);
}

/// Operands that the forward and the gradients read alike.
template <typename T>
struct Operands {
  using Sum = SumOf<T>;
  Heads heads;
  Sum scale = 1;  ///< of scores, times log2(e)
  Sum slope = 0;
  Rows<const T> left, right, values, bias;  ///< no bias: null
  const T* att = nullptr;
  bool values_are_right = false;  ///< kGatv2: rows of both are the same
  int bias_step = 0;              ///< 0: one for all heads
  int width = 0;                  ///< columns of a head of `left` and `right`; of sums 1
  int values_width = 0;           ///< of `values`

  Operands(const EdgeScores& scores, const ConstDense& of, const Heads& heads)
      : heads(heads),
        slope(static_cast<Sum>(scores.slope)),
        left(RowsOf<const T>(scores.left)),
        right(RowsOf<const T>(scores.right)),
        values(RowsOf<const T>(of)),
        bias(RowsOf<const T>(scores.bias)),
        att(static_cast<const T*>(scores.att.data)),
        values_are_right(of.data == scores.right.data && of.cols == scores.right.cols &&
                         of.leading_dimension == scores.right.leading_dimension),
        bias_step(scores.bias.cols > 1 ? 1 : 0),
        width(static_cast<int>(scores.left.cols / scores.heads)),
        values_width(static_cast<int>(of.cols / scores.heads)) {
    const bool dot = scores.kind == EdgeScores::Kind::kDot;
    scale = static_cast<Sum>((dot ? scores.scale : 1) * kLog2E);
  }

  /// A lane's share of what is scaled to a score: of a dot product, or of GATv2's sum with
  /// `att_of`, its part of att.
  template <bool kGatv2, typename P>
  __device__ Sum Share(const P& a, const P& b, const P& att_of,
                       const typename P::Place& place) const {
    if constexpr (kGatv2) return a.Gatv2(b, att_of, slope, place);
    return a.Dot(b, place);
  }
  /// Rows of `right` and of `values`, of those of four columns that are there. Where the two are
  /// the same, copies, made when all loads are on their way: a copy waits for what it is of.
  template <bool kGatv2, typename Columns, typename There, typename Places, typename P>
  __device__ void LoadFour(const Columns& columns, const There& there, const Places& lane,
                           P (&of_right)[4], P (&of_values)[4]) const {
    const bool copies = kGatv2 && values_are_right;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t column = columns.Of(i);
      if (!there(i)) continue;
      of_right[i].Load(right.At(column), lane.at);
      if (!copies) of_values[i].Load(values.At(column), lane.values_at);
    }
    if constexpr (kGatv2) {
      if (!copies) return;
#pragma unroll
      for (int i = 0; i < 4; ++i) of_values[i] = of_right[i];
    }
  }

  /// Of a nonzero of S's CSR, as it is added to scores. There is one.
  __device__ Sum Bias(int64_t nonzero, int head) const {
    return static_cast<Sum>(kLog2E) * Widen(ReadOnly(bias.At(nonzero) + head * bias_step));
  }
};

/// The kernel's shape for these operands, and those that only one of forward and gradients has.
/// UNIMPLEMENTED of what is too wide.
template <typename T>
absl::StatusOr<Shape> ShapeOf(const EdgeScores& scores, const ConstDense& values,
                              std::initializer_list<ConstDense> of_scores,
                              std::initializer_list<ConstDense> of_values,
                              std::initializer_list<ConstDense> others) {
  if (!StridesFit({scores.left, scores.right, scores.bias, values}) || !StridesFit(of_scores) ||
      !StridesFit(of_values) || !StridesFit(others)) {
    return absl::UnimplementedError("the operands are too wide for the GPU's kernel");
  }
  const auto wide = [&](const ConstDense& operand) {
    return HeadsAreWide<T>(operand, scores.heads);
  };
  const bool sums = scores.kind == EdgeScores::Kind::kSum;
  const bool aligned = wide(values) && std::ranges::all_of(of_values, wide) &&
                       (sums || (wide(scores.left) && wide(scores.right) && wide(scores.att) &&
                                 std::ranges::all_of(of_scores, wide)));
  return ShapeOf<T>(scores.heads, std::max(scores.left.cols, values.cols) / scores.heads, aligned);
}

/// A group's lane at a row.
template <typename P, int kGroup>
struct Lane {
  const Quarters<kGroup> quarters;
  const bool active;  ///< it has a head
  const int head;     ///< its own, or one that is there
  const typename P::Place at, values_at;

  __device__ Lane(const Operands<typename P::Element>& p, int lane)
      : Lane(p, lane, p.heads.Of(lane, kGroup)) {}

 private:
  __device__ Lane(const Operands<typename P::Element>& p, int lane, int own)
      : quarters(p.heads, lane),
        active(own < p.heads.heads),
        head(active ? own : 0),
        at(p.heads, own, quarters.within, p.width, active),
        values_at(p.heads, own, quarters.within, p.values_width, active) {}
};

}  // namespace sparsed::cuda::attention
