// Reads tar archives by libarchive, which detects the compression. libarchive accepts an archive
// that was cut between two files, or within one that is sought over; check_room and check_end
// refuse those, as far as a plain file shows it.
#include "muster/data/readers/tar_reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/hex.h"
#include "muster/base/strings.h"
#include "muster/data/plain_file.h"
#include "muster/data/readers/archive_library.h"

namespace muster {

namespace {

constexpr size_t kReadBytes = 1 << 18;  // at once
constexpr int64_t kTarBlockBytes = 512;

}  // namespace

// Owns libarchive's handle.
struct TarReader::Archive : NoCopy {
  const ArchiveLibrary& lib = archive_library();
  archive* handle = lib.read_new();
  Archive() {
    for (const auto support : {lib.support_gzip,
                               lib.support_zstd,
                               lib.support_xz,
                               lib.support_bzip2,
                               lib.support_lz4,
                               lib.support_tar})
      support(handle);
    // `cat a.tar b.tar` is an archive too, of which libarchive would else read a.tar alone.
    lib.set_format_option(handle, "tar", "read_concatenated_archives", "1");
  }
  ~Archive() { lib.read_free(handle); }

  bool is_compressed() const { return lib.filter_count(handle) > 1; }
  std::string failure() const {
    const char* const text = lib.error_string(handle);
    return text == nullptr ? "libarchive: unknown error" : printable(text);
  }
};

// A missing library shows here, before any archive is opened.
void TarReader::need_library() {
  archive_library();
}

TarReader::TarReader(const std::string& path) : name_(path), archive_(std::make_unique<Archive>()) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0)
    fail_errno(errno, "tar: cannot open '", path, "'");
  expect_plain_file("tar", path, info.st_mode);
  // The size is kept, since libarchive does not notice every end that comes too early.
  file_size_ = info.st_size;
  if (archive_->lib.open_filename(archive_->handle, path.c_str(), kReadBytes) != ARCHIVE_OK)
    fail(archive_->failure());
}

// The bytes must outlive the reader, since libarchive does not copy them.
TarReader::TarReader(std::string_view bytes, const std::string& name)
    : name_(name), archive_(std::make_unique<Archive>()) {
  if (archive_->lib.open_memory(archive_->handle, bytes.data(), bytes.size()) != ARCHIVE_OK)
    fail(archive_->failure());
}

TarReader::~TarReader() = default;

// Folders and special files are passed over. A warning leaves an entry usable.
std::optional<std::string> TarReader::next() {
  const ArchiveLibrary& lib = archive_->lib;
  archive_entry* entry = nullptr;
  while (!ended_) {
    const int result = lib.next_header(archive_->handle, &entry);
    if (result == ARCHIVE_EOF) {
      ended_ = true;
      check_end();
      break;
    }
    if (result != ARCHIVE_OK && result != ARCHIVE_WARN)
      fail(archive_->failure());
    const char* const path = lib.entry_pathname(entry);
    entry_ = path == nullptr ? "" : path;
    check_room(entry);
    entry_size_ = std::max<la_int64_t>(0, lib.entry_size(entry));
    const auto type = lib.entry_filetype(entry);
    is_link_ = type == AE_IFLNK || lib.entry_hardlink(entry) != nullptr;
    if (!entry_.empty() && (type == AE_IFREG || is_link_))
      return entry_;
  }
  return std::nullopt;
}

// The bound is checked before the content grows, so an entry cannot claim all memory.
std::string TarReader::read(uint64_t most) {
  std::string content;
  for (;;) {
    const void* bytes = nullptr;
    size_t size = 0;
    la_int64_t offset = 0;
    const int result = archive_->lib.data_block(archive_->handle, &bytes, &size, &offset);
    if (result == ARCHIVE_EOF)
      return content;
    if (result != ARCHIVE_OK)
      fail(archive_->failure());
    if (offset < 0 || std::cmp_greater(offset, most) || size > most - offset)
      fail_too_large(most);
    content.resize(offset, '\0');  // a sparse file leaves gaps
    content.append(static_cast<const char*>(bytes), size);
  }
}

// The entry's header gives the size, so nothing is read for it.
uint64_t TarReader::size(uint64_t most) const {
  if (entry_size_ > most)
    fail_too_large(most);
  return entry_size_;
}

void TarReader::fail_too_large(uint64_t most) const {
  fail(cat("a file of more than ", most, " bytes"));
}

// A file that is passed over unread must be whole too: a resumed stream passes over what it has
// read before, and must fail where it failed then.
void TarReader::check_room(archive_entry* entry) const {
  const ArchiveLibrary& lib = archive_->lib;
  if (!file_size_ || archive_->is_compressed() || lib.entry_sparse_count(entry) > 0)
    return;
  const int64_t left = *file_size_ - lib.filter_bytes(archive_->handle, 0);
  if (left < 0 || lib.entry_size(entry) > left)
    fail("one that ends within it: cut short");
}

// An archive that is cut off between two files looks whole but for the blocks of zeros at the end.
void TarReader::check_end() const {
  if (!file_size_ || archive_->is_compressed())
    return;
  const Fd file(::open(name_.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid())
    fail_errno(errno, "tar: cannot read '", name_, "'");
  char block[kTarBlockBytes];
  const int64_t last = *file_size_ - kTarBlockBytes;
  const bool is_read =
      last >= 0 && ::pread(file.get(), block, kTarBlockBytes, last) == kTarBlockBytes;
  if (!is_read || !all_of(block, [](char c) { return c == 0; }))
    fail("one without tar's end: cut short");
}

void TarReader::fail(const std::string& got) const {
  throw invalid_argument("tar: expected a whole tar archive in '",
                         name_,
                         "', got ",
                         got,
                         entry_.empty() ? "" : cat(" (in or after '", escaped(entry_), "')"),
                         "; fetch or write it again");
}

}  // namespace muster
