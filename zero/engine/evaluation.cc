#include "tessera/zero/engine/evaluation.h"

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/agreement/refusal.h"
#include "tessera/core/process/error_text.h"
#include "tessera/core/step/host_all_gather.h"
#include "tessera/errors.h"

namespace tessera::internal {
namespace {

/// Puts a model into evaluation mode; the destructor gives each module its own mode again.
class EvaluationMode {
 public:
  explicit EvaluationMode(torch::nn::Module& model) {
    model.apply([this](torch::nn::Module& module) {
      modules_.emplace_back(&module, module.is_training());
    });
    model.eval();
  }
  ~EvaluationMode() {
    // A parent's train() also sets its children, but they come later in the list and are set again.
    for (const auto& [module, was_training] : modules_) module->train(was_training);
  }
  EvaluationMode(const EvaluationMode&) = delete;
  EvaluationMode& operator=(const EvaluationMode&) = delete;

 private:
  std::vector<std::pair<torch::nn::Module*, bool>> modules_;
};

/// Throws if ranks differ in `has_more`. Called only where gathers are collective, because there
/// all ranks must run each batch.
void require_alike(ProcessGroup& group, HostAllGather& more, bool has_more) {
  more.mine()[0] = has_more ? 1 : 0;
  more.exchange("batches of evaluate");
  for (int rank = 1; rank < group.size(); ++rank) {
    TORCH_CHECK(more.of(rank)[0] == more.of(0)[0], "[evaluate] rank ",
                more.of(0)[0] != 0 ? rank : 0, " has no batches left and rank ",
                more.of(0)[0] != 0 ? 0 : rank,
                " has, expected equally many where ranks gather split parameters together; "
                "evaluate inside full_parameters(), or give all ranks equally many");
  }
}

}  // namespace

Mean evaluate(EngineContext& context, TrainedParameters& trained,
              const std::function<bool()>& has_batch, const std::function<void(Mean&)>& run_batch) {
  ProcessGroup& group = context.group;
  const bool gathers_together = trained.store.gathered() != nullptr &&
                                !group.can().one_sided_reads && !trained.access.has_open_scope();
  HostAllGather more(group, /*words=*/1);
  Mean mean;
  std::exception_ptr thrown;
  std::string problem;
  {
    const at::NoGradGuard no_grad;
    const EvaluationMode mode(*context.persistent.model);
    try {
      for (;;) {
        const bool has_more = has_batch();
        if (gathers_together) require_alike(group, more, has_more);
        if (!has_more) break;
        run_batch(mean);
      }
    } catch (const CommError&) {
      throw;
    } catch (...) {
      thrown = std::current_exception();
      problem = present_error_text();
    }
  }
  return context.failure.guard([&] {
    trained.store.free_all();
    try {
      refuse_on_all_ranks(group, problem, "evaluate");
    } catch (const c10::Error&) {
      if (thrown != nullptr) std::rethrow_exception(thrown);
      throw;
    }
    return mean.over_ranks(group);
  });
}

}  // namespace tessera::internal
