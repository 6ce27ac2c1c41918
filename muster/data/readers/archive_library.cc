// libarchive by dlopen: every function that tar_reader.cc calls is looked up by name once, so that
// a library without one of them is refused when it is loaded and not in the middle of an archive.
#include "muster/data/readers/archive_library.h"

#include <dlfcn.h>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

[[noreturn]] void fail_without_archive(const std::string& name, const std::string& reason) {
  throw Error(
      ErrorCode::unavailable,
      cat("tar: expected ",
          name,
          " to read shards, got: ",
          reason,
          "; install libarchive's library (Debian: libarchive13, from 13 on libarchive13t64)"));
}

}  // namespace

// dlsym() gives an untyped address, so the member's type alone decides how it is called.
template <class Function>
void ArchiveLibrary::find(Function& function, const char* symbol) {
  function = reinterpret_cast<Function>(::dlsym(library_, symbol));
  if (function == nullptr)
    fail_without_archive(name_, cat("no function ", symbol));
}

ArchiveLibrary::ArchiveLibrary(const std::string& name)
    : name_(name), library_(::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
  if (library_ == nullptr) {
    // The loader says what is missing: the library itself, or one that it needs.
    const char* const reason = ::dlerror();
    fail_without_archive(name, reason != nullptr ? reason : "unknown reason");
  }
  find(read_new, "archive_read_new");
  find(read_free, "archive_read_free");
  find(support_gzip, "archive_read_support_filter_gzip");
  find(support_zstd, "archive_read_support_filter_zstd");
  find(support_xz, "archive_read_support_filter_xz");
  find(support_bzip2, "archive_read_support_filter_bzip2");
  find(support_lz4, "archive_read_support_filter_lz4");
  find(support_tar, "archive_read_support_format_tar");
  find(set_format_option, "archive_read_set_format_option");
  find(open_filename, "archive_read_open_filename");
  find(open_memory, "archive_read_open_memory");
  find(next_header, "archive_read_next_header");
  find(data_block, "archive_read_data_block");
  find(error_string, "archive_error_string");
  find(filter_count, "archive_filter_count");
  find(filter_bytes, "archive_filter_bytes");
  find(entry_pathname, "archive_entry_pathname");
  find(entry_filetype, "archive_entry_filetype");
  find(entry_hardlink, "archive_entry_hardlink");
  find(entry_sparse_count, "archive_entry_sparse_count");
  find(entry_size, "archive_entry_size");
}

// The first call loads the library. A load that failed is tried again by the next call.
const ArchiveLibrary& archive_library() {
  static const ArchiveLibrary library("libarchive.so.13");  // every libarchive 3
  return library;
}

}  // namespace muster
