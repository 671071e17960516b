#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/core/comm/process_group.h"
#include "tessera/core/comm/shm/member.h"
#include "tessera/core/comm/shm/window.h"
#include "tessera/core/sched/lane.h"

namespace tessera::shm {

/// Ranks of one host that work in each other's memory. Buffers from allocate() are read and written
/// where they are; private ones pass through a staging area of kStagingBytes per rank. Ranks may be
/// processes or threads of one process, and may mix both kinds of buffer in one collective. In a
/// child of fork(), which is no rank, every call throws CommError at once, and the destructor lets
/// go of what is this process's own: see Note [Fork].
class Group final : public ProcessGroup {
 public:
  static constexpr int64_t kStagingBytes = int64_t{256} << 10;

  Group(std::unique_ptr<Member> member, Lane::Mode mode);
  ~Group() override;

  int rank() const override { return member_->rank(); }
  int size() const override { return member_->size(); }
  std::string_view name() const override { return member_->group_name(); }
  std::string_view backend() const override { return "shm"; }
  bool runs_in_background() const override { return lane_.mode() == Lane::Mode::kThread; }

  /// Bytes: each rank reads numel / size() elements of every rank and writes them to every rank.
  std::shared_ptr<Work> all_reduce(const at::Tensor& tensor, ReduceOp op,
                                   std::string_view tag = {}) override;
  /// Bytes: each rank reads its slice of every rank's input.
  std::shared_ptr<Work> reduce_scatter(const at::Tensor& output, const at::Tensor& input,
                                       ReduceOp op, std::string_view tag = {},
                                       int slice = kOwnRank) override;
  /// Bytes: each rank copies every other rank's input.
  std::shared_ptr<Work> all_gather(const at::Tensor& output, const at::Tensor& input,
                                   std::string_view tag = {}) override;
  std::shared_ptr<Work> broadcast(const at::Tensor& tensor, int root,
                                  std::string_view tag = {}) override;
  void barrier(std::string_view tag = {}) override;
  at::Tensor allocate(int64_t numel, at::ScalarType dtype) override;
  /// Costs one collective and the mapping of peers' segments that are not mapped yet.
  std::unique_ptr<tessera::Window> make_window(const at::Tensor& own,
                                               std::string_view name) override;
  std::unique_ptr<tessera::SharedBuffer> make_shared_buffer(int64_t bytes,
                                                            std::string_view name) override;
  std::shared_ptr<ProcessGroup> subgroup(const std::vector<int>& ranks,
                                         std::string_view name) override;
  void abort(std::string_view cause) noexcept override;

 private:
  template <typename Body>
  std::shared_ptr<Work> run(std::string_view tag, Body&& body);
  template <typename Body>
  void guard(Body&& body);
  CallDescriptor describe_call(Op op, std::string_view tag, const at::Tensor& tensor);
  void expose(CallDescriptor& call, const at::Tensor& tensor);
  char* staging();
  bool anyone_staged();
  void phase() { member_->arrive_and_wait(lane_); }
  template <typename Stage, typename Part>
  void in_chunks(const CallDescriptor& call, int64_t numel, int64_t chunk, Stage&& stage,
                 Part&& part);

  void do_all_reduce(const at::Tensor& tensor, ReduceOp op, std::string_view tag);
  void do_reduce_scatter(const at::Tensor& output, const at::Tensor& input, ReduceOp op,
                         std::string_view tag, int slice);
  void do_all_gather(const at::Tensor& output, const at::Tensor& input, std::string_view tag);
  void do_broadcast(const at::Tensor& tensor, int root, std::string_view tag);
  void do_barrier(std::string_view tag);
  std::unique_ptr<Window> do_make_window(const at::Tensor& own, std::string_view name,
                                         std::string& problem);
  std::unique_ptr<Member> do_subgroup(const std::vector<int>& ranks, std::string_view name);

  const int uncaught_at_start_;
  std::unique_ptr<Member> member_;
  std::shared_ptr<Arena> arena_;
  char* staging_ = nullptr;
  std::vector<char*> sources_;  // by rank; kept so that a collective allocates nothing
  std::set<std::string, std::less<>> subgroup_names_;
  Lane lane_;  // last: its thread uses the rest
};

}  // namespace tessera::shm
