// A journal's line: what its writer and its reader agree on. A private header.
#pragma once

#include <string>

namespace muster {

inline constexpr auto kJournalSchema = "muster.journal/2";
inline constexpr size_t kJournalSumChars = 16;
// A record's key, for the sum of the one before it.
inline constexpr auto kJournalAfter = "after";

// The record with its sum and a newline.
std::string journal_line(const std::string& json);

}  // namespace muster
