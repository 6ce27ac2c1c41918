// SHA-256 of the contents of a checkpoint's files: distinguishes intact files from damaged ones.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

namespace muster {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void update(const void* bytes, size_t size);

  // 64 lower-case hexadecimal digits. Call it once.
  std::string hex();

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

// Told the size of each piece that was read.
using OnBytes = std::function<void(size_t)>;

// The checksum of a whole file, read in pieces. Throws: io.
std::string sha256_of_file(const std::string& path, const OnBytes& on_piece = {});

}  // namespace muster
