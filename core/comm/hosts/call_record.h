#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "tessera/collective.h"
#include "tessera/core/comm/groups/call_tag.h"
#include "tessera/core/comm/hosts/levels.h"

namespace tessera::internal::hosts {

/// What a rank calls, as the ranks compare it. Plain bytes.
///
/// Note [Calls of two levels]
/// ~~~~~~~~~~~~~~~~~~~~~~~~~~
/// A collective of two levels is several of its parts, whose own comparison would name sizes that
/// nobody asked for, and would find some differences late or on some ranks only. So the ranks of a
/// host exchange their calls first. If these are equal, each rank exchanges its host's call, and
/// which slices the host's ranks ask for, with its column: then every rank has seen all calls, and
/// all find the same difference. If they differ inside a host, its ranks poison the world, and the
/// others, which wait for them, throw the same cause. A rank whose exchange is over knows that all
/// ranks have called, so a barrier is nothing else.
struct CallRecord {
  CallSignature signature;
  int32_t slice = -1;
  CallTag<128> tag;

  CallRecord(const CallSignature& signature, int slice, std::string_view tag);
  /// Uninitialised bytes that others fill.
  CallRecord() = default;

  bool is_same_call(const CallRecord& other) const;
  std::string text() const;
};
static_assert(std::is_trivially_copyable_v<CallRecord>);

/// Collective, blocking. Compares the calls of all ranks; returns the slices that they ask for, by
/// rank. Throws CommError, with a cause and no context, if they differ.
std::vector<int> compare_calls(const Levels& levels, const CallRecord& own);

}  // namespace tessera::internal::hosts
