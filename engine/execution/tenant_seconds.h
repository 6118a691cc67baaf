// Device seconds by tenant, for metrics, whose labels have few values.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

namespace sparsed::engine {

/// Those who use most by name, the rest together. No number ever falls, but a name may go: what it
/// had is then with the rest. Not thread-safe.
class TenantSeconds {
 public:
  static constexpr size_t kMostNames = 32;

  void Add(std::string_view tenant, double seconds);
  struct Named {
    double seconds = 0;  ///< since it has a name
    double all = 0;      ///< before, too
  };
  const std::map<std::string, Named, std::less<>>& named() const { return named_; }
  double others() const { return others_; }

 private:
  /// Without a name: what each has used since it was seen first. Of more, all are forgotten.
  static constexpr size_t kMostUnnamed = 1024;

  std::map<std::string, Named, std::less<>> named_;
  std::map<std::string, double, std::less<>> unnamed_;
  double others_ = 0;
};

}  // namespace sparsed::engine
