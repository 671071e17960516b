#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/core/access/access_observer.h"
#include "tessera/core/layout/freeable_buffer.h"
#include "tessera/fsdp/collective_source.h"
#include "tessera/fsdp/gathered_units.h"
#include "tessera/fsdp/window_source.h"
#include "tessera/unit_plan.h"
#include "tessera/work.h"

namespace tessera::internal {

/// One unit and its state: gathered, read, freed. Calls, except those of AccessTarget, require the
/// mutex of GatheredUnits.
class GatheredUnits::Unit final : public AccessTarget {
 public:
  /// The source of the unit's values. One of the two is set, or neither if ranks share their
  /// parameters, because then gathering only attaches the shared memory, which always has the
  /// values.
  struct Source {
    std::unique_ptr<WindowSource> window;          ///< each rank reads for itself
    std::unique_ptr<CollectiveSource> collective;  ///< ranks gather together
  };

  /// References must outlive this object or its close().
  Unit(GatheredUnits& all, size_t index, FreeableBuffer& buffer, Source source);

  Pin& pin(Use use) noexcept override;

  size_t index() const { return index_; }
  bool is_whole() const { return buffer_.has_memory(); }
  /// Returns true if the unit is whole and its values are current.
  bool is_fresh() const { return is_whole() && !is_stale_; }
  /// Returns true if the unit needs no unsharded-parameter buffer.
  bool has_own_memory() const { return all_.memory_.has_own(index_); }
  bool is_held() const { return holds_ > 0; }
  /// If `is_ready`, reads from now on only increment a count, and do not take the mutex.
  void set_ready(bool is_ready) { is_ready_ = is_ready; }

  /// Gathers the unit, or attaches what prefetch() has gathered.
  void make_whole();
  /// Starts to gather the unit, unless that needs new memory.
  void prefetch();
  /// Returns true if a prefetch is reading the unit from a window; make_whole() waits for the
  /// prefetch.
  bool is_being_read() const { return fetch_ != nullptr && source_.window != nullptr; }
  /// Frees memory that was prefetched and not used.
  void drop_prefetch();

  /// Returns true if the unit is not in use. Readers then take the mutex from now on.
  bool can_free();
  enum class After : uint8_t { kUse, kFence };
  void free(After after);

  /// Adds or removes a scope that keeps the unit whole.
  void hold(bool writable);
  void release(bool writable);

  /// Marks attached memory as stale, because the values have changed.
  void invalidate();

  /// Frees memory of old values that is no longer read.
  void drop_old();

  /// Called when the owner is gone: releases everything that belongs to the engine. Memory that
  /// operators or scopes still read is kept until drop_old() finds that it is no longer read.
  void close();

 private:
  /// Counts the operators that use one memory block of the unit.
  struct Readers final : Pin {
    explicit Readers(Unit& unit) : unit(unit) {}
    void unpin(Use use) noexcept override;

    Unit& unit;
    std::atomic<int64_t> pins{0};
    bool is_temporary = false;  // the block was made for a hold
    at::Tensor old_memory;      // the block, after another one has replaced it
  };
  /// Counts the operators whose write was refused.
  struct Refused final : Pin {
    explicit Refused(Unit& unit) : unit(unit) {}
    void unpin(Use use) noexcept override;

    Unit& unit;
    int64_t pins = 0;
  };

  const PlannedUnit& planned() const { return all_.plan_[index_]; }
  bool has_source() const { return source_.window != nullptr || source_.collective != nullptr; }

  at::Tensor take_memory();
  void give_memory(const at::Tensor& memory, bool is_temporary);
  void fill_and_attach(at::Tensor memory, bool is_temporary, const std::shared_ptr<Work>& fetch);
  void fill(const at::Tensor& memory);
  std::shared_ptr<Work> gather_together(const at::Tensor& memory);

  std::vector<uint64_t> hashes() const;
  void find_written();

  void end_use();
  void mark_stale();
  void set_aside(at::Tensor memory);
  void replace_readers();

  Pin& refuse();
  std::string write_error() const;
  void remember(const std::exception& error);

  GatheredUnits& all_;
  const size_t index_;
  FreeableBuffer& buffer_;
  Source source_;
  std::vector<std::unique_ptr<Readers>> all_readers_;  // reused when nothing needs them
  std::atomic<Readers*> readers_{nullptr};             // of the present memory
  Refused refused_{*this};
  std::atomic<bool> is_ready_{false};  // a read only has to count
  std::atomic<bool> has_old_{false};   // an ending reader must call drop_old()
  bool is_stale_ = false;              // whole, but with values that have changed since
  int64_t holds_ = 0;
  std::vector<uint64_t> gathered_;  // hashes() when gathered; empty: not compared
  std::string original_error_;      // the buffer's own error, while it has a failed gather's
  at::Tensor fetched_;              // memory that a prefetch under way fills
  std::shared_ptr<Work> fetch_;
};

}  // namespace tessera::internal
