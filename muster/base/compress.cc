// zlib compresses and uncompresses in one call where the output's size is known. Uncompressed text
// has an unknown size, so the output grows by doubling until it fits or passes the bound.
#include "muster/base/compress.h"

#define ZLIB_CONST  // input is const
#include <zlib.h>

#include <algorithm>
#include <memory>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"

namespace muster {

namespace {

// The first byte of zlib's format with its usual window.
constexpr char kFirstByte = '\x78';

// The deleter of a stream that inflateInit() has prepared.
struct EndUncompress {
  void operator()(z_stream* stream) const { inflateEnd(stream); }
};

}  // namespace

bool is_compressed(std::string_view bytes) {
  return bytes.starts_with(kFirstByte);
}

// The fastest level: most of what there is to save is in repetitions that every level finds.
std::string compressed(std::string_view text) {
  uLongf size = compressBound(text.size());
  std::string bytes(size, '\0');
  const int result = compress2(reinterpret_cast<Bytef*>(bytes.data()),
                               &size,
                               reinterpret_cast<const Bytef*>(text.data()),
                               text.size(),
                               Z_BEST_SPEED);
  if (result != Z_OK)
    throw Error(ErrorCode::internal, "compress: zlib failed with ", result);
  bytes.resize(size);
  return bytes;
}

std::string uncompressed(std::string_view bytes, size_t max_bytes) {
  z_stream stream{};
  if (inflateInit(&stream) != Z_OK)
    throw Error(ErrorCode::internal, "compress: zlib did not start; is there memory?");
  // The stream itself lives on the stack; the pointer only ends it.
  const std::unique_ptr<z_stream, EndUncompress> owner(&stream);
  stream.next_in = reinterpret_cast<const Bytef*>(bytes.data());
  stream.avail_in = bytes.size();
  std::string text;
  const size_t most = max_bytes + 1;  // one byte more shows that there are too many
  for (size_t room = std::clamp<size_t>(4 * bytes.size(), 1, most);;
       room = std::min(2 * room, most)) {
    const size_t used = text.size();
    text.resize(room);
    stream.next_out = reinterpret_cast<Bytef*>(text.data() + used);
    stream.avail_out = room - used;
    const int result = inflate(&stream, Z_NO_FLUSH);
    text.resize(room - stream.avail_out);
    if (text.size() > max_bytes) {
      throw invalid_argument(
          "compressed text: expected at most ", format_bytes(max_bytes), ", got more");
    }
    if (result == Z_STREAM_END && stream.avail_in == 0)
      return text;
    const bool wants_room = result == Z_OK && stream.avail_out == 0;
    if (!wants_room)
      throw invalid_argument("compressed text: it is damaged or cut short");
  }
}

std::string packed(std::string text) {
  constexpr size_t kPlainBytes = 1 << 10;
  return text.size() < kPlainBytes ? text : compressed(text);
}

std::string unpacked(std::string bytes) {
  constexpr size_t kMostBytes = size_t{1} << 30;
  return is_compressed(bytes) ? uncompressed(bytes, kMostBytes) : bytes;
}

}  // namespace muster
