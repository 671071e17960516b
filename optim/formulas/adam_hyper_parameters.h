#pragma once

namespace tessera::internal {

/// The numbers of a parameter group under Adam and AdamW.
struct AdamHyperParameters {
  double lr;
  double beta1;
  double beta2;
  double eps;
  double weight_decay;
  bool is_amsgrad = false;
};

}  // namespace tessera::internal
