// What a failing rank tells its launcher: torchrun's error file, which PyTorch's launcher and ours both read.
#pragma once

#include <exception>
#include <string>

namespace muster {

// "peer_failed: all_reduce #3 …" for muster::Error; "c10::Error: …" and so on, with the type's name, for
// others.
std::string describe_exception(const std::exception& error);

// Writes `message` to TORCHELASTIC_ERROR_FILE in torchrun's JSON form, when that is set. Never throws: it
// runs while a failure is already being reported.
void write_error_file(const std::string& message) noexcept;

}  // namespace muster
