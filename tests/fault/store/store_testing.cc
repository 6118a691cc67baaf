#include "tests/fault/store/store_testing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include <functional>
#include <random>
#include <utility>

namespace sparsed::engine {
namespace {

uint32_t SeedOf(const std::string& text) {
  return static_cast<uint32_t>(XXH3_64bits(text.data(), text.size()));
}

/// Appends one line a record.
class Dumper {
 public:
  explicit Dumper(Store& store) : store_(store) {}

  void Line(const std::string& line) { text_ += line + "\n"; }
  void Line(const StoredArray& stored) {
    const absl::StatusOr<Array> array = store_.Read(stored, HeapMemory());
    status_.Update(array.status());
    if (!array.ok()) return;
    Line(fmt::format("  {}: {} {} of {}, {:016x}", Describe(stored), array->length,
                     Name(array->type), array->name,
                     XXH3_64bits(array->buffer.data(), array->bytes())));
  }
  void Line(const Features& features) {
    std::string line = "  features";
    for (const FeatureField& field : kFeatureFields) {
      line += fmt::format(" {}={}", field.name, features.*field.value);
    }
    Line(fmt::format(
        "{} {} {:016x}", line, fmt::join(features.distance_histogram, " "),
        XXH3_64bits(features.density_map.packed().data(), features.density_map.packed().size())));
  }
  absl::StatusOr<std::string> Result() {
    if (!status_.ok()) return status_;
    return text_;
  }

