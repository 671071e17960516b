#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "tessera/checkpoint.h"
#include "tessera/process_group.h"

namespace tessera::internal {

/// Something that a run saves beside its engine. It chooses the keys of its values in a checkpoint.
/// A single value may have the key "" and is then stored under the thing's name alone.
class Tracked {
 public:
  /// The checkpoint from which values are loaded, and the ranks that load it.
  struct Origin {
    int64_t step = 0;
    int64_t saved_world = 1;
    int rank = 0;
    int world = 1;
  };

  virtual ~Tracked() = default;
  /// Returns why this can never be saved, "got ..., expected ..."; "" if it can.
  virtual std::string problem() const { return ""; }
  /// Collective. Throws c10::Error on every rank if values that only rank 0 saves differ between
  /// ranks.
  virtual void check_ranks(ProcessGroup& /*group*/) const {}
  /// Returns the values to save, as copies, which later training does not change.
  virtual CheckpointExtras save() const = 0;
  /// Called after some training steps. Returns why the values of save() are probably useless,
  /// "got ..., expected ..."; "" if no reason is found.
  virtual std::string doubt() const { return ""; }
  /// Returns why `saved` cannot be loaded, "got ..., expected ..."; "" if it can.
  virtual std::string problem_of(const CheckpointExtras& saved) const = 0;
  /// Loads `saved`. Called only if problem_of() returned "". Returns a notice for the user; "" if
  /// there is none.
  virtual std::string load(const CheckpointExtras& saved, const Origin& origin) = 0;
};

/// All Tracked things of a run, by name. Their values are the extras of one checkpoint.
class TrackedThings {
 public:
  /// Throws c10::Error if `name` is taken, has a '/' or cannot be an entry's name, and if `thing`
  /// has a problem().
  void add(const std::string& name, std::unique_ptr<Tracked> thing);

  void check_ranks(ProcessGroup& group) const;
  CheckpointExtras save() const;
  /// Prints each thing's Tracked::doubt() on stderr. Once it has printed any, later calls do
  /// nothing.
  void say_doubts();
  /// Lists, one line each, every thing whose values are missing from `saved` or cannot be loaded,
  /// and every value in `saved` that belongs to no thing; "" if `saved` can be loaded.
  std::string problem_of(const CheckpointExtras& saved) const;
  /// Loads all things. Returns notices for the user, one line each; "" if there are none.
  std::string load(const CheckpointExtras& saved, const Tracked::Origin& origin);

 private:
  std::map<std::string, std::unique_ptr<Tracked>> things_;
  bool has_doubted_ = false;
};

}  // namespace tessera::internal
