// A new file that is on disk, not only in the page cache, when finish() returns; it computes its
// checksum while writing. All files of a checkpoint are written by it.
#pragma once

#include <cstdint>
#include <string>

#include "muster/base/fd.h"
#include "muster/checkpoint/files/sha256.h"

namespace muster {

// A manifest records this about a file.
struct WrittenFile {
  std::string name;  // without its folder
  uint64_t bytes = 0;
  std::string sha256{};

  bool operator==(const WrittenFile&) const = default;
};

class DurableFile {
 public:
  // Throws: io if it exists already or cannot be created.
  DurableFile(const std::string& folder, const std::string& name);

  // Throws: io naming the file (no space left, quota, limit, disk error).
  void write(const void* bytes, size_t size);
  void write(const std::string& bytes) { write(bytes.data(), bytes.size()); }

  // Waits for the disk and closes the file. Throws: io.
  WrittenFile finish();

 private:
  std::string path_;
  WrittenFile record_;
  Fd fd_;
  Sha256 hash_;
};

// Makes the names in a folder durable. Throws: io.
void sync_folder(const std::string& folder);

}  // namespace muster
