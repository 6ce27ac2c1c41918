// Text in fewer bytes, for messages that go to many: zlib's format.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace muster {

// Whether the bytes begin as compressed() makes them; no JSON text does.
bool is_compressed(std::string_view bytes);

std::string compressed(std::string_view text);

// The text. Throws: invalid_argument if the bytes are damaged, or are more than `max_bytes` of
// text.
std::string uncompressed(std::string_view bytes, size_t max_bytes);

// As it is, or compressed, where that saves something: for text that does not begin as compressed
// bytes do.
std::string packed(std::string text);

// The text, of 1 GiB at most. Throws: as uncompressed.
std::string unpacked(std::string bytes);

}  // namespace muster
