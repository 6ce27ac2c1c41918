// Ranks as a grid with named axes: "dp=2,pp=2,tp=2" are 8 ranks, of which 0 and 1 differ along tp. The last
// axis counts fastest, as in PyTorch's init_device_mesh. Pure numbers: placement orders GPUs by it, and
// parallel/mesh.h makes groups of it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace muster {

struct MeshAxis {
  std::string name = {};
  int size = 1;
  bool operator==(const MeshAxis&) const = default;
};

struct MeshShape {
  std::vector<MeshAxis> axes = {};

  int num_ranks() const;  // 1 without axes
  // Throws: invalid_argument naming the axes there are.
  size_t axis(std::string_view name) const;
  int size(std::string_view name) const { return axes[axis(name)].size; }

  // One an axis, in the axes' order.
  std::vector<int> coordinates(int rank) const;
  int rank_at(const std::vector<int>& coordinates) const;

  // The ranks that differ from `rank` along `names` alone, in order; `rank` is one of them.
  std::vector<int> group_of(int rank, const std::vector<std::string>& names) const;
  // Each such group once, in the order of their first ranks.
  std::vector<std::vector<int>> groups(const std::vector<std::string>& names) const;

  bool operator==(const MeshShape&) const = default;
};

// The axes as they are written; what they say is checked where the number of ranks is known. Throws:
// invalid_argument for what is not NAME=SIZE,….
std::vector<MeshAxis> parse_axes(std::string_view text);

// "dp=2,pp=2,tp=2". One axis may be -1, for all ranks that the others leave; `num_ranks` says how many there
// are (0: not known, then -1 is an error). Throws: invalid_argument for a name that is no word or comes
// twice, a size below 1, more than one -1, and for sizes whose product is not num_ranks.
MeshShape parse_mesh(std::string_view text, int num_ranks = 0);
// The same checks, for axes given in code.
MeshShape checked_mesh(std::vector<MeshAxis> axes, int num_ranks);

std::string to_string(const MeshShape& shape);                   // "dp=2,pp=2,tp=2"
std::string coordinates_text(const MeshShape& shape, int rank);  // "dp 0, pp 1, tp 0"

}  // namespace muster
