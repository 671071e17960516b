// Creation of the fake's communicators.
#include <algorithm>
#include <atomic>

#include "tessera/tests/support/fake_nccl/fake_state.h"

namespace tessera::internal::testing {

/// Keeps aborted communicators, because work on streams refers to them.
std::shared_ptr<OpaqueComm> hold_of(OpaqueComm* comm) {
  static auto* const all = new std::map<OpaqueComm*, std::shared_ptr<OpaqueComm>>();
  auto& found = (*all)[comm];
  if (found == nullptr) found.reset(comm);
  return found;
}

namespace {

OpaqueComm* make_comm(const nccl::Config* config, std::shared_ptr<Clique> clique, int rank) {
  auto* comm = new OpaqueComm();
  comm->name = config->comm_name == nullptr ? "" : config->comm_name;
  comm->rank = rank;
  comm->cta_policy = config->cta_policy;
  comm->clique = std::move(clique);
  hold_of(comm);
  state().live.insert(comm);
  return comm;
}

}  // namespace
}  // namespace tessera::internal::testing

using namespace tessera::internal::testing;  // NOLINT: the C interface below is the fake's own
using tessera::internal::nccl::Config;
using tessera::internal::nccl::OpaqueComm;
using tessera::internal::nccl::Result;
using tessera::internal::nccl::UniqueId;

extern "C" {

Result ncclCommInitRankConfig(OpaqueComm** made, int size, UniqueId id, int rank, Config* config) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  Result failure = Result::kSuccess;
  if (takes_failure("ncclCommInitRankConfig", failure)) return failure;
  if (config->magic != 0xcafebeef || config->blocking != 0) return Result::kInvalidArgument;
  auto& clique = state().cliques[std::string(id.internal, UniqueId::kBytes)];
  if (clique == nullptr) clique = std::make_shared<Clique>(size);
  ++clique->joined;
  *made = make_comm(config, clique, rank);
  record("ncclCommInitRankConfig", *made);
  return begin(**made, [clique] { return clique->joined == clique->size; });
}

Result ncclCommSplit(OpaqueComm* comm, int color, int key, OpaqueComm** made, Config* config) {
  const std::lock_guard<std::mutex> lock(state().mutex);
  record("ncclCommSplit", comm);
  Result failure = Result::kSuccess;
  if (takes_failure("ncclCommSplit", failure)) return failure;
  if (config->blocking != 0 || !comm->waiting.empty()) return Result::kInvalidUsage;
  const auto clique = comm->clique;
  const uint64_t number = comm->splits++;
  auto& split = clique->splits[number];
  split.colors.resize(clique->size);
  split.keys.resize(clique->size);
  split.colors[comm->rank] = color;
  split.keys[comm->rank] = key;
  if (++split.arrived == clique->size) {
    for (int rank = 0; rank < clique->size; ++rank) {
      if (split.colors[rank] >= 0) split.members[split.colors[rank]].push_back(rank);
    }
    for (auto& [of, members] : split.members) {
      std::stable_sort(members.begin(), members.end(),
                       [&](int a, int b) { return split.keys[a] < split.keys[b]; });
      const auto made_of = std::make_shared<Clique>(static_cast<int>(members.size()));
      for (size_t i = 0; i < members.size(); ++i) {
        made_of->world_ranks[i] = clique->world_ranks[members[i]];
      }
      split.made[of] = made_of;
    }
  }
  // As in NCCL, `*made` is set when the parent is no longer in progress, by the thread that polls
  // the parent then.
  return begin(*comm, [comm, clique, number, color, made, name = std::string(config->comm_name),
                       config = *config]() mutable {
    auto& done = clique->splits[number];
    if (done.arrived < clique->size) return false;
    if (color < 0) return true;
    const auto& members = done.members[color];
    const auto place = std::find(members.begin(), members.end(), comm->rank);
    config.comm_name = name.c_str();
    OpaqueComm* const child =
        make_comm(&config, done.made[color], static_cast<int>(place - members.begin()));
    std::atomic_ref(*made).store(child, std::memory_order_release);
    return true;
  });
}

}  // extern "C"
