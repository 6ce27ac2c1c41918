// `add_unless_default` writes a member that readers take for its default where it is missing, and
// `member_or_null` and `text_or_empty` read one of a text that may be anything; `or_null` writes a
// value that may not be there. `json_text` is a value as text. For sources of JSON objects.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

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

// The member, if it is a text; else an empty one.
template <class Json>
std::string text_or_empty(const Json& value, const char* key) {
  const Json found = member_or_null(value, key);
  return found.is_string() ? found.template get<std::string>() : std::string();
}

// As {"step", or_null(rank.step)}.
template <class Json = nlohmann::ordered_json, class Value>
Json or_null(const std::optional<Value>& value) {
  return value ? Json(*value) : Json(nullptr);
}

// In one line, unless `indent` says otherwise. Names, paths and what ranks print may be any bytes,
// but JSON is UTF-8: what is none is replaced. `ascii`: all else than ASCII is escaped.
template <class Json>
std::string json_text(const Json& value, int indent = -1, bool ascii = false) {
  return value.dump(indent, ' ', ascii, Json::error_handler_t::replace);
}

}  // namespace muster
