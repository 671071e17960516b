#include "tessera/core/options.h"

#include <cmath>
#include <vector>

#include <absl/strings/str_cat.h>
#include <absl/strings/str_join.h>

#include "tessera/core/number_text.h"

namespace tessera {
namespace {

void check_bucket_bytes(const char* field, int64_t bytes, std::vector<std::string>& problems) {
  constexpr int64_t kLeast = int64_t{1} << 10;
  constexpr int64_t kMost = int64_t{2} << 30;
  if (bytes < kLeast || bytes > kMost) {
    problems.push_back(
        absl::StrCat(field, ": got ", bytes,
                     "; allowed 1 KiB (1024) to 2 GiB (2147483648); the default suits "
                     "most models"));
  }
}

// Written so that NaN fails too.
void check_loss_scale(const LossScale& scale, std::vector<std::string>& problems) {
  const auto check = [&problems](const char* field, double value, bool is_right,
                                 const char* allowed) {
    if (is_right) return;
    problems.push_back(absl::StrCat("loss_scale.", field, ": got ", number_text(value),
                                    "; allowed ", allowed, "; the default suits most models"));
  };
  check("initial", scale.initial, scale.initial > 0.0 && std::isfinite(scale.initial),
        "(0, infinity)");
  check("growth", scale.growth, scale.growth >= 1.0 && std::isfinite(scale.growth),
        "[1, infinity)");
  check("backoff", scale.backoff, scale.backoff > 0.0 && scale.backoff <= 1.0, "(0, 1]");
  check("growth_interval", static_cast<double>(scale.growth_interval), scale.growth_interval >= 1,
        "1 or more");
}

/// What needs all gradients of a step before the first update, or updates that can be left out.
void check_optimizer_in_backward(const Options& options, std::vector<std::string>& problems) {
  const auto refuse = [&problems](const char* field, const char* reason) {
    problems.push_back(absl::StrCat("optimizer_in_backward: is set beside ", field, ", which ",
                                    reason, "; leave one of the two out"));
  };
  if (!std::isinf(options.max_grad_norm)) {
    refuse("max_grad_norm", "needs the norm of all gradients before the first update");
  }
  if (options.loss_scale.has_value()) {
    refuse("loss_scale", "leaves out the update of a step whose gradients overflow");
  }
  if (options.ask_non_finite) {
    refuse("ask_non_finite", "may leave out the update of a step that is partly made");
  }
  if (options.on_non_finite == NonFinite::kSkip) {
    refuse("on_non_finite = kSkip", "leaves out the update of a step that is partly made");
  }
}

/// What a host has to do in the middle of a step, which then waits for it.
void check_late_verdict(const Options& options, std::vector<std::string>& problems) {
  const auto refuse = [&problems](const char* field, const char* reason) {
    problems.push_back(absl::StrCat("late_verdict: is true beside ", field, ", which ", reason,
                                    "; leave one of the two out"));
  };
  if (options.ask_non_finite) refuse("ask_non_finite", "is asked before anything is applied");
  if (options.offload != Offload::kNone) refuse("offload", "updates on the CPU, in the step");
}

template <typename Value>
std::string text_of(const std::optional<Value>& value) {
  return value.has_value() ? absl::StrCat(static_cast<int64_t>(*value)) : "unset";
}

}  // namespace

absl::Status validate(const Options& options) {
  std::vector<std::string> problems;
  // Written so that NaN fails too.
  if (!(options.max_grad_norm > 0.0)) {
    problems.push_back(
        absl::StrCat("max_grad_norm: got ", number_text(options.max_grad_norm),
                     "; allowed (0, infinity]; leave it out to train without clipping"));
  }
  check_bucket_bytes("bucket_bytes", options.bucket_bytes, problems);
  check_bucket_bytes("first_bucket_bytes", options.first_bucket_bytes, problems);
  if (options.degrees.has_value() != (options.strategy == Strategy::kHybrid)) {
    problems.push_back(
        options.degrees.has_value()
            ? absl::StrCat("degrees: got ", to_string(*options.degrees), " beside strategy ",
                           std::string(to_string(options.strategy)),
                           "; allowed with strategy hybrid only; leave one of the two out")
            : "degrees: got none; strategy hybrid needs them; set {parameters, gradients, "
              "optimizer}");
  }
  if (options.loss_scale.has_value()) check_loss_scale(*options.loss_scale, problems);
  if (options.ask_non_finite && options.on_non_finite.has_value()) {
    problems.emplace_back("on_non_finite: got a policy beside ask_non_finite; set one of the two");
  }
  if (options.optimizer_in_backward && options.offload != Offload::kNone) {
    problems.emplace_back(
        "optimizer_in_backward: is set beside offload, which updates in step(); leave one of the "
        "two out");
  }
  if (options.optimizer_in_backward) check_optimizer_in_backward(options, problems);
  if (options.late_verdict.value_or(false)) check_late_verdict(options, problems);
  if (problems.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("[options] ", absl::StrJoin(problems, "\n[options] ")));
}

std::vector<std::string> lines(const Options& options) {
  const std::string_view strategy = to_string(options.strategy);
  const std::optional<LossScale>& scale = options.loss_scale;
  const std::string_view offload = to_string(options.offload);
  return {absl::StrCat("strategy ", absl::string_view(strategy.data(), strategy.size())),
          absl::StrCat("degrees ", options.degrees ? to_string(*options.degrees) : "unset"),
          absl::StrCat("wrap ", options.wrap.name),
          absl::StrCat("reshard_after_forward ", text_of(options.reshard_after_forward)),
          absl::StrCat("max_grad_norm ", number_text(options.max_grad_norm)),
          to_string(options.precision),
          absl::StrCat(
              "loss_scale ",
              scale ? absl::StrCat(number_text(scale->initial), " ", number_text(scale->growth),
                                   " ", number_text(scale->backoff), " ", scale->growth_interval)
                    : "unset"),
          absl::StrCat("on_non_finite ", text_of(options.on_non_finite)),
          absl::StrCat("ask_non_finite ", options.ask_non_finite ? "set" : "unset"),
          absl::StrCat("share_parameters ", options.share_parameters ? 1 : 0),
          absl::StrCat("optimizer_in_backward ", options.optimizer_in_backward ? 1 : 0),
          absl::StrCat("offload ", absl::string_view(offload.data(), offload.size())),
          absl::StrCat("cuda_graphs ", options.cuda_graphs ? 1 : 0),
          absl::StrCat("late_verdict ", text_of(options.late_verdict)),
          absl::StrCat("bucket_bytes ", options.bucket_bytes),
          absl::StrCat("first_bucket_bytes ", options.first_bucket_bytes),
          absl::StrCat("prefetch ", text_of(options.prefetch)),
          absl::StrCat("poison_freed ", options.poison_freed ? 1 : 0),
          absl::StrCat("free_eagerly ", options.free_eagerly ? 1 : 0),
          absl::StrCat("keep_freed_memory ", options.keep_freed_memory ? 1 : 0),
          absl::StrCat("strict_slabs ", options.strict_slabs ? 1 : 0),
          absl::StrCat("trace ", options.trace ? 1 : 0)};
}

}  // namespace tessera
