#include "tessera/process_group.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

namespace tessera {

std::shared_ptr<Work> ProcessGroup::check_and_run(const Collective& collective) {
  check(collective, rank(), size(), device());
  return run(collective);
}

std::shared_ptr<Work> ProcessGroup::start_gather_on_host(const at::Tensor& output,
                                                         const at::Tensor& input,
                                                         std::string_view tag) {
  if (can().has_host_channel) {
    return check_and_run({.op = Op::kHostGather, .output = output, .input = input, .tag = tag});
  }
  all_gather(output, input, tag)->wait();  // `input` may change when the call has returned
  return completed_work();
}

std::unique_ptr<Window> ProcessGroup::make_window(const at::Tensor& /*own*/,
                                                  std::string_view name) {
  TORCH_CHECK(false, "[comm] make_window '", name, "': got a group of backend '", backend(),
              "' on ", device(),
              ", expected one whose ranks read each other's memory; gather instead, or use a group"
              " of backend 'shm' on the CPU");
}

std::unique_ptr<SharedBuffer> ProcessGroup::make_shared_buffer(int64_t /*bytes*/,
                                                               std::string_view /*name*/) {
  return nullptr;
}

std::vector<std::shared_ptr<Work>> ProcessGroup::batch_isend_irecv(
    const std::vector<Message>& messages) {
  std::vector<Collective> calls;
  calls.reserve(messages.size());
  for (const Message& message : messages) {
    TORCH_CHECK(message.op == Op::kSend || message.op == Op::kRecv,
                "[comm] batch_isend_irecv: got ", to_string(message.op),
                ", expected kSend or kRecv; call collectives one by one");
    calls.push_back({.op = message.op,
                     .output = message.tensor,
                     .input = message.tensor,
                     .peer = message.peer,
                     .tag = message.tag});
    check(calls.back(), rank(), size(), device());
  }
  return run_batch(calls);
}

std::vector<std::shared_ptr<Work>> ProcessGroup::run_batch(
    const std::vector<Collective>& messages) {
  std::vector<std::shared_ptr<Work>> works;
  works.reserve(messages.size());
  for (const Collective& message : messages) works.push_back(run(message));
  return works;
}

void ProcessGroup::refuse(const Collective& collective, std::string_view detail) const {
  TORCH_CHECK(false, "[comm] ", to_string(collective.op), detail.empty() ? "" : " ", detail, " '",
              collective.tag, "': got a group of backend '", backend(),
              "', expected one that has this operation; use another backend");
}

void check_subgroup(const std::vector<int>& ranks, std::string_view name, int size,
                    const std::set<std::string, std::less<>>& names) {
  TORCH_CHECK(!name.empty(),
              "[comm] subgroup: got an empty name, expected a new one; give it a name");
  TORCH_CHECK(name.find('/') == std::string_view::npos, "[comm] subgroup: got the name '", name,
              "', expected one without '/', which stands between the names of a group and of those "
              "made of it; use another name");
  TORCH_CHECK(names.find(name) == names.end(), "[comm] subgroup: got the name '", name,
              "', expected one that this group has not given yet; use another name");
  const bool is_ascending =
      std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
  const bool is_valid = is_ascending && !ranks.empty() && ranks.front() >= 0 && ranks.back() < size;
  TORCH_CHECK(is_valid, "[comm] subgroup '", name, "': got ranks [", absl::StrJoin(ranks, ", "),
              "], expected strictly ascending ranks from 0 to ", size - 1,
              "; sort them and leave out duplicates");
}

int64_t check_allocate(int64_t numel, at::ScalarType dtype) {
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(dtype));
  TORCH_CHECK(numel >= 0 && numel <= std::numeric_limits<int64_t>::max() / 16,
              "[comm] allocate: got ", numel, " elements, expected 0 or more; check the size");
  return numel * element_bytes;
}

std::shared_ptr<ProcessGroup> duplicate(ProcessGroup& group, std::string_view name) {
  std::vector<int> ranks(group.size());
  std::iota(ranks.begin(), ranks.end(), 0);
  return group.subgroup(ranks, name);
}

std::shared_ptr<ProcessGroup> split(ProcessGroup& group, const std::vector<int>& color_of_rank,
                                    std::string_view name) {
  const auto count = static_cast<int>(color_of_rank.size());
  TORCH_CHECK(count == group.size(), "[comm] split '", name, "': got ", count,
              " colours, expected ", group.size(), ", one for each rank of group '", group.name(),
              "'; correct them");
  std::map<int, std::vector<int>> ranks_of;
  for (int rank = 0; rank < count; ++rank) ranks_of[color_of_rank[rank]].push_back(rank);
  // Every rank takes part in making every group, its own or not.
  std::shared_ptr<ProcessGroup> own;
  for (const auto& [color, ranks] : ranks_of) {
    auto made = group.subgroup(ranks, absl::StrCat(std::string(name), " ", color));
    if (made != nullptr) own = std::move(made);
  }
  return own;
}

}  // namespace tessera
