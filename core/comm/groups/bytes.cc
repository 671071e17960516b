#include <algorithm>
#include <cstring>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include "tessera/process_group.h"

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

/// By rank. Collective.
std::vector<int64_t> gather_lengths(ProcessGroup& group, size_t length, std::string_view tag) {
  const at::Tensor own = at::full({1}, static_cast<int64_t>(length), at::kLong);
  const at::Tensor all = at::zeros({group.size()}, at::kLong);
  group.all_gather_on_host(all, own, tag);
  const auto* first = all.const_data_ptr<int64_t>();
  return {first, first + group.size()};
}

/// The beginnings of equal parts, by rank.
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
  // The root's lengths. A wrong number of texts is sent in their place: then all ranks throw.
  const at::Tensor lengths = at::zeros({size()}, at::kLong);
  auto* const own_lengths = lengths.mutable_data_ptr<int64_t>();
  if (rank() == root && static_cast<int>(bytes.size()) != size()) {
    own_lengths[0] = -1 - static_cast<int64_t>(bytes.size());
  } else if (rank() == root) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      own_lengths[i] = static_cast<int64_t>(bytes[i].size());
    }
  }
  const at::Tensor lengths_here = lengths.to(device());
  broadcast(lengths_here, root, tag)->wait();
  const at::Tensor known = lengths_here.cpu();
  const auto* length_of = known.const_data_ptr<int64_t>();
  TORCH_CHECK(length_of[0] >= 0, "[comm] scatter_bytes: got ", -1 - length_of[0],
              " texts on the root, rank ", root, ", expected ", size(),
              ", one for each rank; correct them");
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

}  // namespace tessera
