// JSON documents that come from a file and may be anything: every member is asked for by name and
// type, what nobody asked for is an error, and errors say where. For the .cc files that read a
// document (inventory, plan); a private header, because it shows nlohmann::json.
#pragma once

#include <cstdint>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "muster/base/strings.h"

namespace muster {

using nlohmann::json;

// Errors show no more characters of a wrong value than these.
inline constexpr size_t kMaxShown = 60;

// `text` as JSON; `what` names the document in errors ("inventory box.json").
// Throws: invalid_argument with line and column; also when an object names a member twice
// (nlohmann::json keeps the last silently), when the text nests deeper than 64 levels or holds more
// than 16 million values.
json parse_strict_json(const std::string& text, const std::string& what);

// One object of a document, at `path` ("hosts[0].gpus[1]"). Every reader throws invalid_argument
// when the member is absent or of another type; `finish` throws when a member was never read.
class JsonObject {
 public:
  JsonObject(const json& value, std::string what, std::string path);

  std::string text(const char* key);
  std::string text_or(const char* key, const std::string& fallback);
  bool boolean_or(const char* key, bool fallback);
  int64_t integer(const char* key, int64_t least, int64_t most);
  int small_integer(const char* key, int least, int most = std::numeric_limits<int>::max());
  int small_integer_or(const char* key, int least, int fallback);
  uint64_t size_or(const char* key, uint64_t fallback);
  std::optional<int> optional_integer(const char* key, int least);  // absent or null: nothing
  std::optional<uint64_t> optional_size(const char* key);
  std::optional<double> optional_number(const char* key);
  std::vector<JsonObject> objects(const char* key);
  std::vector<JsonObject> objects_or_none(const char* key);
  Strings texts_or_none(const char* key);
  JsonObject object(const char* key);
  std::optional<JsonObject> object_or_none(const char* key);
  void ignore(const char* key) { known_.push_back(key); }  // the member may be there, unread
  void finish() const;

  [[noreturn]] void fail(const std::string& key,
                         const std::string& expected,
                         const std::string& got) const;

 private:
  const json* find(const char* key);  // null when the member is absent or null itself
  const json& require(const char* key);
  std::string path_of(const std::string& key) const;

  const json* value_;
  std::string what_;
  std::string path_;
  StringViews known_;  // literals
};

// Reads "schema" of the outermost object. Throws: invalid_argument when it is not `expected`.
void check_schema(JsonObject& document, const std::string& expected);

}  // namespace muster
