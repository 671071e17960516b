#include "tessera/tests/support/row.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include <absl/strings/str_cat.h>
#include <torch/nn/module.h>

namespace tessera::testing {

std::ostream& operator<<(std::ostream& stream, const Row& row) { return stream << row.name; }

bool Row::splits_parameters() const {
  return strategy == Strategy::kZero3 || (degrees.has_value() && degrees->parameters > 1);
}

bool Row::keeps_bits() const {
  return !degrees.has_value() || degrees->gradients == 1 ||
         degrees->gradients == degrees->optimizer;
}

bool Row::suits(int world) const {
  if (degrees.has_value()) return world % degrees->optimizer == 0;
  return !reshard_after_forward.has_value() || world % *reshard_after_forward == 0;
}

Degrees Row::degrees_at(int world) const {
  if (degrees.has_value()) return *degrees;
  const auto split_from = [&](Strategy least) { return strategy >= least ? world : 1; };
  return {.parameters = split_from(Strategy::kZero3),
          .gradients = split_from(Strategy::kZero2),
          .optimizer = split_from(Strategy::kZero1)};
}

bool Row::shares_at(int world) const {
  const Degrees degrees = degrees_at(world);
  return shares_parameters && degrees.optimizer > 1 &&
         (degrees.parameters == 1 || degrees.parameters == degrees.optimizer);
}

Row row_of(Strategy strategy) {
  return {.name = std::string(to_string(strategy)), .strategy = strategy};
}

Row hybrid(int parameters, int gradients, int optimizer) {
  return {.name = absl::StrCat("hybrid_", parameters, "_", gradients, "_", optimizer),
          .strategy = Strategy::kHybrid,
          .degrees = Degrees{parameters, gradients, optimizer}};
}

Row apart(Row row) {
  row.name += "_apart";
  row.shares_parameters = false;
  return row;
}

Row resharding(int ranks) {
  return {.name = absl::StrCat("zero3_reshard_", ranks),
          .strategy = Strategy::kZero3,
          .reshard_after_forward = ranks,
          .shares_parameters = false};
}

Row hostile(Row row) {
  row.name += "_hostile";
  row.poison_freed = true;
  row.free_eagerly = true;
  return row;
}

const std::vector<Row>& named_rows() {
  static const std::vector<Row> rows = {row_of(Strategy::kDdp), row_of(Strategy::kZero1),
                                        row_of(Strategy::kZero2), row_of(Strategy::kZero3)};
  return rows;
}

const std::vector<Row>& apart_rows() {
  static const std::vector<Row> rows = {apart(row_of(Strategy::kZero1)),
                                        apart(row_of(Strategy::kZero2)),
                                        apart(row_of(Strategy::kZero3))};
  return rows;
}

std::vector<Row> named_and_apart_rows() {
  std::vector<Row> rows = named_rows();
  rows.insert(rows.end(), apart_rows().begin(), apart_rows().end());
  return rows;
}

std::vector<Row> rows_of_world(int world) {
  Row blocks = apart(row_of(Strategy::kZero3));
  blocks.name = "zero3_blocks";
  blocks.wrap = Row::Wrap::kBlocks;
  Row kept_blocks = resharding(1);
  kept_blocks.name = "zero3_blocks_reshard_1";
  kept_blocks.wrap = Row::Wrap::kBlocks;
  const Row zero3 = row_of(Strategy::kZero3);
  std::vector<Row> candidates = named_and_apart_rows();
  for (Row row :
       {blocks, kept_blocks, resharding(1), resharding(2), hostile(zero3), hostile(apart(zero3)),
        hybrid(1, 1, 2), apart(hybrid(1, 1, 2)), hybrid(2, 2, 2), hostile(apart(hybrid(2, 2, 2))),
        hybrid(1, 2, 4), apart(hybrid(1, 2, 4)), hybrid(2, 4, 4), apart(hybrid(1, 1, 4)),
        hybrid(1, 2, 2), hybrid(3, 3, 3), hybrid(2, 6, 6), apart(hybrid(1, 3, 3))}) {
    candidates.push_back(std::move(row));
  }
  std::vector<Row> rows;
  for (Row& row : candidates) {
    // Where one group is all ranks, a hybrid is a named row.
    const bool is_new = row.reshard_after_forward != world || world == 1;
    if (row.suits(world) && is_new) rows.push_back(std::move(row));
  }
  return rows;
}

Row row_called(const std::string& name) {
  for (const int world : {2, 3, 4, 6}) {
    for (Row& row : rows_of_world(world)) {
      if (row.name == name) return std::move(row);
    }
  }
  throw std::out_of_range("no row is called " + name);
}

Options options_of(const Row& row) {
  Options options{.strategy = row.strategy,
                  .degrees = row.degrees,
                  .reshard_after_forward = row.reshard_after_forward,
                  .precision = row.precision,
                  .share_parameters = row.shares_parameters,
                  .optimizer_in_backward = row.optimizer_in_backward,
                  .prefetch = row.prefetch,
                  .offload = row.offload,
                  .asynchronous_step = row.asynchronous_step,
                  .poison_freed = row.poison_freed,
                  .free_eagerly = row.free_eagerly,
                  .fixed_unsharded_buffers = row.fixed_unsharded_buffers};
  if (row.splits_parameters()) {
    if (row.wrap == Row::Wrap::kLayers) options.wrap = wrap_layers();
    if (row.wrap == Row::Wrap::kWhole) {
      options.wrap = {.name = "nothing", .choose = [](const torch::nn::Module&) {
                        return std::vector<std::vector<std::string>>{};
                      }};
    }
  }
  return options;
}

void set_buckets(Options& options, const Row& row, int64_t bytes) {
  if (row.splits_parameters()) return;
  options.bucket_bytes = bytes;
  options.first_bucket_bytes = std::min(bytes, int64_t{1} << 20);
}

WrapPolicy wrap_layers() {
  const auto choose = [](const torch::nn::Module& model) {
    std::vector<std::vector<std::string>> units;
    for (const auto& module : model.named_modules("", /*include_self=*/false)) {
      if (!module.value()->parameters(/*recurse=*/false).empty()) units.push_back({module.key()});
    }
    return units;
  };
  return {.name = "layers", .choose = choose};
}

}  // namespace tessera::testing
