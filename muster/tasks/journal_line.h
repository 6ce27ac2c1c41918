// A journal's line: what its writer and its reader agree on. A private header.
#pragma once

#include <string>

namespace muster {

inline constexpr const char* kJournalSchema = "muster.journal/1";
inline constexpr size_t kJournalSumChars = 16;

// The record with its sum and a newline.
std::string journal_line(const std::string& json);

}  // namespace muster
