// Elements of a tensor are runs of equal stretches, as a slice along any dimension has them.
// Numbers may come from a file, so sums and products stop at the largest number instead of
// overflowing.
#include "muster/checkpoint/files/elements.h"

#include <algorithm>

#include "muster/base/indices_of.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr int64_t kMost = INT64_MAX;

// The largest number stands for every number beyond it.
int64_t saturated_product(int64_t a, int64_t b) {
  int64_t product = 0;
  return __builtin_mul_overflow(a, b, &product) ? kMost : product;
}

int64_t saturated_sum(int64_t a, int64_t b) {
  int64_t sum = 0;
  return __builtin_add_overflow(a, b, &sum) ? kMost : sum;
}

// A stretch of the tensor, and where its holder has it.
struct Stretch {
  int64_t begin;
  int64_t at;
  int64_t length;
};

// Returns the stretches in the tensor's order, each with its place in the holder's.
std::vector<Stretch> stretches_of(const Elements& elements) {
  std::vector<Stretch> stretches;
  int64_t at = 0;
  for (const ElementRun& run : elements) {
    for (int64_t i = 0; i < run.count; ++i, at += run.length)
      if (run.length > 0)
        stretches.push_back({.begin = run.begin + i * run.stride, .at = at, .length = run.length});
  }
  std::ranges::sort(stretches, {}, &Stretch::begin);
  return stretches;
}

}  // namespace

int64_t element_count(const Int64s& shape) {
  int64_t count = 1;
  for (const int64_t size : shape)
    count = saturated_product(count, size);
  return count;
}

int64_t element_count(const Elements& elements) {
  int64_t count = 0;
  for (const ElementRun& run : elements)
    count = saturated_sum(count, saturated_product(run.length, run.count));
  return count;
}

Elements all_elements(const Int64s& shape) {
  return {{.begin = 0, .length = element_count(shape)}};
}

// Row-major order: a slice along the first dimension is one stretch, along any other one stretch
// for each index before it.
Elements slice_elements(const Int64s& shape, size_t dim, int64_t begin, int64_t length) {
  int64_t inner = 1, outer = 1;
  for (const size_t i : indices_of(shape)) {
    if (i < dim)
      outer *= shape[i];
    if (i > dim)
      inner *= shape[i];
  }
  const bool is_one_stretch = outer == 1 || length == shape[dim];
  if (is_one_stretch)
    return {{.begin = begin * inner, .length = length * inner * outer}};
  return {{.begin = begin * inner,
           .length = length * inner,
           .stride = shape[dim] * inner,
           .count = outer}};
}

// Elements come from a file, so nothing about them is taken for granted. Stretches are bounded
// before they are listed.
std::string wrong_elements(const Elements& elements, int64_t total) {
  constexpr int64_t kMostStretches = 1 << 24;  // more than a matrix has rows
  int64_t stretches = 0;
  if (total == kMost)
    return "more elements than can be counted";
  for (const ElementRun& run : elements) {
    if (run.begin < 0 || run.length < 0 || run.stride < 0 || run.count < 1)
      return "a run with a number below 0";
    if (run.length == 0 && run.count > 1)
      return "stretches without elements";
    const int64_t last = saturated_sum(run.begin, saturated_product(run.stride, run.count - 1));
    if (saturated_sum(last, run.length) > total)
      return cat("a run to element ", saturated_sum(last, run.length), " of ", total);
    stretches = saturated_sum(stretches, run.count);
  }
  if (stretches > kMostStretches)
    return cat(stretches, " stretches");
  int64_t end = 0;
  for (const Stretch& stretch : stretches_of(elements)) {
    if (stretch.begin < end)
      return cat("element ", stretch.begin, " twice");
    end = stretch.begin + stretch.length;
  }
  return {};
}

std::vector<CommonElements> common_elements(const Elements& first, const Elements& second) {
  const std::vector<Stretch> a = stretches_of(first), b = stretches_of(second);
  std::vector<CommonElements> common;
  // Both are sorted, so the one that ends first cannot meet what follows in the other.
  for (auto mine = a.begin(), theirs = b.begin(); mine != a.end() && theirs != b.end();) {
    const int64_t my_end = mine->begin + mine->length, their_end = theirs->begin + theirs->length;
    const int64_t begin = std::max(mine->begin, theirs->begin);
    const int64_t end = std::min(my_end, their_end);
    if (begin < end) {
      common.push_back({.at_first = mine->at + begin - mine->begin,
                        .at_second = theirs->at + begin - theirs->begin,
                        .length = end - begin});
    }
    if (my_end < their_end)
      ++mine;
    else
      ++theirs;
  }
  return common;
}

std::string to_string(const Elements& elements) {
  Strings texts;
  for (const auto& [begin, length, stride, count] : elements) {
    if (count == 1)
      texts.push_back(cat("[", begin, ", ", begin + length, ")"));
    else
      texts.push_back(cat(length, " of every ", stride, " from ", begin, ", ", count, " times"));
  }
  return join(texts, " and ");
}

}  // namespace muster
