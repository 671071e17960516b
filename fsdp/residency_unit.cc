// What operators do with a unit, from whatever thread, and what becomes of memory that they still
// read; see residency.cc for the rest.
#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include <absl/strings/str_cat.h>

#include "tessera/core/access/unobserved.h"
#include "tessera/core/error_text.h"
#include "tessera/fsdp/residency.h"

namespace tessera {

// Most operators read the unit that the one before read. That needs no mutex: such a unit is ready,
// and a pin is a count. Who wants to free it first makes it not ready and then looks at the count,
// a reader counts first and then looks whether it is ready, both in one total order; so either the
// reader is seen, and the unit stays, or the reader sees that it has to wait for the mutex.
//
// Note [Old values]
// An operator holds addresses in a unit's memory from its start to its end, and one of another
// thread may be at work while step() changes the values, or the engine ends. What it reads must not
// be freed or overwritten meanwhile, and nobody else may take it for the present values. So each
// memory has Readers of its own, who are told apart when they end. When values change, units that
// nobody reads are freed, and the others are stale. The next use of such a unit fills other memory,
// which takes the place of the old one; an operator that has begun and has not asked for its
// address yet finds one or the other, never none. So a memory is kept for its readers and for those
// of earlier ones, of whom the last gives it back. A reader counts itself with the readers it found
// and then looks whether they are still the present ones; who replaces them does so first and then
// looks at the count: the order that the mutex is saved by.
//
// Where ranks share parameters there is nothing to go stale: such an operator reads what is there.

Residency::Unit::Unit(Residency& residency, size_t index, FreeableBuffer& buffer,
                      std::unique_ptr<UnitSource> source)
    : residency_(residency), index_(index), buffer_(buffer), source_(std::move(source)) {
  replace_readers();
}

/// Operators that come from now on are counted apart. The readers stand in the order of their
/// memories, the present ones last.
void Residency::Unit::replace_readers() {
  const auto spare =
      std::find_if(all_readers_.begin(), all_readers_.end(), [this](const auto& readers) {
        return readers.get() != readers_ && readers->pins == 0 && !readers->kept.defined();
      });
  if (spare != all_readers_.end()) {
    std::rotate(spare, spare + 1, all_readers_.end());
  } else {
    all_readers_.push_back(std::make_unique<Readers>(*this));
  }
  readers_ = all_readers_.back().get();
}

AccessTarget::Pin& Residency::Unit::pin(Use use) noexcept {
  Readers* found = nullptr;
  if (use == Use::kRead) {
    found = readers_;
    ++found->pins;
    if (is_ready_ && readers_ == found) return *found;
  }
  const std::lock_guard lock(residency_.mutex);
  if (found != nullptr) --found->pins;
  if (has_old_) residency_.drop_old(*this);
  if (!residency_.is_closed_) {
    if (use == Use::kWrite && residency_.writable_holds_ == 0) return refuse();
    try {
      residency_.use(*this);
    } catch (const std::exception& error) {
      residency_.remember(*this, error);
    }
  }
  Readers& present = *readers_;
  ++present.pins;
  return present;
}

void Residency::Unit::Readers::unpin(Use /*use*/) noexcept {
  Residency& residency = unit.residency_;
  if (!residency.setting_.free_eagerly) {
    if (--pins > 0 || !unit.has_old_) return;
    const std::lock_guard lock(residency.mutex);
    residency.end_use(unit);
    return;
  }
  const std::lock_guard lock(residency.mutex);
  --pins;
  residency.end_use(unit);
}

/// Writing is refused outside modify_parameters().
AccessTarget::Pin& Residency::Unit::refuse() {
  if (refused_.pins++ == 0) buffer_.forbid(residency_.write_error(*this));
  return refused_;
}

void Residency::Unit::Refused::unpin(Use /*use*/) noexcept {
  Residency& residency = unit.residency_;
  const std::lock_guard lock(residency.mutex);
  --pins;
  if (pins == 0 && !residency.is_closed_) unit.buffer_.permit();
  residency.end_use(unit);
}

/// An operator has ended.
void Residency::end_use(Unit& unit) {
  if (unit.has_old_) {
    // What takes that memory next runs behind what the operator has queued.
    if (!is_closed_ && setting_.streams != nullptr) setting_.streams->pass();
    drop_old(unit);
  }
  if (!is_closed_ && setting_.free_eagerly && can_free(unit)) free(unit, After::kUse);
}

/// The values of a whole unit are old.
void Residency::mark_stale(Unit& unit) {
  unit.is_stale_ = true;
  unit.is_ready_ = false;
  unit.has_old_ = true;  // before it looks at the count, as a reader counts before it looks here
  drop_old(unit);
}

/// Keeps `memory`, which the unit has no more, for those who read it.
void Residency::set_aside(Unit& unit, at::Tensor memory) {
  unit.is_stale_ = false;
  unit.readers_.load()->kept = std::move(memory);
  unit.replace_readers();
  unit.has_old_ = true;
  drop_old(unit);
}

/// Gives back the memory of old values that nobody reads any more: neither its own readers nor
/// earlier ones, who may have asked for their address when it was the present one.
void Residency::drop_old(Unit& unit) {
  const Unobserved unobserved;
  bool is_read = false;
  bool has_earlier_reader = is_closed_ && unit.holds_ > 0;
  for (const auto& readers : unit.all_readers_) {
    has_earlier_reader = has_earlier_reader || readers->pins > 0;
    if (!readers->kept.defined()) continue;
    if (has_earlier_reader) {
      is_read = true;
      continue;
    }
    const at::Tensor memory = std::exchange(readers->kept, at::Tensor());
    if (is_closed_) continue;
    give_memory(unit, memory, std::exchange(readers->is_temporary, false));
    ++counts_.frees;
  }
  if (unit.is_stale_ && can_free(unit)) free(unit, After::kFence);
  unit.has_old_ = is_read || unit.is_stale_;
}

// --- Failure ---

void Residency::remember(Unit& unit, const std::exception& error) {
  if (const auto* failed = dynamic_cast<const CommError*>(&error);
      failed != nullptr && !failure_.has_value()) {
    failure_ = *failed;
  }
  if (unit.is_stale_) set_aside(unit, unit.buffer_.detach());
  if (unit.original_error_.empty()) unit.original_error_ = unit.buffer_.access_error();
  // The operator goes on and meets the storage; let that say why it has no data.
  unit.buffer_.set_access_error(error_text(error));
}

std::string Residency::write_error(const Unit& unit) const {
  const PlannedUnit& planned = plan_[unit.index_];
  std::string names;
  constexpr size_t kMostNames = 4;
  for (size_t i = 0; i < planned.parameters.size() && i < kMostNames; ++i) {
    absl::StrAppend(&names, i == 0 ? "'" : ", '", table_[planned.parameters[i]].name, "'");
  }
  if (planned.parameters.size() > kMostNames) absl::StrAppend(&names, ", ...");
  return absl::StrCat("[fsdp] unit '", planned.name,
                      "': an operator writes one of its parameters (", names,
                      ") outside engine->modify_parameters(), and the shards of the other ranks "
                      "would not know; write it inside, so that all ranks take the new values");
}

}  // namespace tessera
