#include "tessera/core/comm/flight_recorder/flight_ring.h"

#include <time.h>

#include <algorithm>
#include <cstring>

#include <absl/strings/str_cat.h>

namespace tessera::internal {
namespace {

// Of the word that end() changes alone.
constexpr size_t kEndWord = offsetof(FlightRecord, end_ns) / sizeof(uint64_t);

}  // namespace

int64_t flight_time_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<int64_t>(now.tv_sec) * 1000000000 + now.tv_nsec;
}

std::string FlightRecord::text() const {
  return absl::StrCat(sequence >= 0 ? absl::StrCat("#", sequence, " ") : std::string(),
                      describe(signature, tag.beginning()), " on group '",
                      std::string(group.beginning()), "'");
}

uint64_t FlightRing::begin(const CallSignature& signature, int64_t sequence, std::string_view tag,
                           std::string_view group) {
  FlightRecord record;
  record.sequence = sequence;
  record.begin_ns = flight_time_ns();
  record.signature = signature;
  record.tag.set(tag);
  record.group.set(group);
  Words words;
  std::memcpy(words.data(), &record, sizeof(record));
  const uint64_t number = begun_.fetch_add(1, std::memory_order_relaxed);
  Slot& slot = slots_[number % kRecords];
  // A thread that was kept waiting here while others made kRecords calls meets one of them in its
  // slot, which keeps it.
  uint64_t version = slot.version.load(std::memory_order_relaxed);
  if (version > number || !slot.version.compare_exchange_strong(version, kWritten)) return number;
  // Each word is released after this: a reader that sees one sees that the old record is gone.
  for (size_t i = 0; i < kWords; ++i) slot.words[i].store(words[i], std::memory_order_release);
  slot.version.store(number + 1, std::memory_order_release);
  return number;
}

void FlightRing::end(uint64_t number) {
  Slot& slot = slots_[number % kRecords];
  if (slot.version.load(std::memory_order_relaxed) != number + 1) return;
  slot.words[kEndWord].store(static_cast<uint64_t>(flight_time_ns()), std::memory_order_relaxed);
}

bool FlightRing::read(uint64_t number, FlightRecord& record) const {
  const Slot& slot = slots_[number % kRecords];
  if (slot.version.load(std::memory_order_acquire) != number + 1) return false;
  Words words;
  for (size_t i = 0; i < kWords; ++i) words[i] = slot.words[i].load(std::memory_order_acquire);
  if (slot.version.load(std::memory_order_relaxed) != number + 1) return false;
  std::memcpy(static_cast<void*>(&record), words.data(), sizeof(record));
  return true;
}

std::vector<FlightRecord> FlightRing::last() const {
  const uint64_t end = begun();
  std::vector<FlightRecord> records;
  const uint64_t kept = std::min(end, kRecords);
  for (uint64_t number = end - kept; number < end; ++number) {
    FlightRecord record;
    if (read(number, record)) records.push_back(record);
  }
  return records;
}

}  // namespace tessera::internal
