// Reads bytes that another process has written, piece by piece: each piece's length first, and no
// piece that is not there whole. For whatever comes by a store, a socket or a file and says its own
// lengths.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

class ByteReader {
 public:
  // `what` it is, for the error. The bytes must outlive it.
  ByteReader(std::string_view bytes, std::string what) : rest_(bytes), what_(std::move(what)) {}

  size_t left() const { return rest_.size(); }

  // Throws: invalid_argument when there are fewer. So do the others.
  std::string_view take(size_t size) {
    if (size > rest_.size())
      fail(cat(size, " more bytes"), cat(rest_.size()));
    const std::string_view piece = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return piece;
  }

  // Digits up to `end`, which is taken too.
  size_t take_number(char end) {
    const size_t digits = rest_.find(end);
    const auto number = parse_int(rest_.substr(0, digits));
    if (digits == npos || !number || *number < 0)
      fail("a number", in_quotes(printable(rest_.substr(0, 20))));
    rest_.remove_prefix(digits + 1);
    return *number;
  }

  // The value as it was in the memory of who has written it, which may be another host's.
  template <class Value>
  Value take_value() {
    static_assert(std::is_trivially_copyable_v<Value>);
    static_assert(std::endian::native == std::endian::little, "hosts agree on little endian");
    Value value;
    std::memcpy(&value, take(sizeof(value)).data(), sizeof(value));
    return value;
  }

  // Nothing is left.
  void end() const {
    if (!rest_.empty())
      fail("no more bytes", cat(rest_.size()));
  }

 private:
  [[noreturn]] void fail(const std::string& expected, const std::string& got) const {
    throw invalid_argument(what_, ": expected ", expected, ", got ", got);
  }

  std::string_view rest_;
  std::string what_;
};

}  // namespace muster
