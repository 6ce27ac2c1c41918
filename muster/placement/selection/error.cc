// What is wrong is told for itself too, for those who show it in a place of their own.
#include "muster/placement/selection/error.h"

#include "muster/base/caret.h"
#include "muster/base/shown_text.h"
#include "muster/base/strings.h"
#include "muster/placement/selection/selection.h"

namespace muster {

std::string shown(std::string_view text) {
  constexpr size_t kMostBytes = 50;
  return shown_text(text, kMostBytes);
}

void fail_at(const std::string& text, size_t at, const std::string& problem) {
  throw SelectionError(printable(problem), at, pointing_at("--gpus ", text, at, problem));
}

}  // namespace muster
