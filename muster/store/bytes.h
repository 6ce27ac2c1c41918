// Bytes for the files of this folder: numbers in messages and records, little endian and of as many
// bytes as is said; and bytes as OpenSSL's functions take them.
#pragma once

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "muster/base/no_copy.h"

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

inline const unsigned char* unsigned_bytes(std::string_view text) {
  return reinterpret_cast<const unsigned char*>(text.data());
}
inline unsigned char* unsigned_bytes(std::string& text) {
  return reinterpret_cast<unsigned char*>(text.data());
}

// Writes 32 bytes to `mac`. False when OpenSSL fails.
inline bool hmac_sha256(std::string_view key, std::string_view message, unsigned char* mac) {
  unsigned size = 0;
  return HMAC(EVP_sha256(),
              key.data(),
              static_cast<int>(key.size()),
              unsigned_bytes(message),
              message.size(),
              mac,
              &size) != nullptr;
}

// A place for a secret's text, which is wiped at the end.
template <size_t kSize>
struct WipedBytes : NoCopy {
  WipedBytes() = default;
  ~WipedBytes() { OPENSSL_cleanse(data, kSize); }

  char data[kSize];
};

}  // namespace muster
