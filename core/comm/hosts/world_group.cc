#include "tessera/core/comm/hosts/world_group.h"

#include <numeric>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/hosts/link.h"
#include "tessera/errors.h"

namespace tessera::internal::hosts {
namespace {

std::vector<int> all_ranks(const ProcessGroup& group) {
  std::vector<int> ranks(static_cast<size_t>(group.size()));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

Links make_links(internal::Group& flat, internal::Group& inside, const HostLayout& layout) {
  Links links;
  links.inside = inside.make_link(all_ranks(inside), "hosts: inside");
  links.last = inside.make_link(all_ranks(inside), "hosts: last");
  links.flat = flat.make_link(all_ranks(flat), "hosts: flat");
  links.moves = flat.make_link(all_ranks(flat), "hosts: moves");
  for (int local = 0; local < layout.ranks_per_host(); ++local) {
    const std::vector<int> column = layout.column(local);
    auto calls = flat.make_link(column, absl::StrCat("hosts: calls ", local));
    auto across = flat.make_link(column, absl::StrCat("hosts: across ", local));
    if (calls != nullptr) links.calls = std::move(calls);
    if (across != nullptr) links.across = std::move(across);
  }
  return links;
}

}  // namespace

std::shared_ptr<ProcessGroup> make_group(const std::shared_ptr<internal::Group>& flat,
                                         const std::shared_ptr<internal::Group>& inside,
                                         HostLayout layout) {
  if (!layout.is_two_level()) return flat;
  TORCH_INTERNAL_ASSERT(layout.ranks() == flat->size() &&
                        inside->size() == layout.ranks_per_host() &&
                        inside->rank() == layout.local_of(flat->rank()));
  const std::shared_ptr<HostRanks> host = inside->link().host_ranks();
  std::shared_ptr<ReadCache> cache;
  Links links;
  try {
    cache = ReadCache::make(*inside);
    links = make_links(*flat, *inside, layout);
    flat->link().watch(host);
  } catch (const CommError& error) {
    // The others have made theirs and gone on, and failed. What unwinds here would be another cause
    // for the ranks of this host.
    inside->abort(error.cause());
    flat->abort(error.cause());
    throw;
  }
  const std::string name(flat->name());
  auto link = std::make_unique<Link>(std::move(links), std::move(layout), name, flat->patience(),
                                     std::move(cache), /*id=*/1);
  return std::make_shared<internal::Group>(std::move(link), name, Lane::Mode::kInline,
                                           inside->patience());
}

}  // namespace tessera::internal::hosts
