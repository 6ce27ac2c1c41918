// Ranks as a grid with named axes: "dp=2,pp=2,tp=2" has 8 ranks, of which 0 and 1 differ along tp.
// The last axis varies fastest, as in PyTorch's init_device_mesh. Pure numbers: placement orders
// GPUs by it, and parallel/mesh.h makes groups from it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "muster/base/lists.h"
#include "muster/base/strings.h"

namespace muster {

struct MeshAxis {
  std::string name{};
  int size = 1;
  bool operator==(const MeshAxis&) const = default;
};
using MeshAxes = std::vector<MeshAxis>;

struct MeshShape {
  MeshAxes axes{};

  int num_ranks() const;  // 1 without axes
  // Throws: invalid_argument naming the axes.
  size_t axis(std::string_view name) const;
  int size(std::string_view name) const { return axes[axis(name)].size; }

  // One per axis, in the axes' order.
  Ints coordinates(int rank) const;
  int rank_at(const Ints& coordinates) const;

  // The ranks that differ from `rank` only along `names`, in order, including `rank`.
  Ints group_of(int rank, const Strings& names) const;
  // Each such group once, in the order of their first ranks.
  std::vector<Ints> groups(const Strings& names) const;

  bool operator==(const MeshShape&) const = default;
};

// Parses the axes as written; they are checked once the number of ranks is known. Throws:
// invalid_argument for text that is not NAME=SIZE,….
MeshAxes parse_axes(std::string_view text);

// Parses "dp=2,pp=2,tp=2". One size may be -1: the remaining ranks; `num_ranks` is their total (0:
// unknown, then -1 is an error). Throws: invalid_argument for a name that is not a word or is
// repeated, a size below 1, more than one -1, and sizes whose product is not num_ranks.
MeshShape parse_mesh(std::string_view text, int num_ranks = 0);
// The same checks, for axes given in code.
MeshShape checked_mesh(MeshAxes axes, int num_ranks);

std::string to_string(const MeshShape& shape);                   // "dp=2,pp=2,tp=2"
std::string coordinates_text(const MeshShape& shape, int rank);  // "dp 0, pp 1, tp 0"

}  // namespace muster
