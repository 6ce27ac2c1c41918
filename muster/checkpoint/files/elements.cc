#include "muster/checkpoint/files/elements.h"

#include <algorithm>
#include <limits>

#include "muster/base/strings.h"

namespace muster {

namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

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

// In the tensor's order.
std::vector<Stretch> stretches_of(const Elements& elements) {
  std::vector<Stretch> stretches;
  int64_t at = 0;
  for (const ElementRun& run : elements) {
    for (int64_t i = 0; i < run.count; ++i, at += run.length)
      if (run.length > 0)
        stretches.push_back({.begin = run.begin + i * run.stride, .at = at, .length = run.length});
  }
  std::sort(stretches.begin(), stretches.end(), [](const Stretch& a, const Stretch& b) {
    return a.begin < b.begin;
  });
  return stretches;
}

}  // namespace

int64_t element_count(const std::vector<int64_t>& shape) {
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

Elements all_elements(const std::vector<int64_t>& shape) {
  return {{.begin = 0, .length = element_count(shape)}};
}

Elements slice_elements(const std::vector<int64_t>& shape,
                        size_t dim,
                        int64_t begin,
                        int64_t length) {
  int64_t inner = 1, outer = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
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
  for (size_t i = 0, j = 0; i < a.size() && j < b.size();) {
    const int64_t begin = std::max(a[i].begin, b[j].begin);
    const int64_t end = std::min(a[i].begin + a[i].length, b[j].begin + b[j].length);
    if (begin < end) {
      common.push_back({.at_first = a[i].at + begin - a[i].begin,
                        .at_second = b[j].at + begin - b[j].begin,
                        .length = end - begin});
    }
    (a[i].begin + a[i].length < b[j].begin + b[j].length) ? ++i : ++j;
  }
  return common;
}

std::string to_string(const Elements& elements) {
  std::vector<std::string> texts;
  for (const ElementRun& run : elements) {
    texts.push_back(run.count == 1 ? cat("[", run.begin, ", ", run.begin + run.length, ")")
                                   : cat(run.length,
                                         " of every ",
                                         run.stride,
                                         " from ",
                                         run.begin,
                                         ", ",
                                         run.count,
                                         " times"));
  }
  return join(texts, " and ");
}

}  // namespace muster