 private:
  Store& store_;
  std::string text_;
  absl::Status status_;
};

std::string TextOf(const MeasurementRecord& m) {
  return fmt::format("measurement {} '{}' {} {} {} K={} {} {} {} {} {} {} '{}' {} {}",
                     m.pattern_hash, m.signature, m.pipeline, m.kernel, m.device, m.k, m.median_ms,
                     m.runs, m.measured_unix_ns, m.baseline_ms, m.roofline_ms, m.preparation_ms,
                     m.model, m.compulsory_bytes, m.censored);
}

}  // namespace

Array RandomArray(const std::string& name, ElementType type, int64_t length, uint32_t seed) {
  Array array = *AllocateArray(HeapMemory(), name, type, length);
  std::mt19937 random(seed);
  for (size_t i = 0; i < array.bytes(); ++i) {
    array.buffer.mutable_data()[i] = static_cast<std::byte>(random());
  }
  return array;
}

NewMatrix RandomMatrix(const std::string& name, const std::string& pattern_hash, uint32_t seed) {
  NewMatrix m;
  m.tenant = "tenant";
  m.name = name;
  m.pattern_hash = pattern_hash;
  const uint32_t pattern_seed = SeedOf(pattern_hash);
  m.rows = 50 + pattern_seed % 50;
  m.cols = 70;
  m.nnz = 200 + pattern_seed % 100;
  m.row_offsets = RandomArray("row_offsets", ElementType::kI64, m.rows + 1, pattern_seed);
  m.column_indices = RandomArray("column_indices", ElementType::kI32, m.nnz, pattern_seed + 1);
  m.values = RandomArray("values", ElementType::kF32, m.nnz, seed);
  m.version = 1 + seed % 7;
  m.created_unix_ns = int64_t{1700000000000000000} + seed;
  return m;
}

Layout RandomLayout(const std::string& pipeline, uint32_t seed) {
  Layout layout;
  layout.kind = "aspt";
  layout.pipeline = pipeline;
  layout.parameters = {{"panel", 64}, {"min_dense", -2}};
  layout.rows = 50;
  layout.cols = 70;
  layout.nnz = 200;
  layout.transposed = seed % 2 == 0;
  layout.value_slots = 256;
  layout.arrays = {RandomArray("panel_offsets", ElementType::kI64, 9, seed),
                   RandomArray("dense_columns", ElementType::kI32, 0, seed),
                   RandomArray("value_source", ElementType::kI32, 256, seed + 1)};
  return layout;
}

NewBuffer RandomBuffer(const std::string& name, uint32_t seed) {
  return {"tenant", name,        10,
          32,       40,          3,
          "job/7",  1000 * seed, RandomArray("dense", ElementType::kF64, 9 * 40 + 32, seed),
          "rows",   {0, 4, 10}};
}

Features RandomFeatures(uint32_t seed) {
  Features features;
  std::mt19937 random(seed);
  for (const FeatureField& field : kFeatureFields)
    features.*field.value = 0.1 * static_cast<double>(random());
  for (int64_t& count : features.distance_histogram) count = static_cast<int64_t>(random()) << 20;
  std::vector<int32_t> tiles(DensityMap::kTiles);
  for (int32_t& count : tiles) count = static_cast<int32_t>(random() >> 1);
  features.density_map = *DensityMap::Pack(tiles, HeapMemory());
  return features;
}

absl::StatusOr<std::vector<PastPattern>> PastPatterns(Store& store) {
  std::vector<PastPattern> all;
  while (true) {
    auto next = store.ReadNextPast(all.empty() ? "" : all.back().hash, HeapMemory());
    if (!next.ok()) return next.status();
    if (!*next) return all;
    all.push_back(**std::move(next));
  }
}

absl::StatusOr<std::string> Dump(Store& store) {
  const absl::StatusOr<StoreContents> contents = store.Load();
  if (!contents.ok()) return contents.status();
  Dumper dumper(store);
  for (const PatternRecord& p : contents->patterns) {
    dumper.Line(fmt::format("pattern {} {}x{} nnz {} '{}' '{}' {}", p.hash, p.rows, p.cols, p.nnz,
                            p.preparation.state, p.preparation.detail, p.preparation.seconds));
    dumper.Line(p.row_offsets);
    dumper.Line(p.column_indices);
    const auto features = store.ReadFeatures(p.hash, HeapMemory());
    if (!features.ok()) return features.status();
    if (features->has_value()) dumper.Line(**features);
  }
  for (const MatrixRecord& m : contents->matrices) {
    dumper.Line(fmt::format("matrix {}/{} {} {} version {} created {} lives {}", m.tenant, m.name,
                            m.pattern_hash, Name(m.type), m.version, m.created_unix_ns,
                            m.time_to_live_ns));
    dumper.Line(m.values);
    if (m.value_order) dumper.Line(*m.value_order);
  }
  for (const ShareRecord& s : contents->shares) {
    dumper.Line(fmt::format("share {}/{} with {} {}", s.tenant, s.name, s.with, s.may_write));
  }
  for (const LayoutRecord& l : contents->layouts) {
    dumper.Line(fmt::format("layout {} {} {} {}x{} nnz {} {} slots {} in {} s", l.pattern_hash,
                            l.layout.kind, l.layout.pipeline, l.layout.rows, l.layout.cols,
                            l.layout.nnz, l.layout.transposed, l.layout.value_slots,
                            l.build_seconds));
    for (const auto& [name, value] : l.layout.parameters) {
      dumper.Line(fmt::format("  {}={}", name, value));
    }
    for (const StoredArray& array : l.arrays) dumper.Line(array);
  }
  for (const PlanRecord& p : contents->plans) {
    dumper.Line(fmt::format("plan {} '{}' {} {} {} {} '{}' '{}' over {}, {} {}", p.pattern_hash,
                            p.signature, p.pipeline, p.kernel, p.baseline_ms, p.plan_ms, p.reason,
                            p.distribution, p.gpus, p.whole_ms, p.best_ms));
  }
  for (const MeasurementRecord& m : contents->measurements) {
    dumper.Line(TextOf(m));
  }
  for (const DecisionRecord& d : contents->decisions) {
    dumper.Line(fmt::format("decision {} '{}' '{}' {} '{}'", d.pattern_hash, d.signature,
                            d.pipeline, d.tried, d.reason));
  }
  for (const WantedRecord& w : contents->wanted) {
    dumper.Line(fmt::format("wanted {} '{}'", w.pattern_hash, w.signature));
  }
  for (const BufferRecord& b : contents->buffers) {
    dumper.Line(fmt::format("buffer {}/{} {}x{} leading {} version {} of '{}' lives {} '{}' {}",
                            b.tenant, b.name, b.rows, b.cols, b.leading_dimension, b.version,
                            b.owner, b.time_to_live_ns, b.distribution,
                            fmt::join(b.row_bounds, " ")));
    dumper.Line(b.array);
  }
  const auto all_past = PastPatterns(store);
  if (!all_past.ok()) return all_past.status();
  for (const PastPattern& past : *all_past) {
    dumper.Line("past pattern " + past.hash);
    if (past.features) dumper.Line(*past.features);
    for (const MeasurementRecord& m : past.measurements) dumper.Line("past " + TextOf(m));
  }
  return dumper.Result();
}

std::vector<Step> AllSteps() {
  const auto put = [](std::string name, std::string hash, uint32_t seed, bool with_order = false) {
    return Step{fmt::format("put matrix {} of pattern {}", name, hash), [=](Store& store) {
                  NewMatrix m = RandomMatrix(name, hash, seed);
                  if (with_order) {
                    m.value_order = RandomArray("value_order", ElementType::kI32, m.nnz, seed + 1);
                  }
                  return store.PutMatrix(m).status();
                }};
  };
  const auto put_layout = [](std::string hash, std::string pipeline, uint32_t seed) {
    return Step{fmt::format("put layout {} of {}", pipeline, hash), [=](Store& store) {
                  return store.PutLayout(hash, RandomLayout(pipeline, seed), 1.5).status();
                }};
  };
  return {
      put("a", "P", 1, true),
      put("b", "P", 2),
      put_layout("P", "aspt(panel=64)", 3),
      {"put wanted",
       [](Store& store) {
         return store.PutWanted(
             std::vector<WantedRecord>{{"P", "spmm f32 k<=32 cpu"}, {"P", "sddmm f32 k<=8 cpu"}});
       }},
      {"put plans",
       [](Store& store) {
         return store.PutPlans(std::vector<PlanRecord>{
             {"P", "spmm f32 k<=32 cpu", "aspt(panel=64)", "cpu.aspt", 2.5, 1.25, "twice as fast"},
             {"P", "spmm f32 k<=64 cpu", "csr", "cpu.csr.row_balanced", 2.5, 2.5, "no gain", "rows",
              4, 2.25, 0.75}});
       }},
      {"put measurements",
       [](Store& store) {
         return store.PutMeasurements(std::vector<MeasurementRecord>{
             {"P", "spmm f32 k<=32 cpu", "csr", "cpu.csr.row_balanced", "cpu", 32, 2.5, 9, 77},
             {"P", "spmm f32 k<=32 cpu", "aspt(panel=64)", "cpu.aspt", "cpu", 32, 1.25, 9, 78, 2.5,
              0.5, 1750, "A Processor", std::nullopt, 4096, true}});
       }},
      {"put decisions",
       [](Store& store) {
         return store.PutDecisions(std::vector<DecisionRecord>{
             {"P", "spmm f32 k<=32 cpu", "aspt(panel=64)", true, "there are tiles"},
             {"P", "spmm f32 k<=32 cpu", "", false, "timed at K = 16 for want of memory"},
             {"P", "sddmm f32 k<=8 cpu", "aspt(panel=64)", false, "it was slower"}});
       }},
      {"put features", [](Store& store) { return store.PutFeatures("P", RandomFeatures(12)); }},
      {"put preparation",
       [](Store& store) {
         return store.PutPreparation("P", {"ready", "aspt won", 12.5});
       }},
      {"put values",
       [](Store& store) {
         const NewMatrix m = RandomMatrix("a", "P", 4);
         return store.PutValues("tenant", "a", 9, m.values).status();
       }},
      {"put buffer", [](Store& store) { return store.PutBuffer(RandomBuffer("x", 5)).status(); }},
      put("c", "Q", 6),
      put_layout("P", "aspt(panel=64)", 7),
      put_layout("Q", "lsh_cluster()", 8),
      {"replace buffer",
       [](Store& store) { return store.PutBuffer(RandomBuffer("x", 9)).status(); }},
      {"share",
       [](Store& store) {
         return store.PutShare({"tenant", "b", "other", true});
       }},
      {"share with all",
       [](Store& store) {
         return store.PutShare({"tenant", "a", "*", false});
       }},
      put("b", "Q", 10),
      put("a", "R", 11),
      {"rename matrix",
       [](Store& store) {
         NewMatrix m = RandomMatrix("e", "R", 11);
         m.moved_from = std::string("a");
         return store.PutMatrix(m).status();
       }},
      {"drop layout", [](Store& store) { return store.DropLayout("Q", "lsh_cluster()"); }},
      {"delete matrix", [](Store& store) { return store.DeleteMatrix("tenant", "c"); }},
      {"unshare", [](Store& store) { return store.DeleteShare("tenant", "e", "*"); }},
      {"delete buffer", [](Store& store) { return store.DeleteBuffer("tenant", "x"); }},
      {"delete last matrix", [](Store& store) { return store.DeleteMatrix("tenant", "b"); }},
  };
}

}  // namespace sparsed::engine
