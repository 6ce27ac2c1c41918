// Decompresses gzip files with zlib, in pieces, so that a small file cannot claim all memory: the
// output is compared with the bound after each piece. A gzip file may hold several members, one
// after the other, which are read as one text.
#include "muster/data/gzip.h"

#include <sys/stat.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>

#include "muster/base/error.h"
#include "muster/base/fd.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/data/plain_file.h"

namespace muster {

namespace {

// zlib takes the largest window (15), and checks a gzip header and trailer (16).
constexpr int kGzipWindow = 15 + 16;

// The deleter of a stream that inflateInit2() has prepared.
struct EndInflate {
  void operator()(z_stream* stream) const { inflateEnd(stream); }
};

// Every fault of a gzip file has the same remedy, so the message ends alike.
template <class... Parts>
[[noreturn]] void refuse_gzip(const std::string& name, const Parts&... got) {
  throw invalid_argument(
      "gzip: expected a whole gzip file in '", name, "', got ", got..., "; fetch the file again");
}

void check_bound(const std::string& name, uint64_t bytes, uint64_t max_bytes) {
  if (bytes <= max_bytes)
    return;
  throw invalid_argument("read: expected at most ",
                         format_bytes(max_bytes),
                         " in '",
                         name,
                         "', got more; see whether it is the right file");
}

std::string fault_of(const z_stream& stream) {
  return stream.msg != nullptr ? stream.msg : "zlib error";
}

// zlib counts its input in 32 bits, so it gets pieces. Returns the piece's bytes.
size_t feed(z_stream& stream, std::string_view rest) {
  const size_t piece = std::min<size_t>(rest.size(), 1 << 20);
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(rest.data()));
  stream.avail_in = piece;
  return piece;
}

}  // namespace

// Names do not decide: a file that was unpacked may still be called .gz.
bool is_gzip(std::string_view bytes) {
  return bytes.size() >= 2 && bytes[0] == '\x1f' && bytes[1] == '\x8b';
}

// zlib asks for more where there is none: then the file ended before its last member did.
std::string gunzip(std::string_view bytes, uint64_t max_bytes, const std::string& name) {
  z_stream stream{};
  if (inflateInit2(&stream, kGzipWindow) != Z_OK)
    throw Error(ErrorCode::internal, "gzip: zlib did not start; is there memory?");
  // The stream itself lives on the stack; the pointer only ends it.
  const std::unique_ptr<z_stream, EndInflate> owner(&stream);

  std::string out;
  std::string buffer(1 << 16, '\0');
  size_t fed = 0;
  for (;;) {
    if (stream.avail_in == 0)
      fed += feed(stream, bytes.substr(fed));
    stream.next_out = reinterpret_cast<Bytef*>(buffer.data());
    stream.avail_out = buffer.size();
    const int result = inflate(&stream, Z_NO_FLUSH);
    const size_t got = buffer.size() - stream.avail_out;
    check_bound(name, out.size() + got, max_bytes);
    out.append(buffer, 0, got);
    if (result == Z_STREAM_END) {
      const size_t used = fed - stream.avail_in;
      if (used == bytes.size())
        return out;
      if (!is_gzip(bytes.substr(used)))
        refuse_gzip(name, bytes.size() - used, " bytes of something else after its end");
      inflateReset(&stream);
      continue;
    }
    const bool is_used_up = stream.avail_in == 0 && fed == bytes.size() && got == 0;
    if (result == Z_BUF_ERROR || (result == Z_OK && is_used_up))
      refuse_gzip(name, "one cut short after ", bytes.size(), " bytes");
    if (result != Z_OK)
      refuse_gzip(name, "damaged data (", fault_of(stream), ")");
  }
}

// A plain file is preferred, since it needs no unpacking.
std::optional<std::string> find_data_file(const std::string& path) {
  for (const char* ending : {"", ".gz"})
    if (std::filesystem::exists(path + ending))
      return path + ending;
  return std::nullopt;
}

std::string read_data_file(const std::string& path, uint64_t max_bytes) {
  struct stat info{};
  if (::stat(path.c_str(), &info) != 0)
    fail_errno(errno, "read: cannot open '", path, "'");
  expect_plain_file("read", path, info.st_mode);
  // The file's own size is checked before it is read; a compressed text is checked again as it
  // grows.
  check_bound(path, info.st_size, max_bytes);
  std::string bytes = read_file(path);
  return is_gzip(bytes) ? gunzip(bytes, max_bytes, path) : bytes;
}

}  // namespace muster
