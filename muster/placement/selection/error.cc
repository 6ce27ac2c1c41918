// The caret stands under the wrong character, so control characters are replaced one by one and the
// text is cut only behind what is shown.
#include "muster/placement/selection/error.h"

#include "muster/base/strings.h"
#include "muster/placement/selection/selection.h"

namespace muster {
namespace {

constexpr size_t kMaxTextShown = 200;

}  // namespace

std::string shown(std::string_view text, size_t most) {
  return printable(text.substr(0, most)) + (text.size() > most ? "..." : "");
}

void fail_at(const std::string& text, size_t at, const std::string& problem) {
  const std::string given = shown(text, kMaxTextShown);
  std::string message =
      cat("--gpus ", given, ": ", printable(problem), " (at character ", at + 1, ")");
  if (at <= kMaxTextShown)
    message += cat("\n  --gpus ", given, "\n         ", std::string(at, ' '), "^");
  throw SelectionError(printable(problem), at, message);
}

}  // namespace muster
