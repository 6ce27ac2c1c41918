// A text with placeholders, as `--lr={lr}`: read once, then filled in for each combination of
// parameters. For the spec file and the sweep; knows neither. `{{` and `}}` are braces.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/strings.h"

namespace muster {

// A brace that opens or closes nothing, or a name that no parameter has.
class TaskTextError : public std::runtime_error {
 public:
  TaskTextError(const std::string& problem, size_t at) : std::runtime_error(problem), at_(at) {}
  size_t at() const noexcept { return at_; }  // byte of the text

 private:
  size_t at_;
};

class TaskText {
 public:
  TaskText() = default;

  // Throws: TaskTextError.
  TaskText(std::string_view text, const StringViews& parameters);

  // `values` in the order of the parameters.
  std::string with(const StringViews& values) const;

  // Whether it has the placeholder of the parameter with this number.
  bool uses(size_t parameter) const;

  size_t num_placeholders() const { return pieces_.size(); }
  size_t size() const { return first_.size() + rest_bytes_; }  // without what is filled in

 private:
  struct Piece {  // a parameter's value, then a text
    size_t parameter = 0;
    std::string text{};
  };

  std::string first_;
  std::vector<Piece> pieces_;
  size_t rest_bytes_ = 0;
};

// The names of the placeholders in `text`, each once. Throws: TaskTextError when a brace opens or
// closes nothing.
StringViews placeholders_of(std::string_view text);

// Letters, digits, '_' and '-', the first no digit and no '-'.
bool is_parameter_name(std::string_view name);

}  // namespace muster
