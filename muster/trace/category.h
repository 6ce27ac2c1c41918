// What a rank's time is counted as, for the breakdown of its steps.
#pragma once

#include <cstdint>

namespace muster {

enum class Category : uint32_t {
  other,
  compute,
  communication,  // exposed: the main thread waits for it
  data,           // waits for the loader
  checkpoint,
};

// "compute" and so on.
const char* to_string(Category category);

}  // namespace muster
