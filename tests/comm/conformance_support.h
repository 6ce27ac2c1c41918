// What the checks of the conformance suite have in common. Inside of tests/comm.
#pragma once

#include <torch/torch.h>

#include <sstream>
#include <stdexcept>
#include <string>

#include "muster/base/error.h"
#include "muster/base/strings.h"

namespace muster::testing {

inline void expect(bool right, const std::string& what) {
  if (!right)
    throw std::runtime_error("conformance: " + what);
}

inline void expect_equal(const at::Tensor& got,
                         const at::Tensor& expected,
                         const std::string& what) {
  if (got.cpu().equal(expected))
    return;
  std::ostringstream text;
  text << "conformance: " << what << ": expected\n" << expected << "\ngot\n" << got.cpu();
  throw std::runtime_error(text.str());
}

template <class Body>
void expect_error(ErrorCode code, const std::string& part, Body&& body) {
  try {
    body();
  } catch (const Error& error) {
    expect(error.code() == code && error.message().find(part) != std::string::npos,
           cat("expected an error with '",
               part,
               "', got ",
               to_string(error.code()),
               ": ",
               error.message()));
    return;
  }
  throw std::runtime_error(cat("conformance: expected an error with '", part, "', got none"));
}

}  // namespace muster::testing
