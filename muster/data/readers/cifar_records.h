// The records of CIFAR's binary files: labels, then 32×32 pixels, a plane a colour. Used by
// cifar.cc; knows no tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace muster {

constexpr int64_t kCifarSide = 32;
constexpr size_t kCifarPixels = 3 * kCifarSide * kCifarSide;

// How a record begins: `labels` bytes, of which the one at `label` counts, below `classes`.
struct CifarKind {
  size_t labels = 1;
  size_t label = 0;
  int64_t classes = 10;
  size_t size() const { return labels + kCifarPixels; }
};

// `name` is what messages call the file.
// Throws: invalid_argument when the bytes are none, or no whole number of records.
int64_t count_cifar_records(std::string_view bytes, const CifarKind& kind, const std::string& name);

// Shapes: pixels [records, 3, 32, 32]; labels [records].
// Throws: as count_cifar_records; invalid_argument naming the record whose label is out of range.
void read_cifar_records(std::string_view bytes,
                        const CifarKind& kind,
                        const std::string& name,
                        uint8_t* pixels,
                        int64_t* labels);

}  // namespace muster
