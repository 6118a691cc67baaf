#include "tests/bench/gpu/builds.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "kernels/cuda/build/build.h"
#include "kernels/pipeline.h"

namespace sparsed::test {
namespace {

using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

double MillisecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

struct Build {
  Layout layout;
  bool skipped = false;
  double ms = 0;
  Json stages = Json::object();  ///< milliseconds of each
  std::string notes;
};

bool SameArrays(const Layout& one, const Layout& other) {
  return std::ranges::equal(one.arrays, other.arrays, [](const Array& a, const Array& b) {
    return a.name == b.name && a.bytes() == b.bytes() &&
           std::memcmp(a.buffer.data(), b.buffer.data(), a.bytes()) == 0;
  });
}

class Builds {
 public:
  Builds(const Settings& settings, Schedule& schedule, const NamedPattern& matrix,
         BuildAccelerator& accelerator)
      : settings_(settings), schedule_(schedule), matrix_(matrix), accelerator_(accelerator) {}

  /// Whether both layouts are the same.
  absl::StatusOr<bool> Run(const std::string& text) {
    const absl::StatusOr<Pipeline> pipeline = ParsePipeline(text);
    if (!pipeline.ok()) return pipeline.status();
    const auto cpu = Fastest([&] { return Once(*pipeline, nullptr); });
    if (!cpu.ok()) return cpu.status();
    const auto gpu = Fastest([&] { return Once(*pipeline, &accelerator_); });
    if (!gpu.ok()) return gpu.status();
    const bool same = cpu->skipped == gpu->skipped && SameArrays(cpu->layout, gpu->layout);
    Json line = {{"matrix", matrix_.name},
                 {"rows", matrix_.pattern.rows},
                 {"cols", matrix_.pattern.cols},
                 {"nnz", matrix_.pattern.nnz()},
                 {"op", "build"},
                 {"layout", ToString(*pipeline)},
                 {"threads", omp_get_max_threads()},
                 {"cpu_ms", cpu->ms},
                 {"cpu_stages", cpu->stages},
                 {"gpu_ms", gpu->ms},
                 {"gpu_stages", gpu->stages},
                 {"skipped", gpu->skipped},
                 {"notes", gpu->notes}};
    if (pipeline->steps.size() == 1 && pipeline->steps[0].name == kRowSegments && !gpu->skipped) {
      const absl::StatusOr<double> there =
          RowSegmentsOnDevice(matrix_, gpu->layout, settings_.rounds);
      if (!there.ok()) return there.status();
      line["device_ms"] = *there;
    }
    if (!same) line["wrong"] = true;
    std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
    std::fprintf(stderr, "%s %s: %.4g ms by the CPU, %.4g with the GPU%s\n", matrix_.name.c_str(),
                 text.c_str(), cpu->ms, gpu->ms, same ? "" : ", DIFFERENT");
    return same;
  }

 private:
  absl::StatusOr<Build> Once(const Pipeline& pipeline, BuildAccelerator* accelerator) {
    Build build;
    std::string stage = "before";
    auto begin = Clock::now();
    auto last = begin;
    const auto enter = [&](std::string_view next) {
      build.stages[stage] = build.stages.value(stage, 0.0) + MillisecondsSince(last);
      last = Clock::now();
      stage = next;
    };
    BuildContext context;
    context.threads = omp_get_max_threads();
    context.memory = &HeapMemory();
    context.accelerator = accelerator;
    context.progress = [&](std::string_view next, int64_t, int64_t) { enter(next); };
    absl::StatusOr<BuiltLayout> built = BuildLayout(pipeline, matrix_.pattern.view(), context);
    if (!built.ok()) return built.status();
    build.ms = MillisecondsSince(begin);
    enter("");
    build.layout = std::move(built->layout);
    build.skipped = built->skipped;
    build.notes = std::move(built->notes);
    return build;
  }

  /// The fastest of as many as the settings ask for.
  absl::StatusOr<Build> Fastest(const std::function<absl::StatusOr<Build>()>& once) {
    std::optional<Build> least;
    for (int round = 0; round < settings_.rounds && !(least && schedule_.over()); ++round) {
      absl::StatusOr<Build> build = once();
      if (!build.ok()) return build;
      if (!least || build->ms < least->ms) least = *std::move(build);
    }
    return *std::move(least);
  }

  const Settings& settings_;
  Schedule& schedule_;
  const NamedPattern& matrix_;
  BuildAccelerator& accelerator_;
};

}  // namespace

absl::StatusOr<double> RowSegmentsOnDevice(const NamedPattern& matrix, const Layout& layout,
                                           int rounds) {
  absl::StatusOr<cuda::Stream> stream = cuda::Stream::Create();
  if (!stream.ok()) return stream.status();
  const std::unique_ptr<MemorySource> memory = cuda::DeviceMemory(*stream);
  const CsrView csr = matrix.pattern.view();
  const absl::StatusOr<cuda::PatternCopy> pattern = cuda::PatternCopy::Make(*stream, *memory, csr);
  if (!pattern.ok()) return pattern.status();
  const RowSegmentsOptions options = {layout.Parameter("panel"), 0, layout.Parameter("coarsen")};
  std::vector<double> times;
  for (int round = 0; round < 2 + rounds; ++round) {
    absl::Status status = stream->Synchronize();
    if (!status.ok()) return status;
    const auto begin = Clock::now();
    status = cuda::BuildRowSegmentsOnDevice(*stream, *memory, pattern->view(), options).status();
    if (!status.ok()) return status;
    if (round >= 2) times.push_back(MillisecondsSince(begin));
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

absl::StatusOr<int> MeasureBuilds(Device& /*device*/, const Settings& settings, Schedule& schedule,
                                  const NamedPattern& matrix) {
  absl::StatusOr<cuda::Stream> stream = cuda::Stream::Create();
  if (!stream.ok()) return stream.status();
  const std::unique_ptr<MemorySource> memory = cuda::DeviceMemory(*stream);
  cuda::GpuBuildAccelerator accelerator(*stream, *memory);
  Builds builds(settings, schedule, matrix, accelerator);
  int different = 0;
  for (const std::string& pipeline : settings.pipelines) {
    if (schedule.over()) {
      schedule.LeaveOut(fmt::format("{} {}: no time", matrix.name, pipeline));
      continue;
    }
    const absl::StatusOr<bool> same = builds.Run(pipeline);
    if (!same.ok()) return same.status();
    different += *same ? 0 : 1;
  }
  return different;
}

}  // namespace sparsed::test
