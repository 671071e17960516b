#include "tessera/power_sgd.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ops/isfinite.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/zeros.h>
#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>
#include <c10/util/Exception.h>

#include "tessera/core/layout/flat_buffer.h"
#include "tessera/ddp/low_rank.h"
#include "tessera/process_group.h"

namespace tessera {
using namespace internal;

namespace {

/// A gradient seen as a matrix in memory order. Rows are its outermost dimension, which is the
/// first one except in transposed parameters.
struct Shape {
  int64_t rows;
  int64_t columns;
  int64_t rank;  // of the low-rank matrix that approximates it
};

/// Returns the shape of a parameter's gradient as a matrix; nullopt if it is not to be compressed.
std::optional<Shape> shape_of(const at::Tensor& parameter, const PowerSgdOptions& options) {
  const int64_t numel = parameter.numel();
  if (parameter.dim() < 2 || numel == 0) return std::nullopt;
  const std::vector<int64_t> strides = flat_strides(parameter);
  int64_t rows = parameter.size(0);
  for (int64_t d = 1; d < parameter.dim() && rows > 1 && strides[0] * parameter.size(0) != numel;
       ++d) {
    if (strides[static_cast<size_t>(d)] * parameter.size(d) == numel) rows = parameter.size(d);
  }
  Shape shape{.rows = rows, .columns = numel / rows, .rank = 0};
  shape.rank = std::min({options.matrix_approximation_rank, shape.rows, shape.columns});
  const int64_t compressed = (shape.rows + shape.columns) * shape.rank;
  const bool is_worth_it =
      static_cast<double>(compressed) * options.min_compression_rate < static_cast<double>(numel);
  return is_worth_it ? std::optional(shape) : std::nullopt;
}

/// Returns all elements of a gradient in memory order.
at::Tensor flat(const at::Tensor& gradient) {
  return gradient.as_strided({gradient.numel()}, {1}, gradient.storage_offset());
}

bool is_finite(const at::Tensor& values) { return at::isfinite(values).all().item<bool>(); }

std::string problems_of(const PowerSgdOptions& options) {
  std::vector<std::string> problems;
  const auto require = [&](bool is_good, const char* name, auto value, const char* expected) {
    if (!is_good) problems.push_back(absl::StrCat(name, ": got ", value, ", expected ", expected));
  };
  require(options.matrix_approximation_rank >= 1, "matrix_approximation_rank",
          options.matrix_approximation_rank, "at least 1");
  require(options.start_power_sgd_iter >= 0, "start_power_sgd_iter", options.start_power_sgd_iter,
          "at least 0");
  require(options.min_compression_rate > 0 && std::isfinite(options.min_compression_rate),
          "min_compression_rate", options.min_compression_rate, "a finite number above 0");
  require(
      options.orthogonalization_epsilon >= 0 && std::isfinite(options.orthogonalization_epsilon),
      "orthogonalization_epsilon", options.orthogonalization_epsilon,
      "a finite number, at least 0");
  return absl::StrJoin(problems, "; ");
}

// Note [Low rank]
// The comment of power_sgd_hook() explains P, Q and M. P and Q are stored transposed, [rank, n] and
// [rank, m], so that the vectors to orthonormalise are contiguous. at::mm() may round differently
// on each rank. So its results are used only after an all-reduce, which gives all ranks the same
// bits, and only by code whose bits depend on its input alone (low_rank.h). P and Q depend on the
// sum of the ranks' matrices, not on each of them. A rank's matrix is its gradient plus its error,
// so only the sum of the ranks' errors matters.
class PowerSgd final : public CommHook {
 public:
  explicit PowerSgd(const PowerSgdOptions& options)
      : options_(options), iteration_(at::zeros({}, at::kLong)) {}

