// Bytes as a text that is UTF-8, each byte a character: for arguments, variables and paths, which
// may be any bytes, in what must be UTF-8, as JSON. ASCII stays what it is.
#pragma once

#include <string>
#include <string_view>

namespace muster {

std::string text_of_bytes(std::string_view bytes);

// Throws: invalid_argument, naming `what`, for a text that text_of_bytes has not written.
std::string bytes_of_text(const std::string& text, const std::string& what);

}  // namespace muster
