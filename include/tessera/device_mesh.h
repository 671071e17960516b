#pragma once

#include <array>
#include <memory>
#include <string>
#include <string_view>

#include "tessera/process_group.h"

namespace tessera {

/// The ranks of a group arranged in rows and columns, row by row: rank r is in row r / columns and
/// column r % columns. For each dimension, every rank has a group of the ranks whose coordinates
/// differ from its own in that dimension only.
class DeviceMesh {
 public:
  /// Makes the mesh and this rank's groups. Collective over `group`, whose size must be rows *
  /// columns. names[0] and names[1] are the names of dimensions 0 and 1 (see group()). The groups
  /// along a dimension are called "<its name> <number>", as by split(). So the names must differ
  /// and not be empty, and `group` must have no subgroup called so. Throws c10::Error otherwise.
  static DeviceMesh create(ProcessGroup& group, int rows, int columns,
                           const std::array<std::string, 2>& names);

  int rows() const { return sizes_[0]; }
  int columns() const { return sizes_[1]; }
  int row() const { return place_[0]; }
  int column() const { return place_[1]; }

  /// Local. Returns this rank's group along `dimension`: for 0 the rows() ranks of this rank's
  /// column, for 1 the columns() ranks of its row.
  const std::shared_ptr<ProcessGroup>& group(int dimension) const;
  /// Local. The same by the dimension's name.
  const std::shared_ptr<ProcessGroup>& group(std::string_view name) const;

 private:
  DeviceMesh() = default;

  std::array<int, 2> sizes_;
  std::array<int, 2> place_;
  std::array<std::string, 2> names_;
  std::array<std::shared_ptr<ProcessGroup>, 2> groups_;
};

}  // namespace tessera
