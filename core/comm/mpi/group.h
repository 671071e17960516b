#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/groups/host_ranks.h"
#include "tessera/core/comm/groups/unwinding.h"
#include "tessera/core/comm/mpi/member.h"
#include "tessera/process_group.h"

namespace tessera::internal::mpi {

/// Ranks that communicate by MPI between CPUs, on any number of hosts. Collectives run on the
/// process's progress thread (Progress), one after the other in each group; sums are those of
/// shared memory, to the bit (Note [Traffic]). Windows are served by the owners' progress threads
/// (Note [Windows over MPI]); there are no shared buffers. A group
/// that reduces holds 8 MiB, or 32 KiB for each rank if that is more. In a child of fork() every
/// call throws CommError at once.
class Group final : public ProcessGroup, public Recorded, public WatchesHost {
 public:
  /// Makes the member known to its world.
  explicit Group(std::shared_ptr<Member> member);
  ~Group() override;

  int rank() const override { return member_->rank(); }
  int size() const override { return member_->size(); }
  std::string_view name() const override { return member_->name(); }
  std::string_view backend() const override { return "mpi"; }
  Capabilities can() const override {
    return {.in_background = true, .one_sided_reads = true, .crosses_network = true};
  }

  std::shared_ptr<Work> run(const Collective& collective) override;
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override;
  std::unique_ptr<tessera::Window> make_window(const at::Tensor& own,
                                               std::string_view name) override;
  std::unique_ptr<SharedBuffer> make_shared_buffer(int64_t bytes, std::string_view name) override;
  std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks,
                                         std::string_view name) override;
  void abort(std::string_view cause) noexcept override;

  World& world() { return member_->world(); }
  std::shared_ptr<FlightRing> flights() const override { return member_->world().ring(); }
  void watch(std::weak_ptr<HostRanks> host) override;

 private:
  const Unwinding unwinding_;
  const std::shared_ptr<Member> member_;
  std::set<std::string, std::less<>> subgroup_names_;
  int64_t sequence_ = -1;
};

/// Collective over the ranks of `comm`, which is duplicated. MPI is initialised at
/// MPI_THREAD_SERIALIZED or above. Throws CommError where ranks do not come, which names
/// `function`, what the program has called.
std::shared_ptr<Group> make_world(const char* function, const Calls& calls, Handle comm,
                                  Call::Patience patience);

}  // namespace tessera::internal::mpi
