// What a rank's time is counted as, for the breakdown of its steps.
#pragma once

#include <cstddef>
#include <cstdint>

namespace muster {

enum class Category : uint32_t {
  other,
  compute,
  communication,  // exposed: the main thread waits for it
  data,           // waits for the loader
  checkpoint,
};

// The category's place in an array with one element for each.
constexpr size_t index_of(Category category) {
  return static_cast<size_t>(category);
}

// "compute" and so on.
const char* to_string(Category category);

}  // namespace muster
