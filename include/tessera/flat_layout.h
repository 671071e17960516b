#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <c10/core/ScalarType.h>

namespace tessera {

/// Elements [begin, begin + numel) of a flat buffer.
struct Range {
  int64_t begin = 0;
  int64_t numel = 0;
  int64_t end() const { return begin + numel; }
  friend bool operator==(const Range&, const Range&) = default;
};

/// The part of one parameter that lies in one range of a flat buffer.
struct Segment {
  size_t parameter;  ///< index of the parameter within the layout, in the order given to FlatLayout
  int64_t buffer_offset;     ///< where the segment starts in the flat buffer, elements
  int64_t parameter_offset;  ///< where it starts in the parameter (in memory order), elements; a
                             ///< multiple of 64
  int64_t numel;
  friend bool operator==(const Segment&, const Segment&) = default;
};

/// The positions of a unit's parameters in the unit's flat buffer, and the slice of the buffer that
/// each rank owns. The only place that computes padding, alignment or slice ranges; pure
/// arithmetic.
///
/// Note [Padding]
/// Every parameter and every slice starts on a multiple of alignment_numel(dtype) elements, which
/// is at least 64 elements and at least 256 bytes. 64 elements: then no block of 64 elements
/// counted from a parameter's start straddles two slices. The global norm and the optimizer's
/// kernels work in such blocks, so they give the same bits however the buffer is cut. 256 bytes: a
/// matrix at an address with less alignment gives other bits in a GEMM, and NCCL is slow below 128
/// bytes. The buffer's length is a multiple of slices * alignment_numel(dtype). Padding holds zeros
/// in parameter and gradient buffers alike.
class FlatLayout {
 public:
  /// Returns max(64, 256 / element size): the offsets of parameters and slices are multiples of
  /// this number of elements.
  static int64_t alignment_numel(c10::ScalarType dtype);

  /// Lays out parameters of the given sizes one after the other and cuts the buffer into `slices`
  /// equal parts. parameter_numels may be empty and may contain zeros; slices >= 1.
  FlatLayout(c10::ScalarType dtype, std::vector<int64_t> parameter_numels, int slices);

  c10::ScalarType dtype() const { return dtype_; }
  int slices() const { return slices_; }
  size_t parameters() const { return numels_.size(); }

  /// Length of the flat buffer, padding included.
  int64_t numel() const { return numel_; }
  int64_t bytes() const;
  /// Length of one slice: numel() / slices().
  int64_t slice_numel() const { return numel_ / slices_; }
  int64_t slice_bytes() const;

  /// Returns the range of parameter `index`, without its padding.
  Range parameter_range(size_t index) const { return {offsets_[index], numels_[index]}; }
  /// Returns slice `slice` of the buffer, 0 <= slice < slices().
  Range slice_range(int slice) const { return part(slice, slices_); }
  /// Returns part `index` of the buffer when it is cut into `count` equal parts, 0 <= index <
  /// count; `count` must divide slices().
  Range part(int index, int count) const;

  /// Returns the pieces of parameters inside `range`, in buffer order, without padding and without
  /// empty pieces. range.begin is a multiple of alignment_numel(dtype()), as every slice's is.
  std::vector<Segment> segments(Range range) const;

 private:
  c10::ScalarType dtype_;
  int slices_;
  std::vector<int64_t> numels_;
  std::vector<int64_t> offsets_;
  int64_t numel_ = 0;
};

}  // namespace tessera
