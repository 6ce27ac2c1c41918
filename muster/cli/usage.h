// What is wrong with how a command was called: told, with exit code 2, before anything is done.
#pragma once

#include <string>

#include "muster/base/error.h"

namespace muster {

[[noreturn]] inline void fail_usage(const std::string& text) {
  throw Error(ErrorCode::invalid_argument, text);
}

}  // namespace muster
