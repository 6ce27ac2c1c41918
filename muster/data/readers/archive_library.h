// libarchive's functions, out of the library that is loaded when they are first asked for: what it
// brings along costs a program 2 to 7 ms at its start, and most read no archive. Used by
// tar_reader.cc.
#pragma once

#include <archive.h>
#include <archive_entry.h>

#include <string>

#include "muster/base/loaded_library.h"

namespace muster {

class ArchiveLibrary : LoadedLibrary {
 public:
  // Throws: unavailable, naming the package, when there is none.
  explicit ArchiveLibrary(const std::string& name);

  decltype(&::archive_read_new) read_new = find("archive_read_new");
  decltype(&::archive_read_free) read_free = find("archive_read_free");
  decltype(&::archive_read_support_filter_gzip) support_gzip =
      find("archive_read_support_filter_gzip");
  decltype(&::archive_read_support_filter_zstd) support_zstd =
      find("archive_read_support_filter_zstd");
  decltype(&::archive_read_support_filter_xz) support_xz = find("archive_read_support_filter_xz");
  decltype(&::archive_read_support_filter_bzip2) support_bzip2 =
      find("archive_read_support_filter_bzip2");
  decltype(&::archive_read_support_filter_lz4) support_lz4 =
      find("archive_read_support_filter_lz4");
  decltype(&::archive_read_support_format_tar) support_tar =
      find("archive_read_support_format_tar");
  decltype(&::archive_read_set_format_option) set_format_option =
      find("archive_read_set_format_option");
  decltype(&::archive_read_open_filename) open_filename = find("archive_read_open_filename");
  decltype(&::archive_read_open_memory) open_memory = find("archive_read_open_memory");
  decltype(&::archive_read_next_header) next_header = find("archive_read_next_header");
  decltype(&::archive_read_data_block) data_block = find("archive_read_data_block");
  decltype(&::archive_error_string) error_string = find("archive_error_string");
  decltype(&::archive_filter_count) filter_count = find("archive_filter_count");
  decltype(&::archive_filter_bytes) filter_bytes = find("archive_filter_bytes");
  decltype(&::archive_entry_pathname) entry_pathname = find("archive_entry_pathname");
  decltype(&::archive_entry_filetype) entry_filetype = find("archive_entry_filetype");
  decltype(&::archive_entry_hardlink) entry_hardlink = find("archive_entry_hardlink");
  decltype(&::archive_entry_sparse_count) entry_sparse_count = find("archive_entry_sparse_count");
  decltype(&::archive_entry_size) entry_size = find("archive_entry_size");
};

// The one of this process. Throws: as the constructor, again at each call.
const ArchiveLibrary& archive_library();

}  // namespace muster
