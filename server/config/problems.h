// What is wrong with the settings, each with the place where it is written.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace sparsed::server {

/// Of a character in the configuration file; both count from 1.
struct Place {
  int line = 1;
  int column = 1;
};

/// Collects problems, and knows which settings the configuration file made. Flags are named without
/// their dashes: "host-memory". Not thread-safe.
class Problems {
 public:
  /// The configuration file, whose name goes before each place.
  void SetFile(std::string path) { file_ = std::move(path); }
  const std::string& file() const { return file_; }

  /// `flag` has its value from there.
  void SetPlace(std::string_view flag, Place place) { places_[std::string(flag)] = place; }
  /// nullopt: from the command line, or it is the default.
  std::optional<Place> PlaceOf(std::string_view flag) const;
  /// The settings of the file that are used.
  size_t settings_of_file() const { return places_.size(); }

  /// Something is wrong there, whichever setting it is.
  void AddAt(Place place, std::string sentence);
  /// The value of `flag` is wrong there.
  void AddAt(Place place, std::string_view flag, std::string sentence);
  /// The value of `flag` is wrong, wherever it comes from.
  void Add(std::string_view flag, std::string sentence);

  bool empty() const { return found_.empty(); }
  /// Whether the value of `flag` was found wrong: what follows from it is not worth telling. "":
  /// whether something is wrong with the file that is no setting's value.
  bool Has(std::string_view flag) const;

  /// How a sentence speaks of another setting: "--threads", or "threads (line 4)".
  std::string NameOf(std::string_view flag) const;

  /// "FILE:LINE:COLUMN: host_memory: what is wrong" or "--host-memory: what is wrong": those of the
  /// file by their lines, then the others. At most 50, and how many there are more.
  std::vector<std::string> Sentences() const;

 private:
  struct Problem {
    std::optional<Place> place;
    std::string flag;  ///< may be empty
    std::string sentence;
  };

  std::string file_;
  std::map<std::string, Place> places_;
  std::vector<Problem> found_;
};

/// The key of the configuration file that is `flag`: "host_memory" of "host-memory".
std::string KeyOf(std::string_view flag);

}  // namespace sparsed::server
