#include "tessera/device_mesh.h"

#include <vector>

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
  std::vector<int> row_of_rank;
  std::vector<int> column_of_rank;
  for (int rank = 0; rank < group.size(); ++rank) {
    row_of_rank.push_back(rank / columns);
    column_of_rank.push_back(rank % columns);
  }
  mesh.groups_ = {split(group, column_of_rank, names[0]), split(group, row_of_rank, names[1])};
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
