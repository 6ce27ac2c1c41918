// `add_unless_default` writes a member that readers take for its default where it is missing, and
// `member_or_null` reads one of a text that may be anything; `or_null` writes a value that may not
// be there. For sources of JSON objects.
#pragma once

#include <optional>

namespace muster {

// An empty text or list, 0 and false are not written.
template <class Json, class Value>
void add_unless_default(Json& object, const char* key, const Value& value) {
  if (value != Value())
    object[key] = value;
}

// The member; null where there is none, or the value is no object.
template <class Json>
Json member_or_null(const Json& value, const char* key) {
  return value.is_object() ? value.value(key, Json()) : Json();
}

// As {"step", or_null<Json>(rank.step)}.
template <class Json, class Value>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}

}  // namespace muster
