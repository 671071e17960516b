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
  /// Where the unit's values come from. If ranks share their parameters, both pointers are null:
  /// then gathering only attaches the shared memory, which always has the values. Otherwise one of
  /// the two is set.
  struct Source {
    std::unique_ptr<WindowSource> window;          ///< each rank reads for itself
    std::unique_ptr<CollectiveSource> collective;  ///< ranks gather together
  };

  /// References must stay valid until close() or the destruction of this object.
  Unit(GatheredUnits& all, size_t index, FreeableBuffer& buffer, Source source);

  Pin& pin(Use use) noexcept override;

  size_t index() const { return index_; }
  bool is_whole() const { return buffer_.has_memory(); }
  /// Returns true if the unit is whole and its values are current.
  bool is_fresh() const { return is_whole() && !is_stale_; }
  /// Returns true if the unit has memory of its own, so that it takes no buffer of the pool for
  /// unsharded parameters.
  bool has_own_memory() const { return all_.memory_.has_own(index_); }
  bool is_held() const { return holds_ > 0; }
  /// From now on, if `is_ready`, an operator that reads the unit does not take the mutex, but only
  /// increments readers_->pins.
  void set_ready(bool is_ready) { is_ready_ = is_ready; }

  /// Gathers the unit, or attaches what prefetch() has gathered.
  void make_whole();
  /// Starts to gather the unit, unless memory would have to be allocated for that.
  void prefetch();
  /// Returns true if a prefetch is reading the unit from a window; make_whole() waits for the
  /// prefetch.
  bool is_being_read() const { return fetch_ != nullptr && source_.window != nullptr; }
  /// Frees memory that was prefetched and not used.
  void drop_prefetch();

  /// Returns true if the unit is whole, no operator uses it and no scope holds it. If it returns
  /// true, operators that read the unit take the mutex until set_ready(true) is called.
  bool can_free();
  enum class After : uint8_t { kUse, kFence };
  void free(After after);

  /// hold() adds a scope that keeps the unit whole; release() removes it.
  void hold(bool writable);
  void release(bool writable);

  /// Marks attached memory as stale, because the values have changed.
  void invalidate();

  /// Frees each block with old values that no operator and no scope reads any more.
  void drop_old();

  /// Called when the owner is gone: releases everything that belongs to the engine. Memory that
  /// operators or scopes still read is kept until drop_old() finds that it is no longer read.
  void close();

 private:
  /// Counts the running operators that use one memory block of the unit.
  struct Readers final : Pin {
    explicit Readers(Unit& unit) : unit(unit) {}
    void unpin(Use use) noexcept override;

    Unit& unit;
    std::atomic<int64_t> pins{0};
    bool is_temporary = false;  // take_temporary() made the block, for a scope
    at::Tensor old_memory;      // the block, after another one has replaced it
  };
  /// Counts the running operators whose write was refused.
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
  std::atomic<Readers*> readers_{nullptr};             // of the present block
  Refused refused_{*this};
  std::atomic<bool> is_ready_{false};  // if true, a reader only increments readers_->pins
  std::atomic<bool> has_old_{false};   // if true, a reader that ends must call drop_old()
  bool is_stale_ = false;              // whole, but the values have changed since the gather
  int64_t holds_ = 0;
  // What hashes() returned after the gather; empty if free() is not to compare them.
  std::vector<uint64_t> gathered_;
  // The buffer's usual access error while the error of a failed gather replaces it, else empty.
  std::string original_error_;
  at::Tensor fetched_;  // memory that a prefetch under way fills
  std::shared_ptr<Work> fetch_;
};

}  // namespace tessera::internal
