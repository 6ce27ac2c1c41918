// Finds damage of checkpoints and safetensors files, as `muster checkpoint verify` tells it. Knows
// no LibTorch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace muster {

// A row of `muster checkpoint verify`.
struct VerifiedFile {
  std::string checkpoint;
  std::string file{};  // empty: the checkpoint itself
  uint64_t bytes = 0;
  bool has_checksum = false;
  std::string problem{};  // empty: whole
};

using VerifiedFiles = std::vector<VerifiedFile>;

// Told before each piece of the work: what is read, and how many bytes more of it have been.
using OnBytesRead = std::function<void(const std::string& path, size_t bytes)>;

// Compares every file at `path` with its checksum, and reads the heads of safetensors files. A file
// alone, and a folder of a hub, have no checksums: heads are compared with sizes, and tensors with
// the index.
VerifiedFiles verify_files(const std::string& path, const OnBytesRead& on_bytes = {});

}  // namespace muster
