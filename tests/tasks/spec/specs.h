// Specs as texts, for the tests of what is read from them.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/tasks/spec/spec.h"

namespace muster {

inline std::vector<Task> spec(const std::string& text) {
  return tasks_of_text(text, "t.toml");
}

inline std::string spec_error(const std::string& text) {
  try {
    spec(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    return error.message();
  }
  return "no error";
}

// A task with one more line, at line 4.
inline std::string one_task(const std::string& line) {
  return cat("[[task]]\nname = 'a'\nargv = ['x']\n", line, "\n");
}

}  // namespace muster
