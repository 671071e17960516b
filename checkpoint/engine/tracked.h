#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "tessera/checkpoint.h"
#include "tessera/process_group.h"

namespace tessera::internal {

/// Something that a run saves beside its engine. It chooses its own keys in a checkpoint: "" for a
/// single value that has only the thing's name.
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
  /// Collective. Throws c10::Error on every rank if values that rank 0 saves differ.
  virtual void check_ranks(ProcessGroup& /*group*/) const {}
  /// Returns copies, which later training does not change.
  virtual CheckpointExtras save() const = 0;
  /// Returns why save() after some steps would be of no use, "got ..., expected ..."; "" if no
  /// reason is found.
  virtual std::string doubt() const { return ""; }
  /// Returns why `saved` cannot be loaded, "got ..., expected ..."; "" if it can.
  virtual std::string problem_of(const CheckpointExtras& saved) const = 0;
  /// Called only if problem_of() returned "". Returns what the user should know; "" if nothing.
  virtual std::string load(const CheckpointExtras& saved, const Origin& origin) = 0;
};

/// All that a run tracks, by name, as the extras of one checkpoint.
class TrackedThings {
 public:
  /// Throws c10::Error if `name` is taken, has a '/' or cannot be an entry's name, and if `thing`
  /// has a problem().
  void add(const std::string& name, std::unique_ptr<Tracked> thing);

  void check_ranks(ProcessGroup& group) const;
  CheckpointExtras save() const;
  /// Prints all Tracked::doubt() on stderr; does nothing once it has printed any.
  void say_doubts();
  /// Returns why they cannot be loaded: missing, unknown or unfit, one line each; "" if they can.
  std::string problem_of(const CheckpointExtras& saved) const;
  /// Loads all. Returns what the user should know, one line each; "" if nothing.
  std::string load(const CheckpointExtras& saved, const Tracked::Origin& origin);

 private:
  std::map<std::string, std::unique_ptr<Tracked>> things_;
  bool has_doubted_ = false;
};

}  // namespace tessera::internal
