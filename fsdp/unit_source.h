#pragma once

#include <cstdint>
#include <memory>

#include <ATen/core/Tensor.h>

#include "tessera/core/comm/work.h"

namespace tessera {

/// Where the values of one split unit come from: the shards of the ranks that differ in the
/// parameters' coordinate only.
class UnitSource {
 public:
  virtual ~UnitSource() = default;
  UnitSource(const UnitSource&) = delete;
  UnitSource& operator=(const UnitSource&) = delete;

  /// Which shards to prefer, where there are second ones.
  enum class From : uint8_t { kFirst, kSecond };

  /// Where ranks gather together: collective; begins to bring the whole unit into `to` [unit
  /// numel], received_bytes() of it from other ranks. Elsewhere null: fetch() it. Throws CommError
  /// if the group has failed, here or from the Work.
  virtual std::shared_ptr<Work> start(const at::Tensor& to) = 0;
  virtual int64_t received_bytes() const = 0;

  /// Brings the whole unit into `to`; blocks. Returns how many bytes came from other ranks. Throws
  /// CommError if the group has failed.
  virtual int64_t fetch(const at::Tensor& to, From from) = 0;

  /// Keeps this rank's second shard of `full`, if there is one.
  virtual void keep_second(const at::Tensor& full) = 0;

  /// The values have changed: second shards are out of date. Local; between fences.
  virtual void invalidate() = 0;

 protected:
  UnitSource() = default;
};

}  // namespace tessera
