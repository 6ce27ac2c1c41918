#include "muster/data/readers/tar_reader.h"

#include <archive.h>
#include <archive_entry.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/data/gzip.h"

namespace muster {

namespace {

constexpr size_t kBlock = 1 << 18;
constexpr size_t kTarBlock = 512;

}  // namespace

struct TarReader::Archive {
  archive* handle = ::archive_read_new();
  Archive() {
    for (const auto support : {archive_read_support_filter_gzip, archive_read_support_filter_zstd,
                               archive_read_support_filter_xz, archive_read_support_filter_bzip2,
                               archive_read_support_filter_lz4, archive_read_support_format_tar})
      support(handle);
    // `cat a.tar b.tar` is an archive too; what is behind the first one's end would be left out in silence.
    ::archive_read_set_format_option(handle, "tar", "read_concatenated_archives", "1");
  }
  ~Archive() { ::archive_read_free(handle); }
  Archive(const Archive&) = delete;
  Archive& operator=(const Archive&) = delete;

  std::string failure() const {
    const char* const text = ::archive_error_string(handle);
    return text == nullptr ? "libarchive: unknown error" : printable(text);
  }
};

TarReader::TarReader(const std::string& path)
    : name_(path), is_file_(true), archive_(std::make_unique<Archive>()) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) fail_errno(cat("tar: cannot open '", path, "'"), errno);
  if (!S_ISREG(info.st_mode))
    throw Error(ErrorCode::io,
                cat("tar: expected a file at '", path, "', got ",
                    S_ISDIR(info.st_mode) ? "a folder" : "a special file", "; correct the path"));
  file_size_ = info.st_size;
  if (::archive_read_open_filename(archive_->handle, path.c_str(), kBlock) != ARCHIVE_OK)
    fail(archive_->failure());
}

TarReader::TarReader(std::string_view bytes, const std::string& name)
    : name_(name), is_file_(false), archive_(std::make_unique<Archive>()) {
  if (::archive_read_open_memory(archive_->handle, bytes.data(), bytes.size()) != ARCHIVE_OK)
    fail(archive_->failure());
}

TarReader::~TarReader() = default;

std::optional<std::string> TarReader::next() {
  archive_entry* entry = nullptr;
  while (!ended_) {
    const int result = ::archive_read_next_header(archive_->handle, &entry);
    if (result == ARCHIVE_EOF) {
      ended_ = true;
      check_end();
      break;
    }
    if (result != ARCHIVE_OK && result != ARCHIVE_WARN) fail(archive_->failure());
    const char* const path = ::archive_entry_pathname(entry);
    entry_ = path == nullptr ? "" : path;
    check_room(entry);
    if (!entry_.empty() && ::archive_entry_filetype(entry) == AE_IFREG &&
        ::archive_entry_hardlink(entry) == nullptr)
      return entry_;
  }
  return std::nullopt;
}

std::string TarReader::read(uint64_t most) {
  std::string content;
  for (;;) {
    const void* bytes = nullptr;
    size_t size = 0;
    la_int64_t offset = 0;
    const int result = ::archive_read_data_block(archive_->handle, &bytes, &size, &offset);
    if (result == ARCHIVE_EOF) return content;
    if (result != ARCHIVE_OK) fail(archive_->failure());
    if (offset < 0 || static_cast<uint64_t>(offset) > most || size > most - static_cast<uint64_t>(offset))
      fail(cat("a file of more than ", most, " bytes"));
    content.resize(static_cast<size_t>(offset), '\0');  // of a sparse file
    content.append(static_cast<const char*>(bytes), size);
  }
}

// What is passed over unread must be there too: a resumed stream passes over what it has read before.
void TarReader::check_room(archive_entry* entry) const {
  if (!is_file_ || ::archive_filter_count(archive_->handle) > 1 || ::archive_entry_sparse_count(entry) > 0)
    return;
  const int64_t here = ::archive_filter_bytes(archive_->handle, 0);
  if (here > file_size_ || ::archive_entry_size(entry) > file_size_ - here)
    fail("one that ends within it: cut short");
}

// An archive that is cut off between two files looks whole but for the blocks of zeros at the end.
void TarReader::check_end() const {
  if (!is_file_ || ::archive_filter_count(archive_->handle) > 1) return;
  const Fd file(::open(name_.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) fail_errno(cat("tar: cannot read '", name_, "'"), errno);
  char block[kTarBlock];
  const int64_t last = file_size_ - static_cast<int64_t>(kTarBlock);
  const bool whole = last >= 0 &&
                     ::pread(file.get(), block, kTarBlock, last) == static_cast<ssize_t>(kTarBlock) &&
                     std::all_of(block, block + kTarBlock, [](char c) { return c == 0; });
  if (!whole) fail("one without tar's end: cut short");
}

void TarReader::fail(const std::string& got) const {
  throw Error(
      ErrorCode::invalid_argument,
      cat("tar: expected a whole tar archive in '", name_, "', got ", got,
          entry_.empty() ? "" : cat(" (in or after '", shown(entry_), "')"), "; fetch or write it again"));
}

}  // namespace muster
