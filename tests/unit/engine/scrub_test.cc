// The verification of what is stored: when it comes, and what it mends.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "engine/planning/candidates.h"
#include "kernels/pipeline.h"
#include "tests/unit/engine/modules.h"

namespace sparsed::engine {
namespace {

class Listener final : public Observer {
 public:
  void OnDamage(std::string_view sentence) override {
    std::lock_guard lock(mutex_);
    sentences_.emplace_back(sentence);
  }
  /// How often damage was told of whose sentence has `word` in it.
  int damaged(std::string_view word = "") {
    std::lock_guard lock(mutex_);
    return static_cast<int>(std::ranges::count_if(sentences_, [&](const std::string& sentence) {
      return sentence.find(word) != std::string::npos;
    }));
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> sentences_;
};

EngineOptions Options(const std::string& directory, double scrub_interval_seconds) {
  EngineOptions options;
  options.data_dir = directory;
  options.host_memory_bytes = kPlenty;
  options.preparation_memory_bytes = kPlenty;
  options.scrub_interval_seconds = scrub_interval_seconds;
  return options;
}

void FlipLastByte(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const auto last = static_cast<char>(file.get() ^ 1);
  file.seekp(-1, std::ios::end);
  file.put(last);
}

/// The file that an array is in: the one whose damage it feels.
std::string FileOf(Store& store, const StoredArray& array, const std::string& directory) {
  for (const auto& entry : std::filesystem::directory_iterator(directory + "/blobs")) {
    FlipLastByte(entry.path());
    const bool its = !store.Read(array, HeapMemory()).ok();
    FlipLastByte(entry.path());
    if (its) return entry.path();
  }
  ADD_FAILURE() << "no file has " << Describe(array);
  return "";
}

TEST(Scrub, ComesWhenItIsDueWhateverRestarts) {
  TemporaryDirectory directory;
  std::string file;
  {
    Modules modules(directory.path());
    ASSERT_TRUE(SendMatrix(modules.catalog, "m", test::Uniform(50, 60, 7, 1)).ok());
    const StoredArray values = modules.store->Load()->matrices.at(0).values;
    file = FileOf(*modules.store, values, directory.path());
  }
  FlipLastByte(file);
  constexpr double kDay = 86400;
  const auto scrubbed = [&] { return Modules(directory.path()).contents.scrubbed_unix_ns; };
  // A pass that a stop interrupts begins again with the next start.
  auto patience = std::chrono::milliseconds(50);
  ASSERT_TRUE(Eventually([&] {
    Listener first;
    auto engine = Engine::Open(Options(directory.path(), kDay), first);
    EXPECT_TRUE(engine.ok()) << engine.status();
    EXPECT_TRUE(Eventually([&] { return first.damaged() > 0; })) << "there was none before";
    std::this_thread::sleep_for(patience *= 2);  // it comes to its end, at some time
    engine->reset();
    return scrubbed() > 0;
  }));
  const int64_t then = scrubbed();
  Listener second;
  {
    auto engine = Engine::Open(Options(directory.path(), kDay), second);
    ASSERT_TRUE(engine.ok()) << engine.status();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
  }
  EXPECT_EQ(second.damaged(), 0) << "the next one is due tomorrow";
  EXPECT_EQ(scrubbed(), then);
}

TEST(Scrub, StoresALayoutAgainThatIsWholeInMemory) {
  TemporaryDirectory directory;
  std::string file, values;
  {
    Modules modules(directory.path());
    auto matrix = SendMatrix(modules.catalog, "m", test::Uniform(50, 60, 7, 1));
    ASSERT_TRUE(matrix.ok());
    const std::string& hash = (*matrix)->pattern()->hash();
    BuildContext context;
    context.memory = &HeapMemory();
    auto built = BuildLayout(ParsePipeline("transpose").value(),
                             ViewCsr(**(*matrix)->pattern()->Csr()), context);
    ASSERT_TRUE(built.ok()) << built.status();
    const auto layout = modules.store->PutLayout(hash, built->layout, 0.25);
    ASSERT_TRUE(layout.ok()) << layout.status();
    const Problem problem{Operation::kSpmm, true, ElementType::kF32, 32, DeviceKind::kCpu};
    const PlanRecord plan{hash,
                          ToString(SignatureOf(problem)),
                          built->layout.pipeline,
                          std::string(KernelsFor(problem, built->layout).front()),
                          2.0,
                          1.0,
                          ""};
    ASSERT_TRUE(modules.store->PutPlans({&plan, 1}).ok());
    ASSERT_TRUE(modules.store->PutPreparation(hash, {"READY", "prepared", 1}).ok());
    file = FileOf(*modules.store, layout->arrays.at(1), directory.path());
    values = FileOf(*modules.store, modules.store->Load()->matrices.at(0).values, directory.path());
  }
  Listener listener;
  {
    auto engine = Engine::Open(Options(directory.path(), 0.1), listener);
    ASSERT_TRUE(engine.ok()) << engine.status();
    ASSERT_TRUE(Eventually([&] { return (*engine)->preparation().pending() == 0; }));
    FlipLastByte(file);
    EXPECT_TRUE(Eventually([&] { return listener.damaged("transpose") > 0; }));
    // Passes go on, as those tell that find what nobody mends.
    FlipLastByte(values);
    EXPECT_TRUE(Eventually([&] { return listener.damaged("values") >= 3; }));
    EXPECT_EQ(listener.damaged("transpose"), 1) << "it is whole again";
  }
  Modules modules(directory.path());
  ASSERT_EQ(modules.contents.layouts.size(), 1u);
  EXPECT_TRUE(modules.store->ReadLayout(modules.contents.layouts[0], HeapMemory()).ok());
  EXPECT_EQ(modules.contents.plans.size(), 1u);
}

}  // namespace
}  // namespace sparsed::engine
