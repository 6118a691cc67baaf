#include "tests/fault/attack.h"

#include <fmt/format.h>

#include <iostream>
#include <limits>
#include <random>
#include <utility>

#include "CLI/CLI.hpp"

namespace sparsed::test {

void Bounds::AtMost(const std::string& what, double measured, double bound,
                    const std::string& unit) {
  Add(fmt::format("{}: {:.6g} {}, at most {:.6g}", what, measured, unit, bound), measured <= bound);
}

void Bounds::MebibytesAtMost(const std::string& what, double measured, double bound) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  bound = std::numeric_limits<double>::infinity();
#endif
  AtMost(what, measured, bound, "MiB");
}

void Bounds::AtLeast(const std::string& what, double measured, double bound,
                     const std::string& unit) {
  Add(fmt::format("{}: {:.6g} {}, at least {:.6g}", what, measured, unit, bound),
      measured >= bound);
}

void Bounds::True(const std::string& what, bool holds) { Add(what, holds); }

void Bounds::Add(std::string line, bool holds) {
  lines_.push_back(std::move(line) + (holds ? ": holds" : ": BROKEN"));
  hold_ = hold_ && holds;
}

int AttackMain(int argc, char** argv, const std::string& about, double seconds,
               const std::function<absl::Status(const AttackOptions&, Bounds&)>& attack) {
  AttackOptions options{.seconds = seconds, .flags = {}, .seed = std::random_device{}()};
  CLI::App app(about);
  app.add_option("--seconds", options.seconds, "How long to go on; at least one round is run")
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Of what chance decides; another each time without it");
  app.add_option("--server-flag", options.flags,
                 "A flag for the server, such as --server-flag=--host-memory=4GiB; repeatable")
      ->allow_extra_args(false);
  CLI11_PARSE(app, argc, argv);

  std::cout << "seed: " << options.seed << std::endl;
  Bounds bounds;
  const absl::Status status = attack(options, bounds);
  if (absl::IsUnimplemented(status)) {
    std::cout << "skipped: " << status.message() << std::endl;
    return kExitSkipped;
  }
  for (const std::string& line : bounds.lines()) std::cout << line << "\n";
  if (!status.ok()) std::cout << "failed: " << status << "\n";
  std::cout.flush();
  return status.ok() && bounds.hold() ? 0 : 1;
}

}  // namespace sparsed::test
