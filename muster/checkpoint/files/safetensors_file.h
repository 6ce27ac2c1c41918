// A safetensors file that is open to be read piece by piece; knows no tensor. Called by
// safetensors.h, and by what looks at files without LibTorch.
#pragma once

#include <cstdint>
#include <string>

#include "muster/base/fd.h"
#include "muster/checkpoint/files/safetensors_header.h"

namespace muster {

constexpr uint64_t kMaxHeadBytes = 100'000'000;  // the format's own limit

// The JSON text as it is, and the size of the data behind it.
struct SafetensorsHead {
  std::string json;
  uint64_t data_bytes = 0;
};

class SafetensorsFile {
 public:
  // Opens it and reads the head, without judging it. Throws: io; invalid_argument when it is cut
  // short.
  explicit SafetensorsFile(const std::string& path);

  const std::string& path() const { return path_; }
  const SafetensorsHead& head() const { return head_; }

  // Throws: as parse_safetensors_header.
  SafetensorsHeader header() const;

  // Some of the data. Throws: io; invalid_argument when it ends before.
  void read(void* to, uint64_t size, uint64_t at) const;

  // Throws: invalid_argument, which says what was found.
  [[noreturn]] void refuse(const std::string& got,
                           const std::string& next = "it is damaged or of another kind") const;

 private:
  // Throws: invalid_argument for a file that begins as one of another kind.
  void refuse_other_kind(uint64_t file_bytes) const;
  void read_exactly(void* to, uint64_t size, uint64_t at) const;

  std::string path_;
  Fd fd_;
  SafetensorsHead head_;
};

}  // namespace muster
