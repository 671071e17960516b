#include "tessera/core/comm/agreement/text_exchange.h"

#include <algorithm>
#include <cstring>

#include <ATen/ops/zeros.h>

namespace tessera::internal {

std::vector<std::string> exchange_texts(ProcessGroup& group, std::string_view text,
                                        std::string_view tag) {
  const int64_t ranks = group.size();
  const at::Tensor length = at::zeros({1}, at::kLong);
  length.mutable_data_ptr<int64_t>()[0] = static_cast<int64_t>(text.size());
  const at::Tensor lengths = at::zeros({ranks}, at::kLong);
  group.all_gather_on_host(lengths, length, tag);
  const int64_t* length_of = lengths.const_data_ptr<int64_t>();
  const int64_t longest = *std::max_element(length_of, length_of + ranks);
  std::vector<std::string> texts(static_cast<size_t>(ranks));
  if (longest == 0) return texts;

  // Padded to the longest, because all-gather moves equal shares.
  const at::Tensor padded = at::zeros({longest}, at::kByte);
  if (!text.empty()) std::memcpy(padded.mutable_data_ptr(), text.data(), text.size());
  const at::Tensor all = at::zeros({ranks * longest}, at::kByte);
  group.all_gather_on_host(all, padded, tag);
  const auto* bytes = reinterpret_cast<const char*>(all.const_data_ptr<uint8_t>());
  for (int64_t rank = 0; rank < ranks; ++rank) {
    texts[static_cast<size_t>(rank)].assign(bytes + rank * longest,
                                            static_cast<size_t>(length_of[rank]));
  }
  return texts;
}

}  // namespace tessera::internal
