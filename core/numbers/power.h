#pragma once

namespace tessera::internal {

/// Returns base^exponent for base >= 0 and a finite exponent > 0, within 4 + |log2(base^exponent)|
/// / 2 ulps; a NaN base gives NaN. Uses only additions, multiplications and divisions, in a fixed
/// order. So it has the same bits on every processor and with every C library, unlike std::pow.
double power(double base, double exponent);

}  // namespace tessera::internal
