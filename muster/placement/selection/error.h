// Errors of the `--gpus` grammar, which point at a character. A private header of selection*.cc.
#pragma once

#include <string>
#include <string_view>

namespace muster {

inline constexpr size_t kMaxEntryShown = 50;

// The text with control characters replaced, cut after `most` characters.
std::string shown(std::string_view text, size_t most = kMaxEntryShown);

// `--gpus 0,x3: <problem> (at character 3)`, then the text again with a caret under that character.
// Throws: SelectionError, always.
[[noreturn]] void fail_at(const std::string& text, size_t at, const std::string& problem);

}  // namespace muster
