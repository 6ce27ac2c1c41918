// Checkpoints and safetensors files from bytes, for tests without LibTorch.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "muster/base/fd.h"
#include "muster/checkpoint/files/manifest.h"
#include "muster/checkpoint/files/safetensors_header.h"
#include "muster/checkpoint/files/sha256.h"
#include "tests/data/files.h"

namespace muster::test {

struct RawTensor {
  std::string dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

inline std::string safetensors_bytes(const std::map<std::string, RawTensor>& tensors) {
  SafetensorsHeader header;
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    header.tensors[name] = {
        tensor.dtype, tensor.shape, data.size(), data.size() + tensor.bytes.size()};
    data += tensor.bytes;
  }
  const std::string json = format_safetensors_header(header);
  const uint64_t size = json.size();
  return std::string(reinterpret_cast<const char*>(&size), sizeof(size)) + json + data;
}

inline void put_safetensors(const std::string& path,
                            const std::map<std::string, RawTensor>& tensors) {
  write_file(path, safetensors_bytes(tensors));
}

// A folder whose manifest says step `step` and knows one file, by whatever name.
inline void put_checkpoint(const std::string& folder,
                           int64_t step,
                           const std::map<std::string, RawTensor>& tensors,
                           const std::string& file = kModelFile,
                           const std::string& optimizer = R"({"kind":"AdamW"})") {
  std::filesystem::create_directories(folder);
  put_safetensors(folder + "/" + std::filesystem::path(file).filename().string(), tensors);
  const std::string bytes = safetensors_bytes(tensors);
  Sha256 hash;
  hash.update(bytes.data(), bytes.size());
  Manifest manifest;
  manifest.position.step = step;
  manifest.world_size = 2;
  manifest.files = {{.name = file, .bytes = bytes.size(), .sha256 = hash.hex()}};
  manifest.optimizer = optimizer;
  write_file(folder + "/" + kManifestFile, format_manifest(manifest));
}

}  // namespace muster::test
