// What every function of the C interface does around its work: it turns exceptions into a code and
// a text of the thread, and a string into one that the caller frees.
#pragma once

#include <functional>
#include <string>

#include "muster/base/functions.h"

namespace muster {

// The code of what `work` throws, or MUSTER_OK. Never throws.
int answer(const Callback& work) noexcept;

// The same for work that makes a text. `text` becomes null where the work fails.
int answer_text(char** text, const std::function<std::string()>& work) noexcept;

}  // namespace muster
