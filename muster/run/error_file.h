// What a failing rank tells its launcher: torchrun's error file, which PyTorch's launcher and ours both read.
#pragma once

#include <exception>
#include <string>

namespace muster {

// "peer_failed: all_reduce #3 …" for muster::Error; "c10::Error: …" and so on, with the type's name, for
// others.
std::string describe_exception(const std::exception& error);

// Writes `message`, and the stack where there is one, to TORCHELASTIC_ERROR_FILE in torchrun's JSON form,
// when that is set. False: there is nothing written. Never throws: it runs while a failure is already being
// reported.
bool write_error_file(const std::string& message, const std::string& stack = "") noexcept;

// The file from now on, in place of TORCHELASTIC_ERROR_FILE: that of a rank's next generation.
void set_error_file(const std::string& path);

// Says why this rank fails, and where that was thrown: in the error file, and in the log unless the launcher
// shows the file's content in its card. For a handler that has caught `error`, which need not be a
// std::exception.
void tell_failure(const std::exception_ptr& error) noexcept;

}  // namespace muster
