#include "muster/tasks/spec/text.h"

#include "muster/base/strings.h"

namespace muster {

void check_spec_text(const std::string& text, SpecProblems& problems) {
  if (text.size() > kMaxSpecBytes) {
    problems.fail({1, 1},
                  cat("expected a spec of at most ",
                      kMaxSpecBytes >> 20U,
                      " MiB, got more; let `each` make many tasks of one"));
  }
}

}  // namespace muster
