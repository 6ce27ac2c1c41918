// `add_unless_default` writes a member that readers take for its default where it is missing. For
// sources that write JSON objects.
#pragma once

namespace muster {

// An empty text or list, 0 and false are not written.
template <class Json, class Value>
void add_unless_default(Json& object, const char* key, const Value& value) {
  if (value != Value())
    object[key] = value;
}

}  // namespace muster
