// What PyTorch's own Python gives for the same: lines of a name and numbers, the numbers exactly.
#pragma once

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cstdlib>
#include <iomanip>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "tests/data/python.h"

namespace muster::testing {

using Oracle = std::map<std::string, std::vector<double>>;

// Nothing where there is no Python with PyTorch.
inline std::optional<Oracle> ask_python(const std::string& script,
                                        const std::string& arguments = "") {
  at::set_num_threads(1);  // as the script does: on more the order of additions differs
  const auto output = muster::test::run_python("tests/train/" + script, arguments);
  if (!output)
    return std::nullopt;
  Oracle oracle;
  std::istringstream lines(*output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    for (std::string word; words >> word;)
      oracle[name].push_back(std::strtod(word.c_str(), nullptr));
  }
  return oracle;
}

inline std::vector<double> numbers_of(const at::Tensor& tensor) {
  const auto flat = tensor.detach().to(at::kDouble).contiguous().view(-1);
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

// The largest difference, relative to the expected; 0 means the same bits. NaN equals NaN.
inline double largest_difference(const std::vector<double>& got,
                                 const std::vector<double>& expected) {
  if (got.size() != expected.size())
    return INFINITY;
  double largest = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == expected[i] || (std::isnan(got[i]) && std::isnan(expected[i])))
      continue;
    const double difference = std::abs(got[i] - expected[i]) / std::abs(expected[i]);
    largest = std::isnan(difference) ? INFINITY : std::max(largest, difference);
  }
  return largest;
}

// Compares, and prints a row of the table: what, how many numbers, the largest difference, the
// bound.
inline void expect_as_python(const Oracle& oracle,
                             const std::string& name,
                             const std::vector<double>& got,
                             double bound = 0) {
  const auto expected = oracle.find(name);
  ASSERT_NE(expected, oracle.end()) << "Python did not print " << name;
  const double difference = largest_difference(got, expected->second);
  std::cout << "  " << std::left << std::setw(44) << name << std::right << std::setw(6)
            << got.size() << " numbers  largest difference " << difference
            << (bound == 0 ? " (bits)" : "");
  if (bound != 0)
    std::cout << " (bound " << bound << ")";
  std::cout << "\n";
  EXPECT_LE(difference, bound) << name << ": got " << ::testing::PrintToString(got) << ", Python "
                               << ::testing::PrintToString(expected->second);
}

template <class Function>
std::string message_of_error(Function&& function) {
  try {
    function();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace muster::testing
