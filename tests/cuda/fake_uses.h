// Who has used which part of a block of memory, as far as a later use may depend on it: the last
// write, and the reads since.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/cuda/fake_streams.h"

namespace muster::testing {

class Uses {
 public:
  // Notes a use of the bytes from `begin` to `end` of the block. Returns what is wrong with it, or
  // "".
  std::string read(size_t begin, size_t end, const Operation& operation);
  std::string write(size_t begin, size_t end, const Operation& operation);

 private:
  struct Past {
    const char* name;
    Moment at;
  };
  struct Part {
    size_t end;
    std::optional<Past> written;
    std::vector<Past> reads;
  };
  using Parts = std::map<size_t, Part>;  // by their first byte; what nobody has used has none

  void cut(size_t at);
  Parts::iterator first_from(size_t begin);
  static std::string wrong(const Operation& now, const char* doing, const Past& past, bool wrote);

  Parts parts_;
};

}  // namespace muster::testing
