#include "tessera/process_group.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <numeric>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <absl/strings/ascii.h>
#include <absl/strings/escaping.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

namespace tessera {
namespace {

at::Tensor bytes_of(std::string_view text, int64_t padded_bytes) {
  const at::Tensor made = at::zeros({padded_bytes}, at::kByte);
  if (!text.empty()) std::memcpy(made.mutable_data_ptr(), text.data(), text.size());
  return made;
}

std::string text_of(const at::Tensor& bytes) {
  if (bytes.numel() == 0) return "";
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())};
}

/// Collective. Returns each rank's `length`, by rank.
std::vector<int64_t> gather_lengths(ProcessGroup& group, size_t length, std::string_view tag) {
  const at::Tensor own = at::full({1}, static_cast<int64_t>(length), at::kLong);
  const at::Tensor all = at::zeros({group.size()}, at::kLong);
  group.all_gather_on_host(all, own, tag);
  const auto* first = all.const_data_ptr<int64_t>();
  return {first, first + group.size()};
}

/// Cuts `all` into equal parts, one per rank. Returns the first lengths[r] bytes of part r, for
/// each rank r.
std::vector<std::string> cut(const at::Tensor& all, const std::vector<int64_t>& lengths) {
  const auto count = static_cast<int64_t>(lengths.size());
  const int64_t part = all.numel() / count;
  std::vector<std::string> texts;
  for (int64_t rank = 0; rank < count; ++rank) {
    texts.push_back(text_of(all.narrow(0, rank * part, lengths[static_cast<size_t>(rank)])));
  }
  return texts;
}

}  // namespace

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
  all_gather(output, input, tag)->wait();  // the caller may change `input` after this returns
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

void ProcessGroup::broadcast_bytes(std::string& bytes, int root, std::string_view tag) {
  const at::Tensor length =
      at::full({1}, static_cast<int64_t>(bytes.size()), at::kLong).to(device());
  broadcast(length, root, tag)->wait();
  const auto count = length.item<int64_t>();
  const at::Tensor sent =
      (rank() == root ? bytes_of(bytes, count) : at::empty({count}, at::kByte)).to(device());
  broadcast(sent, root, tag)->wait();
  if (rank() != root) bytes = text_of(sent.cpu());
}

std::vector<std::string> ProcessGroup::all_gather_bytes(std::string_view bytes,
                                                        std::string_view tag) {
  const std::vector<int64_t> lengths = gather_lengths(*this, bytes.size(), tag);
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  if (longest == 0) return std::vector<std::string>(lengths.size());
  const at::Tensor all = at::empty({longest * size()}, at::kByte);
  all_gather_on_host(all, bytes_of(bytes, longest), tag);
  return cut(all, lengths);
}

std::vector<std::string> ProcessGroup::gather_bytes(std::string_view bytes, int root,
                                                    std::string_view tag) {
  const std::vector<int64_t> lengths = gather_lengths(*this, bytes.size(), tag);
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  const at::Tensor own = bytes_of(bytes, longest).to(device());
  at::Tensor all;
  if (rank() == root) all = at::empty({longest * size()}, own.options());
  gather(all, own, root, tag)->wait();
  if (rank() != root) return {};
  return cut(all.cpu(), lengths);
}

std::string ProcessGroup::scatter_bytes(const std::vector<std::string>& bytes, int root,
                                        std::string_view tag) {
  // The first element is the number of texts on the root, so that all ranks throw if it is wrong.
  // The others are the lengths of the texts.
  const at::Tensor lengths = at::zeros({1 + size()}, at::kLong);
  auto* const words = lengths.mutable_data_ptr<int64_t>();
  words[0] = static_cast<int64_t>(bytes.size());
  for (size_t i = 0; i < bytes.size() && static_cast<int>(i) < size(); ++i) {
    words[1 + i] = static_cast<int64_t>(bytes[i].size());
  }
  const at::Tensor lengths_here = lengths.to(device());
  broadcast(lengths_here, root, tag)->wait();
  const at::Tensor known = lengths_here.cpu();
  const auto* const count = known.const_data_ptr<int64_t>();
  const auto* const length_of = count + 1;
  TORCH_CHECK(*count == size(), "[comm] scatter_bytes: got ", *count, " texts on the root, rank ",
              root, ", expected ", size(), ", one for each rank; correct them");
  const int64_t longest = *std::max_element(length_of, length_of + size());
  at::Tensor all;
  if (rank() == root) {
    std::vector<at::Tensor> parts;
    for (const std::string& text : bytes) parts.push_back(bytes_of(text, longest));
    all = at::cat(parts).to(device());
  }
  const at::Tensor own =
      at::empty({longest}, at::TensorOptions().dtype(at::kByte).device(device()));
  scatter(own, all, root, tag)->wait();
  return text_of(own.cpu().narrow(0, 0, length_of[rank()]));
}

void ProcessGroup::refuse(const Collective& collective, std::string_view detail) const {
  TORCH_CHECK(false, "[comm] ", to_string(collective.op), detail.empty() ? "" : " ", detail, " '",
              collective.tag, "': got a group of backend '", backend(),
              "', expected one that has this operation; use another backend");
}

void check_subgroup(const std::vector<int>& ranks, std::string_view name, int size,
                    const std::set<std::string, std::less<>>& names) {
  const bool is_new = names.find(name) == names.end();
  const bool is_printable = std::none_of(name.begin(), name.end(), [](char c) {
    return absl::ascii_iscntrl(static_cast<uint8_t>(c));
  });
  TORCH_CHECK(is_new && is_printable && !name.empty() && name.find('/') == std::string_view::npos,
              "[comm] subgroup: got the name '",
              absl::Utf8SafeCHexEscape({name.data(), name.size()}),
              "', expected one that this group has not given yet, not empty and without '/' and"
              " control characters; use another name");
  const bool is_ascending =
      std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
  const bool is_valid = is_ascending && !ranks.empty() && ranks.front() >= 0 && ranks.back() < size;
  TORCH_CHECK(is_valid, "[comm] subgroup '", name, "': got ranks [", absl::StrJoin(ranks, ", "),
              "], expected strictly ascending ranks from 0 to ", size - 1,
              "; sort them and leave out duplicates");
}

int64_t check_allocate(int64_t numel, at::ScalarType dtype) {
  const auto element_bytes = static_cast<int64_t>(c10::elementSize(dtype));
  constexpr int64_t kMost = std::numeric_limits<int64_t>::max() / 16;
  TORCH_CHECK(numel >= 0 && numel <= kMost, "[comm] allocate: got ", numel,
              " elements, expected 0 to ", kMost, "; check the size");
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
  // subgroup() is collective, so every rank also takes part in making the groups that it is not in.
  std::shared_ptr<ProcessGroup> own;
  for (const auto& [color, ranks] : ranks_of) {
    auto made = group.subgroup(ranks, absl::StrCat(std::string(name), " ", color));
    if (made != nullptr) own = std::move(made);
  }
  return own;
}

}  // namespace tessera
