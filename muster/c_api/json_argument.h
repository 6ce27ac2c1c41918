// The JSON that a function of the C interface is given: text, which may be absent. A private
// header, because it shows nlohmann::json.
#pragma once

#include <nlohmann/json.hpp>

namespace muster {

// The object in `text`; an empty one for NULL and for an empty text. `what` names it in errors.
// Throws: invalid_argument for text that is no JSON object.
nlohmann::json json_argument(const char* text, const char* what);

}  // namespace muster
