// Which elements of a tensor a rank has, where tensors are divided over ranks: a flat stretch (sharded
// state), a slice along a dimension (tensor parallelism), or several. Knows no tensor and no file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace muster {

// `count` stretches of `length` elements of the flattened tensor, whose beginnings lie `stride` apart.
struct ElementRun {
  int64_t begin = 0;
  int64_t length = 0;
  int64_t stride = 0;  // 0 where count is 1
  int64_t count = 1;

  bool operator==(const ElementRun&) const = default;
  auto operator<=>(const ElementRun&) const = default;
};

// In the order in which their holder has them. Units: elements.
using Elements = std::vector<ElementRun>;

// Saturates: shapes come from files too.
int64_t element_count(const std::vector<int64_t>& shape);
int64_t element_count(const Elements& elements);

// Of a tensor of this shape: all, and those with `begin` to `begin + length` along `dim`.
Elements all_elements(const std::vector<int64_t>& shape);
Elements slice_elements(const std::vector<int64_t>& shape, size_t dim, int64_t begin, int64_t length);

// Empty, or why these cannot be elements of a tensor of `total` elements: no run may leave it, and none may
// overlap.
std::string wrong_elements(const Elements& elements, int64_t total);

// Elements that two holders have in common: `length` from `at_first` on in one and from `at_second` on in the
// other.
struct CommonElements {
  int64_t at_first = 0;
  int64_t at_second = 0;
  int64_t length = 0;
};
std::vector<CommonElements> common_elements(const Elements& first, const Elements& second);

// "[0, 4096)", "1024 of every 4096 from 0, 4096 times": for messages.
std::string to_string(const Elements& elements);

}  // namespace muster
