#include "tessera/comm_hook.h"

#include <utility>

#include <c10/util/Exception.h>

#include "tessera/process_group.h"

namespace tessera {

namespace {

class FunctionHook final : public CommHook {
 public:
  using Run = std::function<at::Tensor(const GradBucket&, ProcessGroup&)>;

  FunctionHook(std::string name, Run run) : name_(std::move(name)), run_(std::move(run)) {}

  std::string name() const override { return name_; }
  void prepare(const Setting& /*setting*/) override {
    TORCH_CHECK(run_ != nullptr,
                "got an empty function, expected one that communicates a bucket; pass it to "
                "make_comm_hook()");
  }
  at::Tensor run(const GradBucket& bucket, ProcessGroup& group) override {
    return run_(bucket, group);
  }

 private:
  const std::string name_;
  const Run run_;
};

}  // namespace

std::shared_ptr<CommHook> make_comm_hook(
    std::string name,
    std::function<at::Tensor(const GradBucket& bucket, ProcessGroup& group)> run) {
  return std::make_shared<FunctionHook>(std::move(name), std::move(run));
}

std::shared_ptr<CommHook> all_reduce_hook() {
  return make_comm_hook("all_reduce", [](const GradBucket& bucket, ProcessGroup& group) {
    group.all_reduce(bucket.buffer, ReduceOp::kAvg, bucket.name, bucket.divisor)->wait();
    return bucket.buffer;
  });
}

std::shared_ptr<CommHook> noop_hook() {
  return make_comm_hook("noop",
                        [](const GradBucket& bucket, ProcessGroup&) { return bucket.buffer; });
}

}  // namespace tessera
