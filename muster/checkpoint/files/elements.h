// Which elements of a tensor a rank has, if tensors are divided over ranks: a flat range (sharded
// state), a slice along a dimension (tensor parallelism), or several. Knows nothing of tensors and
// files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "muster/base/lists.h"

namespace muster {

// `count` ranges of `length` elements of the flattened tensor, whose starts are `stride` apart.
struct ElementRun {
  int64_t begin = 0;
  int64_t length = 0;
  int64_t stride = 0;  // 0 if count is 1
  int64_t count = 1;

  bool operator==(const ElementRun&) const = default;
  auto operator<=>(const ElementRun&) const = default;
};

// Elements in the order in which their holder has them. Units: elements.
using Elements = std::vector<ElementRun>;

// Saturates, because shapes also come from files.
int64_t element_count(const Int64s& shape);
int64_t element_count(const Elements& elements);

// Return all elements of a tensor of this shape, and those from `begin` to `begin + length` along
// `dim`.
Elements all_elements(const Int64s& shape);
Elements slice_elements(const Int64s& shape, size_t dim, int64_t begin, int64_t length);

// Empty, or the reason why these cannot be elements of a tensor of `total` elements: runs must stay
// inside it and must not overlap.
std::string wrong_elements(const Elements& elements, int64_t total);

// Elements that two holders share: `length` elements, from `at_first` in one and from `at_second`
// in the other.
struct CommonElements {
  int64_t at_first = 0;
  int64_t at_second = 0;
  int64_t length = 0;
};
std::vector<CommonElements> common_elements(const Elements& first, const Elements& second);

// "[0, 4096)", "1024 of every 4096 from 0, 4096 times": for messages.
std::string to_string(const Elements& elements);

}  // namespace muster
