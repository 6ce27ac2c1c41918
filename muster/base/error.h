// The one exception type of muster, and the codes that say what a caller should do about it.
// Used by every part; knows nothing of any.
#pragma once

#include <source_location>
#include <stdexcept>
#include <string>

#include "muster/base/strings.h"

namespace muster {

enum class ErrorCode {
  invalid_argument,     // the caller gave a wrong value: change it
  failed_precondition,  // right value, wrong moment or state: do what the message names first
  unavailable,          // something needed is not there now: install it, free it, or try again
  timeout,              // nobody answered in time
  peer_failed,          // another rank died or reported an error
  backend_failed,       // Gloo, NCCL, CUDA or LibTorch failed
  io,                   // a file, pipe or socket could not be read or written
  internal,             // a bug in muster
};

// "invalid_argument" and so on, for logs and JSON.
const char* to_string(ErrorCode code);

// A code, and where it is thrown.
struct ThrownCode {
  // NOLINTNEXTLINE(google-explicit-constructor)
  ThrownCode(ErrorCode given, std::source_location here = std::source_location::current())
      : code(given), where(here) {}

  ErrorCode code;
  std::source_location where;
};

// Message form: `<operation>: expected <rule>, got <value> (<rank/device/peer>); <next step>`.
// Colours of what it quotes are left out, and other control characters become '?', but for line
// ends and tabs.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code,
        const std::string& message,
        std::source_location where = std::source_location::current());
  // The same with a message in parts, which cat() joins.
  template <class First, class Second, class... More>
  Error(ThrownCode thrown, const First& first, const Second& second, const More&... more)
      : Error(thrown.code, cat(first, second, more...), thrown.where) {}

  ErrorCode code() const noexcept { return code_; }
  std::string message() const { return what(); }
  std::string where() const;  // "launch.cc:120"

 private:
  ErrorCode code_;
  std::source_location where_;
};

// The first part of an error's message, with the place where it is written.
struct FirstPart {
  template <class Part>
  // NOLINTNEXTLINE(google-explicit-constructor): errors are written as cat() is
  FirstPart(const Part& part, std::source_location written = std::source_location::current())
      : text(cat(part)), where(written) {}

  std::string text;
  std::source_location where;
};

// Errors of the codes that are thrown most, with a message in parts:
// throw invalid_argument("rank ", 3, " of ", 2).
template <class... Parts>
Error invalid_argument(const FirstPart& first, const Parts&... parts) {
  return {ErrorCode::invalid_argument, cat(first.text, parts...), first.where};
}
template <class... Parts>
Error failed_precondition(const FirstPart& first, const Parts&... parts) {
  return {ErrorCode::failed_precondition, cat(first.text, parts...), first.where};
}
template <class... Parts>
Error unavailable(const FirstPart& first, const Parts&... parts) {
  return {ErrorCode::unavailable, cat(first.text, parts...), first.where};
}

// Throws Error(io) with `message` followed by the text of `errno_value`.
[[noreturn]] void fail_errno(const std::string& message,
                             int errno_value,
                             std::source_location where = std::source_location::current());
// The same with a message in parts, which cat() joins.
template <class... Parts>
[[noreturn]] void fail_errno(int errno_value, const FirstPart& first, const Parts&... parts) {
  fail_errno(cat(first.text, parts...), errno_value, first.where);
}

}  // namespace muster
