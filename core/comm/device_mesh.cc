#include "tessera/core/comm/device_mesh.h"

#include <vector>

#include <absl/strings/str_cat.h>
#include <c10/util/Exception.h>

namespace tessera {

DeviceMesh DeviceMesh::create(ProcessGroup& group, int rows, int columns,
                              const std::array<std::string, 2>& names) {
  TORCH_CHECK(rows > 0 && columns > 0 && int64_t{rows} * columns == group.size(),
              "[mesh] create: got ", rows, " rows of ", columns, " columns, expected a product of ",
              group.size(), ", the size of group '", group.name(), "'; correct them");
  TORCH_CHECK(!names[0].empty() && !names[1].empty() && names[0] != names[1],
              "[mesh] create: got the names '", names[0], "' and '", names[1],
              "', expected two different ones; rename a dimension");
  DeviceMesh mesh;
  mesh.sizes_ = {rows, columns};
  mesh.place_ = {group.rank() / columns, group.rank() % columns};
  mesh.names_ = names;
  // Every rank takes part in making every group, its own or not.
  for (int column = 0; column < columns; ++column) {
    std::vector<int> ranks;
    for (int row = 0; row < rows; ++row) ranks.push_back(row * columns + column);
    auto made = group.subgroup(ranks, absl::StrCat(names[0], ".", column));
    if (made != nullptr) mesh.groups_[0] = std::move(made);
  }
  for (int row = 0; row < rows; ++row) {
    std::vector<int> ranks;
    for (int column = 0; column < columns; ++column) ranks.push_back(row * columns + column);
    auto made = group.subgroup(ranks, absl::StrCat(names[1], ".", row));
    if (made != nullptr) mesh.groups_[1] = std::move(made);
  }
  return mesh;
}

const std::shared_ptr<ProcessGroup>& DeviceMesh::group(int dimension) const {
  TORCH_CHECK(dimension == 0 || dimension == 1, "[mesh] group: got dimension ", dimension,
              ", expected 0 or 1; this mesh has two");
  return groups_[dimension];
}

const std::shared_ptr<ProcessGroup>& DeviceMesh::group(std::string_view name) const {
  for (size_t i = 0; i < names_.size(); ++i) {
    if (names_[i] == name) return groups_[i];
  }
  TORCH_CHECK(false, "[mesh] group: got the name '", name, "', expected '", names_[0], "' or '",
              names_[1], "'; use one of them");
}

}  // namespace tessera
