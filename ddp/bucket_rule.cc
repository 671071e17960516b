#include "tessera/ddp/bucket_rule.h"

#include <algorithm>
#include <map>
#include <utility>

#include <absl/strings/str_cat.h>

namespace tessera::internal {
namespace {

struct OpenBucket {
  size_t index;
  int64_t bytes = 0;
};

}  // namespace

std::vector<UnitPlan::Membership> bucket_membership(const ParameterTable& table,
                                                    std::span<const int64_t> caps) {
  std::vector<UnitPlan::Membership> buckets;
  std::map<std::pair<at::ScalarType, bool>, OpenBucket> open;  // by dtype and keeps_dtype
  for (size_t i = table.size(); i-- > 0;) {
    const Parameter& parameter = table[i];
    if (!parameter.is_trainable) continue;
    const std::pair trait(parameter.dtype, parameter.keeps_dtype);
    auto [it, is_new] = open.try_emplace(trait, OpenBucket{buckets.size()});
    if (is_new) buckets.push_back({absl::StrCat("bucket ", buckets.size()), {}});
    OpenBucket& bucket = it->second;
    buckets[bucket.index].parameters.push_back(i);
    bucket.bytes +=
        parameter.tensor.numel() * static_cast<int64_t>(c10::elementSize(parameter.dtype));
    if (bucket.bytes >= caps[std::min(bucket.index, caps.size() - 1)]) open.erase(it);
  }
  return buckets;
}

}  // namespace tessera::internal
