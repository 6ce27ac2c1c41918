// libarchive's functions, out of the library that is loaded when they are first asked for: what it
// brings along costs a program 2 to 7 ms at its start, and most read no archive. Used by
// tar_reader.cc.
#pragma once

#include <archive.h>
#include <archive_entry.h>

#include <string>

namespace muster {

class ArchiveLibrary {
 public:
  // Throws: unavailable, naming the package, when there is none.
  explicit ArchiveLibrary(const std::string& name);

  decltype(&::archive_read_new) read_new = nullptr;
  decltype(&::archive_read_free) read_free = nullptr;
  decltype(&::archive_read_support_filter_gzip) support_gzip = nullptr;
  decltype(&::archive_read_support_filter_zstd) support_zstd = nullptr;
  decltype(&::archive_read_support_filter_xz) support_xz = nullptr;
  decltype(&::archive_read_support_filter_bzip2) support_bzip2 = nullptr;
  decltype(&::archive_read_support_filter_lz4) support_lz4 = nullptr;
  decltype(&::archive_read_support_format_tar) support_tar = nullptr;
  decltype(&::archive_read_set_format_option) set_format_option = nullptr;
  decltype(&::archive_read_open_filename) open_filename = nullptr;
  decltype(&::archive_read_open_memory) open_memory = nullptr;
  decltype(&::archive_read_next_header) next_header = nullptr;
  decltype(&::archive_read_data_block) data_block = nullptr;
  decltype(&::archive_error_string) error_string = nullptr;
  decltype(&::archive_filter_count) filter_count = nullptr;
  decltype(&::archive_filter_bytes) filter_bytes = nullptr;
  decltype(&::archive_entry_pathname) entry_pathname = nullptr;
  decltype(&::archive_entry_filetype) entry_filetype = nullptr;
  decltype(&::archive_entry_hardlink) entry_hardlink = nullptr;
  decltype(&::archive_entry_sparse_count) entry_sparse_count = nullptr;
  decltype(&::archive_entry_size) entry_size = nullptr;

 private:
  template <class Function>
  void find(Function& function, const char* symbol);

  std::string name_;
  void* library_ = nullptr;  // never closed: readers may outlive whoever loaded it
};

// The one of this process. Throws: as the constructor, again at each call.
const ArchiveLibrary& archive_library();

}  // namespace muster
