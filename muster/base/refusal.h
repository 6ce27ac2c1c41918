// How a part refuses what it is given. Its errors have one form, and begin with its name.
#pragma once

#include <source_location>
#include <string>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster {

// As `constexpr Refusal refuse_split{"split"}`, and then refuse_split("10", "9", "add them up").
struct Refusal {
  const char* who;
  const char* next = "";  // what to do, where a call does not say it

  // Throws: invalid_argument, "split: expected 10, got 9; add them up".
  [[noreturn]] void operator()(const std::string& expected,
                               const std::string& got,
                               const std::string& now = {},
                               std::source_location here = std::source_location::current()) const {
    throw Error(ErrorCode::invalid_argument,
                cat(who, ": expected ", expected, ", got ", got, "; ", now.empty() ? next : now),
                here);
  }
};

// The same of what is in a file or folder.
struct FileRefusal {
  const char* who;
  const char* next = "";

  // Throws: invalid_argument, "npy: expected numbers in 'PATH', got records; convert it".
  [[noreturn]] void operator()(const std::string& path,
                               const std::string& expected,
                               const std::string& got,
                               const std::string& now = {},
                               std::source_location here = std::source_location::current()) const {
    Refusal{who, next}(cat(expected, " in '", path, "'"), got, now, here);
  }
};

}  // namespace muster
