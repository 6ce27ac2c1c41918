// What a .npy file says of itself before its data: numpy's format, versions 1 to 3. Used by npy.h;
// knows no tensor.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "muster/base/lists.h"

namespace muster {

struct NpyHeader {
  char kind = 0;          // b (bool), i, u, f, c (complex)
  int64_t item_size = 0;  // bytes
  bool fortran_order = false;
  Int64s shape;
  size_t data_begin = 0;
};

// Of a whole file; `name` is what messages call it.
// Throws: invalid_argument when it is of another kind, cut short or too long, holds objects (which
// numpy would execute), records, or numbers of the other byte order.
NpyHeader parse_npy_header(std::string_view file, const std::string& name);

}  // namespace muster
