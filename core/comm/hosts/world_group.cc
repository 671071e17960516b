// Groups of several hosts: the world, and groups made from it.
#include "tessera/core/comm/hosts/world_group.h"

#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

#include "tessera/core/comm/hosts/link.h"
#include "tessera/errors.h"

namespace tessera::internal::hosts {

/// A link of a new group. It is made by `inside` or by `flat`: two groups if the new group is the
/// world, otherwise two links of the group from which the new group is made. This type is not in
/// the anonymous namespace, because a coroutine holds it.
struct LinkPart {
  bool is_inside;          // true: made by `inside`; false: by `flat`
  std::vector<int> ranks;  // the ranks of this link, as numbered in the link that makes it
  std::unique_ptr<internal::Link> Links::*place;
};

namespace {

/// Returns the links of a new group, in the order in which they are made. `ranks`: the new group's
/// ranks; `locals`: the local numbers of its ranks on this host.
std::vector<LinkPart> link_parts(const HostLayout& layout, const std::vector<int>& ranks,
                                 const std::vector<int>& locals) {
  std::vector<LinkPart> parts;
  if (!locals.empty()) {
    parts.push_back({true, locals, &Links::inside});
    parts.push_back({true, locals, &Links::last});
  }
  parts.push_back({false, ranks, &Links::flat});
  for (int local = 0; local < layout.locals; ++local) {
    std::vector<int> column = layout.column(local);
    for (int& rank : column) rank = ranks[static_cast<size_t>(rank)];
    parts.push_back({false, column, &Links::calls});
    parts.push_back({false, column, &Links::across});
  }
  return parts;
}

std::vector<int> first_numbers(int count) {
  std::vector<int> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

Links make_links(internal::Group& flat, internal::Group& inside, const HostLayout& layout) {
  Links links;
  int made = 0;
  for (const auto& [is_inside, ranks, place] :
       link_parts(layout, first_numbers(layout.ranks()), first_numbers(layout.locals))) {
    auto link = (is_inside ? inside : flat).make_link(ranks, absl::StrCat("hosts: ", ++made));
    if (link != nullptr) links.*place = std::move(link);
  }
  return links;
}

/// Begins to make one of the links of the subgroup that `call` makes.
std::shared_ptr<Call> start_link(const HostSubgroups& subgroups, const Call& call, bool is_inside,
                                 const std::vector<int>& ranks) {
  Member& member = is_inside ? *subgroups.inside : *subgroups.flat;
  return member.start({.op = Op::kSubgroup, .tag = call.tag()}, ranks);
}

}  // namespace

CollectiveTask make_subgroup(const HostSubgroups& subgroups, const GroupSetting& setting,
                             Call& call) {
  const std::vector<int> ranks = call.ranks();
  std::vector<int> host_of_rank, locals;  // locals: local numbers of this host's ranks
  for (const int rank : ranks) {
    host_of_rank.push_back(subgroups.layout.host_of(rank));
    if (subgroups.is_here(rank)) locals.push_back(subgroups.layout.local_of(rank));
  }
  const std::optional<HostLayout> layout = HostLayout::of(host_of_rank);
  if (!layout.has_value() || !layout->is_two_level()) {
    const bool is_inside = layout.has_value() && layout->hosts == 1;
    if (is_inside && locals.empty()) co_return;
    const std::shared_ptr<Call> made =
        start_link(subgroups, call, is_inside, is_inside ? locals : ranks);
    co_await made;
    call.made().link = std::move(made->made().link);
    co_return;
  }
  Links links;
  const std::vector<LinkPart> parts = link_parts(*layout, ranks, locals);
  for (const auto& [is_inside, of, place] : parts) {
    const std::shared_ptr<Call> made = start_link(subgroups, call, is_inside, of);
    co_await made;
    if (made->made().link != nullptr) links.*place = std::move(made->made().link);
  }
  if (links.flat == nullptr) co_return;  // this rank is not in the new group
  const std::string name =
      absl::StrCat(call.group(), "/", call.tag().substr(0, call.tag().rfind(" [")));
  GroupSetting made = setting;
  made.layout = *layout;
  made.id = setting.id_of_made(call.sequence());
  call.made().link = make_link(std::move(links), name, std::move(made));
}

std::shared_ptr<ProcessGroup> make_group(const std::shared_ptr<internal::Group>& flat,
                                         const std::shared_ptr<internal::Group>& inside,
                                         HostLayout layout) {
  TORCH_INTERNAL_ASSERT(layout.is_two_level() && layout.ranks() == flat->size() &&
                        inside->size() == layout.locals &&
                        inside->rank() == layout.local_of(flat->rank()));
  GroupSetting setting{
      .layout = layout, .of_messages = flat->patience(), .cache = nullptr, .id = 1};
  Links links;
  try {
    setting.cache = ReadCache::make(*inside);
    links = make_links(*flat, *inside, layout);
    flat->link().watch(inside->link().host_ranks());
  } catch (const CommError& error) {
    // The cause may be the failure of a rank that had already made its group and gone on. Without
    // this abort the ranks of this host would see another cause: that this rank has left.
    inside->abort(error.cause());
    flat->abort(error.cause());
    throw;
  }
  const std::string name(flat->name());
  return std::make_shared<internal::Group>(make_link(std::move(links), name, std::move(setting)),
                                           name, Lane::Mode::kInline, inside->patience());
}

}  // namespace tessera::internal::hosts