  std::string name() const override { return "powersgd"; }
  std::string settings() const override {
    return absl::StrCat("rank ", options_.matrix_approximation_rank, ", start ",
                        options_.start_power_sgd_iter, ", rate ", options_.min_compression_rate,
                        ", error feedback ", options_.use_error_feedback, ", warm start ",
                        options_.warm_start, ", epsilon ", options_.orthogonalization_epsilon,
                        ", seed ", options_.random_seed);
  }
  void prepare(const Setting& setting) override;
  bool carries_gradients() const override { return options_.use_error_feedback; }
  at::Tensor run(const GradBucket& bucket, ProcessGroup& group) override;
  std::vector<State> state() override;
  void before_saving(ProcessGroup& group) override;
  int64_t bytes() const override;

 private:
  /// What is kept for a compressed parameter from one backward to the next. Tensors that the
  /// options do not need are undefined.
  struct Memory {
    at::Tensor parameter;
    at::Tensor error;  // [numel]
    at::Tensor q;      // [rank, columns], zero until there is a Q
  };
  struct Matrix {
    std::string name;
    size_t position;  // index of its gradient in the bucket
    Shape shape;
    Memory* memory;
  };
  struct Bucket {
    at::ScalarType dtype;
    std::vector<Matrix> matrices;
    std::vector<size_t> others;  // indices of the gradients that are not compressed
    int64_t p_numel = 0, q_numel = 0, others_numel = 0;
    int64_t numel() const { return p_numel + q_numel + others_numel; }
  };

  Memory remembered(std::map<std::string, Memory>& old, const Trained& trained,
                    const Shape& shape) const;
  at::Tensor scratch(const Bucket& bucket, ProcessGroup& group);
  void compress(const GradBucket& given, ProcessGroup& group);
  void begin_basis(const Matrix& matrix, const at::Tensor& q) const;
  void draw(const std::string& name, int64_t row, const at::Tensor& to) const;
  int64_t& iteration() const { return *iteration_.mutable_data_ptr<int64_t>(); }

