#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "tessera/checkpoint.h"
#include "tessera/process_group.h"

namespace tessera::internal {

/// Something that a run is made of beside its engine. Its keys in a checkpoint are its own: "" for
/// what has no name but the thing's.
class Tracked {
 public:
  /// Where what is loaded comes from, and where it goes.
  struct Origin {
    int64_t step = 0;
    int64_t saved_world = 1;
    int rank = 0;
    int world = 1;
  };

  virtual ~Tracked() = default;
  /// Why this can never be saved, "got ..., expected ..."; "" if it can.
  virtual std::string problem() const { return ""; }
  /// Collective. Throws c10::Error on every rank where what rank 0 saves is not all ranks'.
  virtual void check_ranks(ProcessGroup& /*group*/) const {}
  /// Copies: what training does next does not change them.
  virtual CheckpointExtras save() const = 0;
  /// Why what save() gives after steps were made would be of no use, "got ..., expected ..."; "" if
  /// nothing is seen.
  virtual std::string doubt() const { return ""; }
  /// What forbids to load `saved`, "got ..., expected ..."; "" if nothing.
  virtual std::string problem_of(const CheckpointExtras& saved) const = 0;
  /// After problem_of() had nothing to say. Returns what the user should know; "" if nothing.
  virtual std::string load(const CheckpointExtras& saved, const Origin& origin) = 0;
};

/// All that a run tracks, by name, as the extras of one checkpoint.
class TrackedThings {
 public:
  /// Throws c10::Error where `name` is taken, has a '/' or is no name of a checkpoint's entry, and
  /// where `thing` has a problem().
  void add(const std::string& name, std::unique_ptr<Tracked> thing);

  void check_ranks(ProcessGroup& group) const;
  CheckpointExtras save() const;
  /// Says on stderr, until there was something to say, the Tracked::doubt() of all.
  void say_doubts();
  /// What forbids to load them: missing, unknown or unfit, one line each; "" if nothing.
  std::string problem_of(const CheckpointExtras& saved) const;
  /// What the user should know, one line each; "" if nothing.
  std::string load(const CheckpointExtras& saved, const Tracked::Origin& origin);

 private:
  std::map<std::string, std::unique_ptr<Tracked>> things_;
  bool has_doubted_ = false;
};

}  // namespace tessera::internal
