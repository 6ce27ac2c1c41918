// What a reader says of a bad file, for the tests beside this file; and the project's own machines.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "muster/base/error.h"
#include "muster/base/fd.h"

namespace muster {

template <class Read>
std::string error_of(const Read& read) {
  try {
    read();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
    return error.what();
  }
  return "no error";
}

inline std::string machine_path(const std::string& name) {
  return std::string(MUSTER_SOURCE_DIR) + "/tests/data/machines/" + name;
}

inline std::string machine_text(const std::string& name) {
  return read_file(machine_path(name));
}

}  // namespace muster
