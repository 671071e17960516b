#include "tessera/core/comm/refusal.h"

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/text_exchange.h"

namespace tessera {

void refuse_together(ProcessGroup& group, std::string_view problem, std::string_view what) {
  const std::vector<std::string> problems = exchange_texts(group, problem, "refusal");
  std::string message;
  for (size_t rank = 0; rank < problems.size(); ++rank) {
    if (problems[rank].empty()) continue;
    absl::StrAppend(&message, message.empty() ? "" : "\n", "[",
                    absl::string_view(what.data(), what.size()), "] rank ", rank, ": ",
                    problems[rank]);
  }
  TORCH_CHECK(message.empty(), message);
}

}  // namespace tessera
