// Numbers in messages and records: little endian, of as many bytes as is said. For the files of
// this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace muster {

inline void put_number(std::string& out, uint64_t value, size_t size) {
  for (size_t i = 0; i < size; ++i)
    out += static_cast<char>(value >> (8 * i) & 0xff);
}

// `from` has at least `size` bytes.
inline uint64_t read_number(std::string_view from, size_t size) {
  uint64_t value = 0;
  for (size_t i = 0; i < size; ++i)
    value |= uint64_t{static_cast<unsigned char>(from[i])} << (8 * i);
  return value;
}

// As OpenSSL's functions take them.
inline const unsigned char* unsigned_bytes(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}

}  // namespace muster