  const PowerSgdOptions options_;
  const at::Tensor iteration_;  // number of backwards reduced so far
  std::map<std::string, Memory> memories_;
  std::vector<Bucket> buckets_;
  std::map<at::ScalarType, int64_t> scratch_numel_;  // element count for the largest bucket
  std::map<at::ScalarType, at::Tensor> scratch_;     // made when first needed
};

void PowerSgd::prepare(const Setting& setting) {
  const std::string problems = problems_of(options_);
  TORCH_CHECK(problems.empty(), problems);
  TORCH_CHECK(!setting.has_loss_scale,
              "got Options::loss_scale, expected none: error memories would be of another scale "
              "than gradients after each change; train in bf16 or fp32");
  std::map<std::string, Memory> old = std::exchange(memories_, {});
  buckets_.clear();
  scratch_numel_.clear();
  for (const std::vector<Trained>& members : setting.buckets) {
    Bucket bucket{.dtype = members.front().dtype, .matrices = {}, .others = {}};
    TORCH_CHECK(bucket.dtype == at::kFloat || bucket.dtype == at::kDouble, "'",
                members.front().name, "': got gradients communicated in ",
                c10::toString(bucket.dtype),
                ", expected Float or Double; set Precision::communication to fp32");
    for (size_t position = 0; position < members.size(); ++position) {
      const Trained& trained = members[position];
      const std::optional<Shape> shape = shape_of(trained.parameter, options_);
      if (!shape.has_value()) {
        bucket.others.push_back(position);
        bucket.others_numel += trained.parameter.numel();
        continue;
      }
      Memory& memory = memories_[trained.name];
      memory = remembered(old, trained, *shape);
      bucket.matrices.push_back({trained.name, position, *shape, &memory});
      bucket.p_numel += shape->rank * shape->rows;
      bucket.q_numel += shape->rank * shape->columns;
    }
    int64_t& largest = scratch_numel_[bucket.dtype];
    largest = std::max(largest, bucket.numel());
    buckets_.push_back(std::move(bucket));
  }
}

/// Returns what `old` has for the parameter; zeros if `old` has nothing for it.
PowerSgd::Memory PowerSgd::remembered(std::map<std::string, Memory>& old, const Trained& trained,
                                      const Shape& shape) const {
  if (const auto found = old.find(trained.name); found != old.end()) {
    found->second.parameter = trained.parameter;
    return found->second;
  }
  Memory memory{.parameter = trained.parameter, .error = {}, .q = {}};
  if (options_.use_error_feedback) {
    memory.error = at::zeros({trained.parameter.numel()}, trained.dtype);
  }
  if (options_.warm_start) memory.q = at::zeros({shape.rank, shape.columns}, trained.dtype);
  return memory;
}

at::Tensor PowerSgd::run(const GradBucket& bucket, ProcessGroup& group) {
  if (iteration() < options_.start_power_sgd_iter) {
    group.all_reduce(bucket.buffer, ReduceOp::kAvg, bucket.name, bucket.divisor)->wait();
  } else {
    compress(bucket, group);
  }
  if (bucket.is_last) ++iteration();
  return bucket.buffer;
}

at::Tensor PowerSgd::scratch(const Bucket& bucket, ProcessGroup& group) {
  at::Tensor& memory = scratch_[bucket.dtype];
  const int64_t numel = scratch_numel_.at(bucket.dtype);
  if (!memory.defined() || memory.numel() != numel) memory = group.allocate(numel, bucket.dtype);
  return memory;
}

void PowerSgd::compress(const GradBucket& given, ProcessGroup& group) {
  const Bucket& bucket = buckets_[given.index];
  const at::Tensor memory = scratch(bucket, group);
  const at::Tensor all_p = memory.narrow(0, 0, bucket.p_numel);
  const at::Tensor all_q = memory.narrow(0, bucket.p_numel, bucket.q_numel);
  const at::Tensor others = memory.narrow(0, bucket.p_numel + bucket.q_numel, bucket.others_numel);
  const std::string bucket_name(given.name);

  const auto each_other = [&](const auto& body) {
    int64_t begin = 0;
    for (const size_t position : bucket.others) {
      const at::Tensor gradient = flat(given.gradients[position]);
      body(gradient, others.narrow(0, begin, gradient.numel()));
      begin += gradient.numel();
    }
  };
  each_other([](const at::Tensor& gradient, const at::Tensor& to) { to.copy_(gradient); });
  std::shared_ptr<Work> sending = completed_work();
  if (others.numel() > 0) {
    sending = group.all_reduce(others, ReduceOp::kAvg, given.name, given.divisor);
  }

  struct Product {
    at::Tensor gradient;  // [rows, columns]
    at::Tensor p;         // [rank, rows]
    at::Tensor q;         // [rank, columns]
    bool is_finite;
  };
  std::vector<Product> products;
  int64_t p_begin = 0, q_begin = 0;
  for (const Matrix& matrix : bucket.matrices) {
    const auto [rows, columns, rank] = matrix.shape;
    Product& product = products.emplace_back(
        Product{.gradient = flat(given.gradients[matrix.position]).view({rows, columns}),
                .p = all_p.narrow(0, p_begin, rank * rows).view({rank, rows}),
                .q = all_q.narrow(0, q_begin, rank * columns).view({rank, columns}),
                .is_finite = true});
    p_begin += rank * rows;
    q_begin += rank * columns;
    if (matrix.memory->error.defined()) {
      product.gradient.add_(matrix.memory->error.view({rows, columns}));
    }
    begin_basis(matrix, product.q);
    at::mm_out(product.p, product.q, product.gradient.t());
  }
  if (!products.empty()) {
    // The sum over ranks need not be divided, because P is orthonormalised.
    group.all_reduce(all_p, ReduceOp::kSum, absl::StrCat(bucket_name, " P"))->wait();
    for (Product& product : products) {
      product.is_finite = is_finite(product.p);
      if (product.is_finite) orthonormalize(product.p, options_.orthogonalization_epsilon);
      at::mm_out(product.q, product.p, product.gradient);
    }
    group.all_reduce(all_q, ReduceOp::kAvg, absl::StrCat(bucket_name, " Q"), given.divisor)->wait();
  }
  // The result is the sum over ranks divided by the divisor. Multiplied with `share` it is the mean
  // over ranks, which expand() subtracts from this rank's gradient to get the error.
  const double share = given.divisor / group.size();
  for (size_t i = 0; i < products.size(); ++i) {
    const Product& product = products[i];
    const Memory& kept = *bucket.matrices[i].memory;
    if (!product.is_finite || !is_finite(product.q)) {
      product.gradient.fill_(NAN);
      continue;
    }
    expand(product.p, product.q, product.gradient, kept.error, share);
    if (kept.q.defined()) kept.q.copy_(product.q);
  }
  sending->wait();
  each_other([](const at::Tensor& gradient, const at::Tensor& from) { gradient.copy_(from); });
}

/// Sets `q` to the last Q, or to random numbers if there is none, and orthonormalises it. Rows of
/// zeros in the last Q come from a matrix of lower rank (of zeros, say) and would stay zero for
/// ever, so random numbers replace them.
void PowerSgd::begin_basis(const Matrix& matrix, const at::Tensor& q) const {
  const at::Tensor& last = matrix.memory->q;
  if (last.defined()) q.copy_(last);
  for (int64_t row = 0; row < q.size(0); ++row) {
    if (!last.defined() || !q[row].any().item<bool>()) draw(matrix.name, row, q[row]);
  }
  orthonormalize(q, options_.orthogonalization_epsilon);
}

/// Fills `to` with normal random numbers that depend on the seed, the iteration, `name` and `row`.
void PowerSgd::draw(const std::string& name, int64_t row, const at::Tensor& to) const {
  std::vector<uint32_t> words;
  for (const uint64_t word :
       {options_.random_seed, static_cast<uint64_t>(iteration()), static_cast<uint64_t>(row)}) {
    words.push_back(static_cast<uint32_t>(word));
    words.push_back(static_cast<uint32_t>(word >> 32));
  }
  for (const char letter : name) words.push_back(static_cast<unsigned char>(letter));
  std::seed_seq seeds(words.begin(), words.end());
  std::mt19937_64 generator(seeds);
  std::normal_distribution<double> normal;
  const at::Tensor drawn = at::zeros({to.numel()}, at::kDouble);
  auto* const values = drawn.mutable_data_ptr<double>();
  std::generate(values, values + to.numel(), [&] { return normal(generator); });
  to.copy_(drawn);
}

std::vector<CommHook::State> PowerSgd::state() {
  std::vector<State> state = {{"iteration", iteration_, ""}};
  for (const auto& [name, memory] : memories_) {
    if (memory.error.defined()) {
      state.push_back({name + ".error",
                       view_like(memory.error, {0, memory.error.numel()}, memory.parameter), name});
    }
    if (memory.q.defined()) state.push_back({name + ".q", memory.q, name});
  }
  return state;
}

/// Gives every rank the mean of the ranks' errors (Note [Low rank]).
void PowerSgd::before_saving(ProcessGroup& group) {
  for (const auto& [name, memory] : memories_) {
    if (!memory.error.defined()) continue;
    // Averages the differences between the ranks' errors and rank 0's, not the errors. If all
    // errors are equal already, as after an earlier save, the differences are 0, and nothing is
    // rounded.
    const std::string tag = absl::StrCat("error memory of ", name);
    const at::Tensor first = memory.error.clone();
    group.broadcast(first, /*root=*/0, tag)->wait();
    memory.error.sub_(first);
    group.all_reduce(memory.error, ReduceOp::kAvg, tag)->wait();
    memory.error.add_(first);
  }
}

int64_t PowerSgd::bytes() const {
  int64_t bytes = static_cast<int64_t>(iteration_.nbytes());
  for (const auto& [name, memory] : memories_) {
    if (memory.error.defined()) bytes += static_cast<int64_t>(memory.error.nbytes());
    if (memory.q.defined()) bytes += static_cast<int64_t>(memory.q.nbytes());
  }
  for (const auto& [dtype, numel] : scratch_numel_) {
    bytes += numel * static_cast<int64_t>(c10::elementSize(dtype));
  }
  return bytes;
}

}  // namespace

std::shared_ptr<CommHook> power_sgd_hook(const PowerSgdOptions& options) {
  return std::make_shared<PowerSgd>(options);
}

}  // namespace tessera
