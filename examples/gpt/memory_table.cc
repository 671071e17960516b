#include "tessera/examples/gpt/memory_table.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include <absl/strings/str_format.h>
#include <torch/torch.h>

#include "tessera/memory_meter.h"

namespace gpt {
namespace {

using tessera::kMemoryClasses;
using tessera::MemoryBytes;

constexpr const char* kKinds[] = {"predicted", "measured", "peak"};
constexpr int64_t kKindCount = 3;
constexpr const char* kPss = "PSS";
constexpr auto kColumns = static_cast<int64_t>(kMemoryClasses) + 1;  // classes and total

std::string name_of(int64_t column) {
  return std::string(column == kColumns - 1 ? "total"
                                            : to_string(static_cast<tessera::MemoryClass>(column)));
}

int width_of(std::string_view name) { return std::max(11, static_cast<int>(name.size()) + 2); }

std::string cell(std::string_view name, int64_t bytes) {
  return absl::StrFormat("%*.2f", width_of(name), static_cast<double>(bytes) / (1 << 20));
}

}  // namespace

std::string memory_table(const tessera::Engine& engine, int reductions,
                         tessera::ProcessGroup& world) {
  MemoryBytes kinds[kKindCount] = {tessera::predicted_memory(engine, reductions),
                                   engine.memory().now(), engine.memory().peak()};
  const int64_t totals[kKindCount] = {kinds[0].total(), kinds[1].total(),
                                      engine.memory().peak_total_bytes()};
  at::Tensor mine = at::zeros({kKindCount * kColumns + 1}, at::kLong);
  for (int64_t kind = 0; kind < kKindCount; ++kind) {
    const at::Tensor row = mine.narrow(0, kind * kColumns, kColumns);
    for (size_t c = 0; c < kMemoryClasses; ++c) {
      row[static_cast<int64_t>(c)] = kinds[kind].by_class[c];
    }
    row[kColumns - 1] = totals[kind];
  }
  mine[-1] = tessera::process_pss_bytes();
  at::Tensor all = at::empty({world.size() * mine.numel()}, at::kLong);
  world.all_gather_on_host(all, mine, "memory");

  // Leave out classes that are empty on all ranks.
  const at::Tensor sums = all.view({world.size(), -1})
                              .narrow(1, 0, kKindCount * kColumns)
                              .reshape({-1, kColumns})
                              .sum(0);
  std::vector<int64_t> shown;
  std::string table = absl::StrFormat("%-23s", "memory, MiB");
  for (int64_t c = 0; c < kColumns; ++c) {
    if (sums[c].item<int64_t>() == 0) continue;
    shown.push_back(c);
    table += absl::StrFormat("%*s", width_of(name_of(c)), name_of(c));
  }
  table += absl::StrFormat("%*s\n", width_of(kPss), kPss);
  const std::string strategy(to_string(engine.strategy()));
  for (int rank = 0; rank < world.size(); ++rank) {
    const at::Tensor theirs = all.narrow(0, rank * mine.numel(), mine.numel());
    for (int64_t kind = 0; kind < kKindCount; ++kind) {
      table += absl::StrFormat("%-6s rank %-2d %-10s", strategy, rank, kKinds[kind]);
      for (const int64_t c : shown) {
        table += cell(name_of(c), theirs[kind * kColumns + c].item<int64_t>());
      }
      const int64_t pss_bytes = theirs[-1].item<int64_t>();
      if (kind == 1 && pss_bytes >= 0) table += cell(kPss, pss_bytes);
      table += '\n';
    }
  }
  return table;
}

}  // namespace gpt
