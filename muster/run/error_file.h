// What a failing rank tells its launcher: torchrun's error file, which both PyTorch's launcher and
// muster's read.
#pragma once

#include <exception>
#include <string>

#include "muster/launch/rank_exit.h"

namespace muster {

// Returns the error as text: "peer_failed: all_reduce #3 …" for a muster::Error, with the type's
// name for others, "c10::Error: …".
std::string describe_exception(const std::exception& error);

// Writes `message`, and the stack if there is one, to TORCHELASTIC_ERROR_FILE in torchrun's JSON
// form, if that is set, with what muster's launcher is told beside words. Returns false if nothing
// was written. Never throws, because it runs while a failure is being reported.
bool write_error_file(const std::string& message,
                      const std::string& stack = "",
                      const ErrorFacts& facts = {}) noexcept;

// Sets the file that replaces TORCHELASTIC_ERROR_FILE from now on, for signals too. A rank has
// another file in each attempt.
void set_error_file(const std::string& path);

// Reports why this rank fails, and where that was thrown: in the error file, and in the log unless
// the launcher shows the file's content in its report. Call it in a handler of `error`, which need
// not be a std::exception.
void tell_failure(const std::exception_ptr& error) noexcept;

}  // namespace muster
