#include "tessera/tests/prove/sharded/control_group.h"

#include <map>
#include <utility>

#include <ATen/Functions.h>
#include <c10/util/Exception.h>

namespace prove {
namespace {

using tessera::Collective;
using tessera::Op;
using tessera::ProcessGroup;
using tessera::Window;
using tessera::Work;

/// The bucket or unit of ResidualModel that gets the error.
bool is_chosen(std::string_view tag) { return tag == "bucket 1" || tag == "blocks.1"; }

/// Returns the values of the previous read. A unit is read once for forward and once for backward,
/// so forward gets the values from the backward before, which precede the update.
class StaleWindow final : public Window {
 public:
  StaleWindow(std::unique_ptr<Window> inner, std::shared_ptr<ControlSwitch> what)
      : inner_(std::move(inner)), what_(std::move(what)) {}

  std::shared_ptr<Work> start_read(int rank, int64_t begin, const at::Tensor& to,
                                   std::string_view tag, int64_t version) override {
    inner_->read(rank, begin, to, tag, version);
    if (!what_->is_on || !is_chosen(tag)) return tessera::completed_work();
    at::Tensor& last = last_[{rank, begin}];
    const at::Tensor fresh = to.clone();
    if (last.defined()) to.copy_(last);
    last = fresh;
    return tessera::completed_work();
  }
  int64_t load(int rank, int64_t index) const override { return inner_->load(rank, index); }
  void store(int64_t index, int64_t value) override { inner_->store(index, value); }

 private:
  const std::unique_ptr<Window> inner_;
  const std::shared_ptr<ControlSwitch> what_;
  std::map<std::pair<int, int64_t>, at::Tensor> last_;
};

}  // namespace

std::shared_ptr<Work> ControlGroup::run(const Collective& collective) {
  const bool reduces = collective.op == Op::kAllReduce || collective.op == Op::kReduceScatter;
  if (makes(Control::kSkipReduction) && reduces && is_chosen(collective.tag)) {
    return tessera::completed_work();  // on all ranks: each continues with its own gradient
  }
  if (makes(Control::kSwapReduction) && collective.op == Op::kReduceScatter) {
    return swap_reduction(collective);
  }
  if (makes(Control::kSwapUpdates) && collective.op == Op::kAllGather) {
    return swap_updates(collective);
  }
  return inner_->run(collective);
}

std::shared_ptr<Work> ControlGroup::swap_reduction(const Collective& collective) {
  if (!is_chosen(collective.tag) || collective.slice > 1) return inner_->run(collective);
  Collective swapped = collective;
  swapped.slice = 1 - collective.slice;
  swapped.output = at::empty_like(collective.output);  // output may be the slice in the input
  inner_->run(swapped)->wait();
  collective.output.copy_(swapped.output);
  return tessera::completed_work();
}

std::shared_ptr<Work> ControlGroup::swap_updates(const Collective& collective) {
  inner_->run(collective)->wait();
  if (!is_chosen(collective.tag)) return tessera::completed_work();
  const int64_t numel = collective.output.numel() / size();
  const at::Tensor first = collective.output.narrow(0, 0, numel);
  const at::Tensor second = collective.output.narrow(0, numel, numel);
  const at::Tensor kept = first.clone();
  first.copy_(second);
  second.copy_(kept);
  return tessera::completed_work();
}

std::unique_ptr<Window> ControlGroup::make_window(const at::Tensor& own, std::string_view name) {
  auto made = inner_->make_window(own, name);
  if (!makes(Control::kStaleGather)) return made;
  return std::make_unique<StaleWindow>(std::move(made), what_);
}

Control parse_control(std::string_view text) {
  static const std::map<std::string_view, Control> names = {
      {"none", Control::kNone},
      {"pass_on", Control::kPassOn},
      {"skip_reduction", Control::kSkipReduction},
      {"swap_reduction", Control::kSwapReduction},
      {"swap_updates", Control::kSwapUpdates},
      {"stale_gather", Control::kStaleGather}};
  const auto it = names.find(text);
  TORCH_CHECK(it != names.end(), "[prove] --control: got '", std::string(text),
              "', expected none, pass_on, skip_reduction, swap_reduction, swap_updates or "
              "stale_gather");
  return it->second;
}

}  // namespace prove
