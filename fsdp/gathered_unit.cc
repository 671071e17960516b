#include "tessera/fsdp/gathered_unit.h"

#include <algorithm>
#include <utility>

#include <absl/strings/str_cat.h>
#include <xxhash.h>

#include "tessera/core/access/unobserved_scope.h"
#include "tessera/core/process/error_text.h"
#include "tessera/core/sched/trace_span.h"

namespace tessera::internal {

// Most operators read the same unit as the operator before. Such a unit is `is_ready_`, and pinning
// it needs no mutex, only an increment of a count. A thread that wants to free the unit first
// clears is_ready_ and then reads the count; a reader first increments the count and then reads
// is_ready_. All four accesses are sequentially consistent, so either the freeing thread sees the
// reader and keeps the unit, or the reader sees that the unit is not ready and takes the mutex.
//
// Note [Old values]
// An operator holds addresses in a unit's memory from its start to its end. An operator of another
// thread may still run when step() changes the values or the engine is destroyed. The memory that
// it reads must not be freed or overwritten before it ends, and later operators must not use it. So
// each memory block of a unit has its own Readers object, which counts the operators that use it.
// When values change, units without readers are freed and other units are marked stale. The next
// use of a stale unit gathers the new values into another block and attaches this block in place of
// the old one. An operator that has started but not yet read the data pointer gets one block or the
// other, never a null pointer. It may have been counted with earlier Readers and then read the new
// pointer, so a block is freed only when its own Readers and all earlier Readers are at zero. A
// reader increments the count of the current Readers and then checks that they are still current; a
// thread that replaces Readers first replaces them and then reads the count. So this needs no mutex
// either.
//
// Where ranks share parameters nothing becomes stale, because operators read the shared memory.

GatheredUnits::Unit::Unit(GatheredUnits& all, size_t index, FreeableBuffer& buffer, Source source)
    : all_(all), index_(index), buffer_(buffer), source_(std::move(source)) {
  replace_readers();
}

// --- An operator begins and ends ---

AccessTarget::Pin& GatheredUnits::Unit::pin(Use use) noexcept {
  Readers* found = nullptr;
  if (use == Use::kRead) {
    found = readers_;
    ++found->pins;
    if (is_ready_ && readers_ == found) return *found;
  }
  const std::lock_guard lock(all_.mutex_);
  if (found != nullptr) --found->pins;
  if (has_old_) drop_old();
  if (!all_.is_closed_) {
    if (use == Use::kWrite && all_.writable_holds_ == 0) return refuse();
    try {
      all_.use(*this);
    } catch (const std::exception& error) {
      remember(error);
    }
  }
  Readers& present = *readers_;
  ++present.pins;
  return present;
}

void GatheredUnits::Unit::Readers::unpin(Use /*use*/) noexcept {
  GatheredUnits& all = unit.all_;
  if (!all.setting_.free_eagerly) {
    if (--pins > 0 || !unit.has_old_) return;
    const std::lock_guard lock(all.mutex_);
    unit.end_use();
    return;
  }
  const std::lock_guard lock(all.mutex_);
  --pins;
  unit.end_use();
}

/// Called when an operator that writes begins outside modify_parameters(). Makes its access to the
/// buffer throw.
AccessTarget::Pin& GatheredUnits::Unit::refuse() {
  if (refused_.pins++ == 0) buffer_.forbid(write_error());
  return refused_;
}

void GatheredUnits::Unit::Refused::unpin(Use /*use*/) noexcept {
  GatheredUnits& all = unit.all_;
  const std::lock_guard lock(all.mutex_);
  --pins;
  if (pins == 0 && !all.is_closed_) unit.buffer_.permit();
  unit.end_use();
}

/// Called when an operator has ended.
void GatheredUnits::Unit::end_use() {
  if (has_old_) {
    // The next user of the old memory must run after the work that the operator has queued.
    if (!all_.is_closed_ && all_.setting_.streams != nullptr) all_.setting_.streams->pass();
    drop_old();
  }
  if (!all_.is_closed_ && all_.setting_.free_eagerly && can_free()) free(After::kUse);
}

std::string GatheredUnits::Unit::write_error() const {
  std::string names;
  constexpr size_t kMaxNames = 4;
  const std::vector<size_t>& parameters = planned().parameters;
  for (size_t i = 0; i < parameters.size() && i < kMaxNames; ++i) {
    absl::StrAppend(&names, i == 0 ? "'" : ", '", all_.table_[parameters[i]].name, "'");
  }
  if (parameters.size() > kMaxNames) absl::StrAppend(&names, ", ...");
  return absl::StrCat("[fsdp] unit '", planned().name,
                      "': an operator writes one of its parameters (", names,
                      ") outside engine->modify_parameters(), and the write would not reach the "
                      "other ranks; write it inside, so that all ranks take the new values, or, if "
                      "forward writes it (running statistics, a spectral norm's vector), make it a "
                      "buffer by register_buffer()");
}

/// Stores the error of a failed gather. The operator goes on, and its access to the storage throws
/// this error.
void GatheredUnits::Unit::remember(const std::exception& error) {
  if (const auto* failed = dynamic_cast<const CommError*>(&error);
      failed != nullptr && !all_.failure_.has_value()) {
    all_.failure_ = *failed;
  }
  if (is_stale_) set_aside(buffer_.detach());
  if (original_error_.empty()) original_error_ = buffer_.access_error();
  buffer_.set_access_error(error_text(error));
}

// --- It becomes whole ---

void GatheredUnits::Unit::make_whole() {
  const UnobservedScope unobserved;
  const std::shared_ptr<Work> fetch = std::exchange(fetch_, nullptr);
  const TraceSpan span(all_.trace_, TraceTrack::kGather, planned().name,
                       fetch == nullptr ? planned().layout.bytes() : 0);
  at::Tensor memory = fetch == nullptr ? take_memory() : std::exchange(fetched_, at::Tensor());
  fill_and_attach(std::move(memory), /*is_temporary=*/false, fetch);
}

/// Fills `memory` with the unit's values and attaches it to the buffer. `fetch` is the prefetch
/// that fills `memory`; if it is null, fills `memory` now.
void GatheredUnits::Unit::fill_and_attach(at::Tensor memory, bool is_temporary,
                                          const std::shared_ptr<Work>& fetch) {
  try {
    if (fetch == nullptr) {
      fill(memory);
    } else {
      fetch->wait();
      ++all_.counts_.prefetched;
    }
  } catch (...) {
    give_memory(memory, is_temporary);
    if (is_stale_) set_aside(buffer_.detach());  // so that nothing reads old values
    throw;
  }
  if (is_stale_) {
    set_aside(buffer_.replace(std::move(memory)));
  } else {
    buffer_.attach(std::move(memory));
  }
  readers_.load()->is_temporary = is_temporary;
  gathered_ = all_.setting_.poison_freed && has_source() ? hashes() : std::vector<uint64_t>();
  ++all_.counts_.gathers;
  if (!original_error_.empty()) {
    buffer_.set_access_error(std::exchange(original_error_, ""));
  }
}

void GatheredUnits::Unit::fill(const at::Tensor& memory) {
  if (source_.window != nullptr) {
    all_.counts_.bytes += source_.window->fetch(memory, all_.source_now());
  } else if (source_.collective != nullptr) {
    gather_together(memory)->wait();
  }
}

std::shared_ptr<Work> GatheredUnits::Unit::gather_together(const at::Tensor& memory) {
  std::shared_ptr<Work> gather = source_.collective->start(memory);
  all_.counts_.bytes += source_.collective->received_bytes();
  // If ranks gathered different units of the same size, the collective would report no error. So
  // the vote compares this history.
  all_.gathers_.record(RollingHash::Event::kGather, static_cast<int64_t>(index_));
  return gather;
}

void GatheredUnits::Unit::prefetch() {
  if (is_whole() || fetch_ != nullptr || !all_.memory_.is_at_hand(index_)) return;
  const UnobservedScope unobserved;
  fetched_ = take_memory();
  if (source_.collective != nullptr) {
    fetch_ = gather_together(fetched_);
    return;
  }
  try {
    fetch_ = all_.next_lane().post([this, memory = fetched_, from = all_.source_now()] {
      const UnobservedScope in_lane;
      const TraceSpan span(all_.trace_, TraceTrack::kGather, planned().name,
                           planned().layout.bytes());
      const int64_t bytes = source_.window->fetch(memory, from);
      all_.prefetched_bytes_ += bytes;
    });
  } catch (const CommError&) {
    // post() throws only if the process ends. A later read of the unit throws the group's error.
    give_memory(std::exchange(fetched_, at::Tensor()), /*is_temporary=*/false);
  }
}

void GatheredUnits::Unit::drop_prefetch() {
  if (fetch_ == nullptr) return;
  const UnobservedScope unobserved;
  try {
    fetch_->wait();
  } catch (const std::exception&) {
    // The prefetch has failed, but nobody needs its values. A later gather will fail the same way.
  }
  fetch_ = nullptr;
  give_memory(std::exchange(fetched_, at::Tensor()), /*is_temporary=*/false);
}

at::Tensor GatheredUnits::Unit::take_memory() {
  return is_stale_ ? all_.memory_.take_another(index_) : all_.memory_.take(index_);
}

// --- It is freed ---

bool GatheredUnits::Unit::can_free() {
  // Look at the counts of all blocks: an operator that was counted with an earlier block, if it has
  // not read the data pointer yet, will get the present block.
  const auto is_read = [this] {
    return std::any_of(all_readers_.begin(), all_readers_.end(),
                       [](const auto& readers) { return readers->pins > 0; });
  };
  if (!is_whole() || holds_ > 0 || refused_.pins > 0 || is_read()) return false;
  is_ready_ = false;
  return !is_read();
}

void GatheredUnits::Unit::free(After after) {
  const UnobservedScope unobserved;
  if (after == After::kUse && source_.window != nullptr && !is_stale_ &&
      !all_.setting_.is_inside_backward()) {
    source_.window->keep_second(buffer_.memory());
  }
  if (!is_stale_) find_written();
  is_stale_ = false;
  give_memory(buffer_.detach(), std::exchange(readers_.load()->is_temporary, false));
  ++all_.counts_.frees;
}

/// Returns a hash of each parameter; nothing if they do not lie on the CPU.
std::vector<uint64_t> GatheredUnits::Unit::hashes() const {
  std::vector<uint64_t> hashes;
  const at::Tensor& memory = buffer_.memory();
  if (!memory.device().is_cpu()) return hashes;
  const auto* const data = static_cast<const char*>(memory.const_data_ptr());
  const auto width = static_cast<int64_t>(memory.element_size());
  for (size_t i = 0; i < planned().parameters.size(); ++i) {
    const Range range = planned().layout.parameter_range(i);
    hashes.push_back(
        XXH3_64bits(data + range.begin * width, static_cast<size_t>(range.numel * width)));
  }
  return hashes;
}

/// Notes in all_.written_ a parameter that something other than an operator has written since the
/// unit was gathered.
void GatheredUnits::Unit::find_written() {
  const std::vector<uint64_t> before = std::exchange(gathered_, {});
  if (before.empty()) return;
  const std::vector<uint64_t> now = hashes();
  for (size_t i = 0; i < before.size(); ++i) {
    if (now[i] != before[i]) all_.written_ = planned().parameters[i];
  }
}

void GatheredUnits::Unit::give_memory(const at::Tensor& memory, bool is_temporary) {
  const UnobservedScope unobserved;
  all_.memory_.give(index_, memory, is_temporary);
}

// --- Scopes keep it whole ---

void GatheredUnits::Unit::hold(bool writable) {
  const UnobservedScope unobserved;
  if (holds_ == 0) {
    if (has_old_) drop_old();
    // Operators are reading the present memory, so the scope must get other memory to write.
    if (writable && has_source() && is_whole() && !can_free()) mark_stale();
    // A scope may last long, so the unit should not occupy a buffer of the pool meanwhile: free the
    // buffer here; below, the unit is gathered again into temporary memory. Do so only with
    // one-sided reads, because all ranks would have to repeat a collective gather.
    const bool reads_alone = source_.window != nullptr && !has_own_memory();
    if (reads_alone && is_fresh() && can_free()) free(After::kFence);
    if (!is_fresh()) {
      all_.drop_prefetches(nullptr);
      const TraceSpan span(all_.trace_, TraceTrack::kGather, planned().name,
                           planned().layout.bytes());
      const bool is_temporary = !has_own_memory();
      fill_and_attach(is_temporary ? all_.memory_.take_temporary(index_) : take_memory(),
                      is_temporary, nullptr);
    }
  }
  ++holds_;
  if (writable) ++all_.writable_holds_;
  if (writable) gathered_.clear();
}

void GatheredUnits::Unit::release(bool writable) {
  --holds_;
  if (all_.is_closed_) return drop_old();
  if (writable) --all_.writable_holds_;
  is_ready_ = false;
  if (can_free()) free(After::kFence);
}

// --- Its values become old ---

void GatheredUnits::Unit::invalidate() {
  if (!has_source()) return;
  if (source_.window != nullptr) source_.window->invalidate();
  // Steps and loads refuse open scopes. So if a scope holds the unit, modify_parameters() has made
  // the new values, and has written them into the memory that the scope holds.
  if (is_whole() && holds_ == 0) mark_stale();
}

/// Marks the values of a whole unit as old.
void GatheredUnits::Unit::mark_stale() {
  is_stale_ = true;
  is_ready_ = false;
  // Set has_old_ before drop_old() reads the counts. A reader that ends does the reverse: it
  // decrements its count before it reads has_old_. So either drop_old() sees that the reader has
  // ended, or the reader sees has_old_ and calls drop_old() itself.
  has_old_ = true;
  drop_old();
}

/// Keeps `memory`, which has been detached from the unit, for the operators that read it.
void GatheredUnits::Unit::set_aside(at::Tensor memory) {
  is_stale_ = false;
  readers_.load()->old_memory = std::move(memory);
  replace_readers();
  has_old_ = true;
  drop_old();
}

/// From now on another Readers object counts the operators that begin. all_readers_ is in the order
/// of the memory blocks, with the Readers of the present block last.
void GatheredUnits::Unit::replace_readers() {
  const auto spare =
      std::find_if(all_readers_.begin(), all_readers_.end(), [this](const auto& readers) {
        return readers.get() != readers_ && readers->pins == 0 && !readers->old_memory.defined();
      });
  if (spare != all_readers_.end()) {
    std::rotate(spare, spare + 1, all_readers_.end());
  } else {
    all_readers_.push_back(std::make_unique<Readers>(*this));
  }
  readers_ = all_readers_.back().get();
}

/// Frees each block of old values for which neither its own Readers nor any earlier Readers count
/// an operator. (An operator counted with earlier Readers may have read the data pointer while the
/// block was attached.)
void GatheredUnits::Unit::drop_old() {
  const UnobservedScope unobserved;
  bool is_read = false;
  bool has_earlier_reader = all_.is_closed_ && holds_ > 0;
  for (const auto& readers : all_readers_) {
    has_earlier_reader = has_earlier_reader || readers->pins > 0;
    if (!readers->old_memory.defined()) continue;
    if (has_earlier_reader) {
      is_read = true;
      continue;
    }
    const at::Tensor memory = std::exchange(readers->old_memory, at::Tensor());
    if (all_.is_closed_) continue;
    give_memory(memory, std::exchange(readers->is_temporary, false));
    ++all_.counts_.frees;
  }
  if (is_stale_ && can_free()) free(After::kFence);
  has_old_ = is_read || is_stale_;
}

void GatheredUnits::Unit::close() {
  is_ready_ = false;
  is_stale_ = false;
  if (is_whole()) readers_.load()->old_memory = buffer_.detach();
  for (const auto& readers : all_readers_) {
    if (readers->old_memory.defined()) {
      all_.memory_.forget(index_, readers->old_memory, readers->is_temporary);
    }
  }
  source_ = {};
}

}  // namespace tessera::internal
