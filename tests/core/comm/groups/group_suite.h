#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tessera/process_group.h"

namespace tessera::internal::testing {

/// A backend under test: how its ranks run, and which parts of the API it lacks.
struct GroupBackend {
  std::string name;
  std::vector<int> world_sizes;
  /// Runs the body on `size` ranks; throws the error of a rank.
  std::function<void(int size, const std::function<void(std::shared_ptr<ProcessGroup>)>&)> run;
  /// Blocks until results are on the host.
  std::function<void(Work&)> wait = [](Work& work) { work.wait(); };
  bool has_bitwise = true;
  bool reduces_int16 = true;
  bool has_any_source = true;
  bool in_one_process = true;   ///< otherwise each rank of one existing world runs its own body
  bool compares_counts = true;  ///< of all_to_all
  bool rounds_once = true;      ///< means of 16 bits, whatever the number of ranks
  bool matches_by_tag = true;   ///< otherwise messages match in the order of the calls
  int64_t largest = 70001;      ///< elements; more than one chunk where ranks stage
};

/// The backend's part of the test's name.
inline void PrintTo(const GroupBackend& backend, std::ostream* out) { *out << backend.name; }

/// Each test runs at every world size of the backend and compares with closed forms.
void test_reductions(const GroupBackend& backend);
void test_moves(const GroupBackend& backend);
void test_uneven_all_to_all(const GroupBackend& backend);
void test_coalesced_and_bytes(const GroupBackend& backend);
void test_subgroups(const GroupBackend& backend);
void test_thousand_operations(const GroupBackend& backend);
/// Runs every order in which ranks can arrive.
void test_arrival_in_any_order(const GroupBackend& backend);
/// Calls begin after random times that differ by rank, and are waited for in any order.
void test_delayed_calls(const GroupBackend& backend);
/// Calls that continue another group's call (Collective::after).
void test_chained_calls(const GroupBackend& backend);
/// The same while a rank is blocked in a third group by ranks that wait for the second call.
void test_chains_beside_other_calls(const GroupBackend& backend);
void test_messages(const GroupBackend& backend);
void test_messages_beside_collectives(const GroupBackend& backend);
void test_refusals(const GroupBackend& backend);
/// Each moves more than 2^31 bytes on two ranks; the tensors are views that need little memory.
void test_large_collectives(const GroupBackend& backend);
/// The same, sent from one rank to the other.
void test_large_message(const GroupBackend& backend);

}  // namespace tessera::internal::testing
