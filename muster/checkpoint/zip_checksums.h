// The checksums in a zip archive's directory, which LibTorch's reader does not compare. Called by
// torch_file.cc.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

namespace muster {

class ZipChecksums {
 public:
  // Throws: io; invalid_argument if the file has no whole directory.
  explicit ZipChecksums(const std::string& path);

  // Whether these are the bytes that were saved as this record, whose name is without the archive's
  // own before it. True where nothing was noted: torch.save writes 0 if it is told to compute none.
  bool fits(const std::string& record, const void* bytes, size_t size) const;

 private:
  std::map<std::string, uint32_t> sums_;
};

}  // namespace muster
