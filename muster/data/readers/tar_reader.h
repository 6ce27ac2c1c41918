// The files of a tar archive, one after the other: plain or compressed (gzip, zstd, xz, as
// libarchive knows). Used by web_samples.cc; knows no tensor.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "muster/base/no_copy.h"

struct archive_entry;

namespace muster {

class TarReader : NoCopy {
 public:
  // Throws: unavailable, naming the package, when libarchive, which reads archives, is not
  // installed.
  static void need_library();

  // Throws: as need_library(); io when it cannot be opened; invalid_argument when it is no tar
  // archive.
  explicit TarReader(const std::string& path);
  // Reads bytes, which must outlive this; `name` is what messages call them.
  TarReader(std::string_view bytes, const std::string& name);
  ~TarReader();

  // The name of the next regular file or link to one; nothing at the end. Files that were not read
  // are sought over where the archive is a file and not compressed. Throws: invalid_argument when
  // the archive is damaged or cut short; nothing can be read after that.
  std::optional<std::string> next();

  // Whether next() has named a link, which has no content of its own.
  bool is_link() const { return is_link_; }

  // The content of the file that next() has named. Throws: as next(); for more than `most` bytes.
  std::string read(uint64_t most);
  // The length of that content, which is not read for it. Throws: as read().
  uint64_t size(uint64_t most) const;

 private:
  struct Archive;
  [[noreturn]] void fail(const std::string& got) const;
  [[noreturn]] void fail_too_large(uint64_t most) const;
  void check_room(archive_entry* entry) const;
  void check_end() const;

  std::string name_;
  std::optional<int64_t> file_size_;  // nothing for bytes
  bool ended_ = false;
  std::string entry_;  // the name that was met last, of a folder too
  bool is_link_ = false;
  uint64_t entry_size_ = 0;
  std::unique_ptr<Archive> archive_;
};

}  // namespace muster
