#pragma once

namespace tessera::internal {

/// base^exponent for base >= 0 (or NaN, which stays) and a finite exponent > 0, within
/// 4 + |log2(base^exponent)| / 2 ulps. Additions, multiplications and divisions only, in a fixed
/// order, so that it has the same bits on every processor and with every C library; std::pow's may
/// differ.
double power(double base, double exponent);

}  // namespace tessera::internal
