// SHA-256 of the contents of a checkpoint's files: distinguishes intact files from damaged ones.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "muster/base/no_copy.h"

struct evp_md_ctx_st;  // OpenSSL's

namespace muster {

class Sha256 : NoCopy {
 public:
  Sha256();
  void update(const void* bytes, size_t size);

  // 64 lower-case hexadecimal digits. Call it once.
  std::string hex();

 private:
  std::shared_ptr<evp_md_ctx_st> context_;
};

// Told the size of each piece that was read.
using OnBytes = std::function<void(size_t)>;

// The checksum of a whole file, read in pieces. Throws: io.
std::string sha256_of_file(const std::string& path, const OnBytes& on_piece = {});

}  // namespace muster
