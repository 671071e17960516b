#include "tessera/tests/prove/plain/step_log.h"

#include <c10/util/Exception.h>

namespace prove {

StepLog::StepLog(const std::string& path)
    : file_(path.empty() ? nullptr : std::fopen(path.c_str(), "w")) {
  TORCH_CHECK(path.empty() || file_ != nullptr, "[prove] cannot write ", path);
}

void StepLog::add(double loss) {
  if (file_ != nullptr) std::fprintf(file_.get(), "%a\n", loss);
}

void StepLog::add(double loss, double gradient_norm) {
  if (file_ != nullptr) std::fprintf(file_.get(), "%a %a\n", loss, gradient_norm);
}

}  // namespace prove
