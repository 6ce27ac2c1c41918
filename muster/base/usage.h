// What is wrong with how a command was called: told, with exit code 2, before anything is done.
#pragma once

#include <string>

#include "muster/base/error.h"
#include "muster/base/shown_text.h"
#include "muster/base/strings.h"

namespace muster {

// As fail_usage("expected a file, got '", path, "'").
template <class... Parts>
[[noreturn]] void fail_usage(const FirstPart& first, const Parts&... parts) {
  throw invalid_argument(first, parts...);
}

// A value of a flag: "<flag>: expected <expected>, got '<got>'; <next>". A value that would fill
// the terminal is cut. `next` says what to do, and may be left out.
inline Error bad_flag(const std::string& flag,
                      const std::string& expected,
                      const std::string& got,
                      const std::string& next = "") {
  return invalid_argument(flag,
                          ": expected ",
                          expected,
                          ", got '",
                          shown_text(got),
                          "'",
                          next.empty() ? "" : "; ",
                          next);
}

// What `read` returns, which reads the file that `flag` names.
template <class Read>
auto read_named(const char* flag, const Read& read) {
  try {
    return read();
  } catch (const Error& error) {
    if (error.code() != ErrorCode::io)
      throw;
    fail_usage(flag, ": ", error.what(), "; correct the path");
  }
}

}  // namespace muster
