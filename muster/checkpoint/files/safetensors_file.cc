// The head is read when the file is opened, and its length is compared with the file's. A file of
// another kind that people take for safetensors is named in the message, with what to do about it.
#include "muster/checkpoint/files/safetensors_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <string_view>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

namespace {

static_assert(std::endian::native == std::endian::little, "safetensors files are little-endian");

constexpr uint64_t kLengthBytes = 8;

// A kind of file that people have under the same names.
struct OtherKind {
  std::string_view begins_with;
  const char* what;
  const char* next;
};

constexpr OtherKind kOtherKinds[] = {
    {"PK\x03\x04",
     "what torch.save or torch::save writes (.pt, .bin)",
     "muster::load_weights reads what Python wrote; or convert it: "
     "safetensors.torch.save_file(torch.load(path), …)"},
    {"\x80\x02",
     "a pickle, as an old torch.save writes (.pt, .bin)",
     "convert it: safetensors.torch.save_file(torch.load(path), …) in Python"},
    {"GGUF", "a GGUF file, whose weights are mostly quantized", "fetch the model as safetensors"},
    {"version https://git-lfs",
     "Git LFS's pointer to the file",
     "fetch the file itself: git lfs pull"},
    {"\x89HDF", "an HDF5 file (.h5), as Keras writes", "fetch the model as safetensors"},
    {"<", "a page of HTML or XML, perhaps a server's error", "fetch the file again"},
    {"{",
     "JSON, such as an index or a configuration",
     "give the folder, or the .safetensors file itself"},
};
constexpr uint64_t kMostOfKind = 32;

// Opens a plain file; `bytes` becomes its size. Throws: io.
Fd open_safetensors(const std::string& path, uint64_t& bytes) {
  Fd fd = open_plain_file(path, "safetensors: ");
  struct stat info{};
  if (::fstat(fd.get(), &info) != 0)
    fail_errno(errno, "safetensors: cannot open '", path, "'");
  bytes = info.st_size;
  return fd;
}

}  // namespace

// A length that does not fit is the first sign of another kind of file.
SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  uint64_t file_bytes = 0;
  fd_ = open_safetensors(path, file_bytes);
  if (file_bytes == 0)
    refuse("an empty file", "whoever wrote or copied it was interrupted: make it again");
  if (file_bytes < kLengthBytes)
    refuse(cat("a file of only ", file_bytes, " bytes"));
  uint64_t head_bytes = 0;
  read_exactly(&head_bytes, kLengthBytes, 0);
  if (head_bytes > kMaxHeadBytes || head_bytes > file_bytes - kLengthBytes) {
    refuse_other_kind(file_bytes);
    refuse(cat("a header of ", head_bytes, " bytes in a file of ", file_bytes));
  }
  head_.json.resize(head_bytes);
  read_exactly(head_.json.data(), head_bytes, kLengthBytes);
  head_.data_bytes = file_bytes - kLengthBytes - head_bytes;
}

// Returns if the file is of no kind that is known.
void SafetensorsFile::refuse_other_kind(uint64_t file_bytes) const {
  std::string begin(std::min<uint64_t>(file_bytes, kMostOfKind), '\0');
  read_exactly(begin.data(), begin.size(), 0);
  for (const OtherKind& other : kOtherKinds) {
    if (!begin.starts_with(other.begins_with))
      continue;
    throw invalid_argument("safetensors: expected a safetensors file at '",
                           path_,
                           "', got ",
                           other.what,
                           "; ",
                           other.next);
  }
}

SafetensorsHeader SafetensorsFile::header() const {
  return parse_safetensors_header(head_.json, head_.data_bytes, path_);
}

void SafetensorsFile::read(void* to, uint64_t size, uint64_t at) const {
  read_exactly(to, size, kLengthBytes + head_.json.size() + at);
}

// Blocking: until all bytes are there; a file that has become shorter is refused.
void SafetensorsFile::read_exactly(void* to, uint64_t size, uint64_t at) const {
  auto* out = static_cast<char*>(to);
  char* const end = out + size;
  while (out != end) {
    const ssize_t n = ::pread(fd_.get(), out, end - out, static_cast<off_t>(at));
    if (n == 0)
      refuse("one that was cut short while it was read");
    if (n < 0 && errno == EINTR)
      continue;
    if (n < 0)
      fail_errno(errno, "safetensors: cannot read '", path_, "'");
    out += n;
    at += n;
  }
}

void SafetensorsFile::refuse(const std::string& got, const std::string& next) const {
  throw invalid_argument(
      "safetensors: expected a valid file in '", path_, "', got ", got, "; ", next);
}

}  // namespace muster
