// The features that go by columns: how their nonzeros are spread, how many of them neighbouring
// rows share, and what the pattern times itself takes.
#pragma once

#include "absl/status/status.h"
#include "kernels/features/features.h"
#include "kernels/formats/csr.h"
#include "kernels/pipeline.h"

namespace sparsed {

/// 0 of nothing.
inline double Ratio(double part, double whole) { return whole == 0 ? 0 : part / whole; }

/// Puts col_nonzeros_*, heavy_columns, panel_fill_*, like_rows* and square_* of a valid
/// pattern into `features`, its rows in csr.row_order if there is one; the same bits for any number
/// of threads. Two passes over the nonzeros; 8 N bytes of scratch a thread and 8 M, fewer threads
/// than allowed if that would outgrow the pattern. Errors: RESOURCE_EXHAUSTED, CANCELLED.
absl::Status PutColumnFeatures(const CsrView& csr, const BuildContext& context, Features& features);

}  // namespace sparsed
