// Reads the digits of scikit-learn: a line for each image, 64 pixels and the label. Every fifth
// image is of the test split, so that both have all classes. Each fault is reported with line and
// column.
#include "muster/data/digits.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cstdint>
#include <string_view>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/hex.h"
#include "muster/base/indices_of.h"
#include "muster/base/lists.h"
#include "muster/base/strings.h"
#include "muster/base/torch_names.h"
#include "muster/data/gzip.h"

namespace muster {

namespace {

constexpr int64_t kSide = 8;
constexpr size_t kPixels = kSide * kSide;
constexpr int64_t kMaxPixel = 16;
constexpr int64_t kMaxLabel = 9;
// The real file unpacks to far less; the bound stops one that is something else.
constexpr uint64_t kMaxBytes = 64 << 20;

struct Samples {
  std::vector<float> pixels;
  Int64s labels;
};

[[noreturn]] void refuse(const std::string& path,
                         size_t line,
                         const std::string& expected,
                         const std::string& got) {
  throw invalid_argument("digits: expected ",
                         expected,
                         " in '",
                         path,
                         "' line ",
                         line,
                         ", got ",
                         got,
                         "; see whether it is digits.csv.gz, and complete");
}

// Returns the field as a number from 0 to `most`, or refuses the line.
int64_t number(
    std::string_view text, int64_t most, const std::string& path, size_t line, size_t column) {
  const auto value = parse_int(trim(text));
  if (!value || *value < 0 || *value > most) {
    refuse(path,
           line,
           cat("a whole number from 0 to ", most, " in column ", column),
           in_quotes(escaped(text)));
  }
  return *value;
}

// Appends one image and its label to `into`.
void read_line(std::string_view text, const std::string& path, size_t line, Samples& into) {
  const auto fields = split(trim(text), ',');
  // The first field says best that a file is of another kind.
  number(fields[0], kMaxPixel, path, line, 1);
  if (fields.size() != kPixels + 1)
    refuse(path, line, cat(kPixels + 1, " columns"), cat(fields.size(), " columns"));
  for (const size_t i : indices_below(kPixels)) {
    const auto pixel = number(fields[i], kMaxPixel, path, line, i + 1);
    into.pixels.push_back(static_cast<float>(pixel) / kMaxPixel);
  }
  into.labels.push_back(number(fields[kPixels], kMaxLabel, path, line, kPixels + 1));
}

// Images get a channel dimension, as convolutions expect it.
TensorDataset to_dataset(const Samples& samples) {
  const auto count = std::ssize(samples.labels);
  return {at::tensor(samples.pixels, kFloat).view({count, 1, kSide, kSide}),
          at::tensor(samples.labels, kLong)};
}

}  // namespace

// The last line may lack a line break. Fewer than five lines would leave the test split empty.
DatasetSplit read_digits(const std::string& path) {
  const auto text = read_data_file(path, kMaxBytes);
  Samples train;
  Samples test;
  size_t row = 0;
  for (size_t from = 0; from < text.size(); ++row) {
    const size_t end = std::min(text.find('\n', from), text.size());
    read_line(std::string_view(text).substr(from, end - from),
              path,
              row + 1,
              row % 5 == 4 ? test : train);
    from = end + 1;
  }
  if (row < 5)
    refuse(path, row + 1, "at least 5 lines", cat("the end of the file after ", row));
  return {to_dataset(train), to_dataset(test)};
}

}  // namespace muster
