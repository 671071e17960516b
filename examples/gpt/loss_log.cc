#include "tessera/examples/gpt/loss_log.h"

#include <cerrno>
#include <cstring>
#include <utility>

namespace gpt {

LossLog::LossLog(std::shared_ptr<tessera::ProcessGroup> world, const std::string& path,
                 int64_t steps_done)
    : world_(std::move(world)),
      path_(path),
      file_(path.empty() ? nullptr : std::fopen(path.c_str(), steps_done == 0 ? "w" : "a")),
      written_(steps_done) {
  TORCH_CHECK(path.empty() || file_ != nullptr, "[gpt] --losses_out: got '", path,
              "', which cannot be written; give another path");
}

void LossLog::add(const at::Tensor& loss) {
  losses_.push_back(loss.detach().to(at::kDouble).reshape({1}));
}

void LossLog::add(const tessera::StepResult& result, bool is_late) {
  // A late result is the previous step's. Either there is none, or look() has written it already.
  if (is_late && losses_.size() == 1) return;
  norms_.push_back(result.grad_norm);
}

double LossLog::look(tessera::Engine& engine) {
  if (norms_.size() < losses_.size()) {
    engine.wait();
    norms_.push_back(engine.last_result().grad_norm);
  }
  const at::Tensor mean = at::cat(losses_);
  world_->all_reduce(mean, tessera::ReduceOp::kAvg, "loss")->wait();
  const at::Tensor read = mean.cpu();
  for (size_t i = 0; i < losses_.size(); ++i) {
    ++written_;
    if (file_ == nullptr) continue;
    std::fprintf(file_.get(), "%ld %.17g %.17g\n", written_,
                 read[static_cast<int64_t>(i)].item<double>(), norms_[i]);
  }
  TORCH_CHECK(file_ == nullptr || (std::fflush(file_.get()) == 0 && std::ferror(file_.get()) == 0),
              "[gpt] --losses_out: ", path_, " does not take the losses of step ", written_, " (",
              std::strerror(errno), "); make room or give another path");
  losses_.clear();
  norms_.clear();
  return read[-1].item<double>();
}

}  // namespace gpt
