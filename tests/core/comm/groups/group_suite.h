#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/process_group.h"

namespace tessera::internal::testing {

/// A backend under test: how its ranks run, and what of the group's surface it lacks.
struct GroupBackend {
  std::string name;
  std::vector<int> world_sizes;
  /// Runs the body on that many ranks; throws what a rank threw.
  std::function<void(int size, const std::function<void(std::shared_ptr<ProcessGroup>)>&)> run;
  /// Until results are on the host.
  std::function<void(Work&)> wait = [](Work& work) { work.wait(); };
  bool has_bitwise = true;
  bool reduces_int16 = true;
  bool has_any_source = true;
  bool in_one_process = true;   ///< else each rank of one world that is there runs its own body
  bool compares_counts = true;  ///< of all_to_all
  bool rounds_once = true;      ///< means of 16 bits, whatever the number of ranks
  bool matches_by_tag = true;   ///< messages; else in the order of the calls
  int64_t largest = 70001;      ///< elements; more than one chunk where ranks stage
};

/// The backends' own part of the test's name.
inline void PrintTo(const GroupBackend& backend, std::ostream* out) { *out << backend.name; }

/// Each runs at every world size of the backend and compares with closed forms.
void test_reductions(const GroupBackend& backend);
void test_moves(const GroupBackend& backend);
void test_uneven_all_to_all(const GroupBackend& backend);
void test_coalesced_and_bytes(const GroupBackend& backend);
void test_subgroups(const GroupBackend& backend);
void test_thousand_operations(const GroupBackend& backend);
/// In every order in which the ranks may come.
void test_arrival_in_any_order(const GroupBackend& backend);
/// Calls that begin after random times, on each rank another, and are waited for in any order.
void test_delayed_calls(const GroupBackend& backend);
/// Calls that go on with another group's (Collective::after).
void test_chained_calls(const GroupBackend& backend);
/// The same while a rank is blocked in a third group for others that wait for the second call.
void test_chains_beside_other_calls(const GroupBackend& backend);
void test_messages(const GroupBackend& backend);
void test_messages_beside_collectives(const GroupBackend& backend);
void test_refusals(const GroupBackend& backend);
/// More than 2^31 bytes each, on two ranks, of views that need little memory.
void test_large_collectives(const GroupBackend& backend);
/// The same sent to the other.
void test_large_message(const GroupBackend& backend);

}  // namespace tessera::internal::testing
