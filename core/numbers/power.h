#pragma once

namespace tessera::internal {

/// Returns base^exponent for base >= 0 (or NaN, which stays) and a finite exponent > 0, within 4 +
/// |log2(base^exponent)| / 2 ulps. Uses only additions, multiplications and divisions, in a fixed
/// order, so it has the same bits on every processor and with every C library; std::pow may differ.
double power(double base, double exponent);

}  // namespace tessera::internal
