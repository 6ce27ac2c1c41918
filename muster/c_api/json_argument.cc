#include "muster/c_api/json_argument.h"

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/device/strict_json.h"

namespace muster {

nlohmann::json json_argument(const char* text, const char* what) {
  if (text == nullptr || *text == 0)
    return nlohmann::json::object();
  nlohmann::json json = parse_strict_json(text, what);
  if (!json.is_object()) {
    throw invalid_argument(
        what, ": expected a JSON object, got ", json.type_name(), "; correct it");
  }
  return json;
}

}  // namespace muster
