// Errors of the `--gpus` grammar, which point at a character. A private header of selection*.cc.
#pragma once

#include <string>
#include <string_view>

namespace muster {

// A piece of the text, with control characters replaced, cut where it is long.
std::string shown(std::string_view text);

// As pointing_at says it, of the byte `at`. Throws: SelectionError, always.
[[noreturn]] void fail_at(const std::string& text, size_t at, const std::string& problem);

}  // namespace muster
