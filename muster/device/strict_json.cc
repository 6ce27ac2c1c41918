// Values are built as the text is read, and what must not be there is refused then. What an
// object's members may be is decided by who reads them.
#include "muster/device/strict_json.h"

#include <utility>

#include "muster/base/contains.h"
#include "muster/base/error.h"
#include "muster/base/indices_of.h"
#include "muster/base/json_member.h"
#include "muster/base/json_words.h"
#include "muster/base/strings.h"

namespace muster {
namespace {

constexpr size_t kMaxDepth = 64;
constexpr size_t kMaxValues = 16'000'000;

// Returns a wrong value as errors show it: short, and valid UTF-8 whatever it holds.
std::string shown(const json& value) {
  if (value.is_object())
    return "an object";
  if (value.is_array())
    return "a list";
  std::string text = json_text(value);
  if (text.size() > kMaxShown)
    text = text.substr(0, kMaxShown) + "...";
  return text;
}

// Refuses what nlohmann::json would let pass. (A callback given to nlohmann::json::parse could do
// so, too, but takes time quadratic in the length of lists.)
class Builder final : public nlohmann::json_sax<json> {
 public:
  explicit Builder(const std::string& what) : what_(what) {}

  json take() { return std::move(root_); }

  bool start_object(size_t) override { return open(json::object()); }
  bool start_array(size_t) override { return open(json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  // nlohmann::json would keep the last of two members of one name, and say nothing.
  bool key(std::string& name) override {
    const auto [member, is_new] = open_.back()->emplace(name, nullptr);
    member_ = &*member;
    if (is_new)
      return true;
    refuse("each member once, got '", name, "' twice in one object");
  }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    refuse("JSON, got something else: ", json_words(error.what()));
  }

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(json::number_integer_t value) override { return add(value); }
  bool number_unsigned(json::number_unsigned_t value) override { return add(value); }
  bool number_float(json::number_float_t value, const std::string&) override { return add(value); }
  bool string(std::string& value) override { return add(std::move(value)); }
  bool binary(json::binary_t&) override { refuse("text, got bytes"); }

 private:
  [[noreturn]] void refuse(const auto&... expected) const {
    throw invalid_argument(printable(cat(what_, ": expected ", expected...)));
  }

  bool open(json&& value) {
    if (open_.size() == kMaxDepth)
      refuse("JSON nested at most ", kMaxDepth, " levels deep, got more");
    open_.push_back(&place(std::move(value)));
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  bool add(json&& value) {
    place(std::move(value));
    return true;
  }

  // The number of values bounds the memory that the document takes.
  json& place(json&& value) {
    if (++values_ > kMaxValues)
      refuse("at most ", kMaxValues, " values, got more");
    if (open_.empty())
      return root_ = std::move(value);
    if (open_.back()->is_object())
      return *member_ = std::move(value);
    open_.back()->push_back(std::move(value));
    return open_.back()->back();
  }

  const std::string& what_;
  size_t values_ = 0;
  json root_;
  std::vector<json*> open_;  // objects and lists, each in the one before
  json* member_ = nullptr;   // of the last open object, whose value comes next
};

}  // namespace

json parse_strict_json(const std::string& text, const std::string& what) {
  Builder builder(what);
  json::sax_parse(text, &builder);
  return builder.take();
}

JsonObject::JsonObject(const json& value, std::string what, std::string path)
    : value_(&value), what_(std::move(what)), path_(std::move(path)) {
  known_.reserve(value.size());
  if (value.is_object())
    return;
  const std::string place = path_.empty() ? "the top" : path_;
  throw invalid_argument(what_, ": expected an object at ", place, ", got ", shown(value));
}

// The path is what a user needs to find the place: "hosts[0].gpus[1].uuid".
std::string JsonObject::path_of(const std::string& key) const {
  return path_.empty() ? key : cat(path_, ".", key);
}

void JsonObject::fail(const std::string& key,
                      const std::string& expected,
                      const std::string& got) const {
  throw invalid_argument(
      printable(cat(what_, ": expected ", expected, " at ", path_of(key), ", got ", got)));
}

// Whoever asks for a member makes it known, whether or not it is there.
const json* JsonObject::find(const char* key) {
  known_.push_back(key);
  const auto member = value_->find(key);
  const bool is_there = member != value_->end() && !member->is_null();
  return is_there ? &*member : nullptr;
}

const json& JsonObject::require(const char* key) {
  const json* const member = find(key);
  if (member == nullptr)
    fail(key, "a value", "nothing");
  return *member;
}

std::string JsonObject::text(const char* key) {
  const json& member = require(key);
  if (!member.is_string())
    fail(key, "text", shown(member));
  return member.get<std::string>();
}

std::string JsonObject::text_or(const char* key, const std::string& fallback) {
  return find(key) == nullptr ? fallback : text(key);
}

bool JsonObject::boolean_or(const char* key, bool fallback) {
  const json* const member = find(key);
  if (member == nullptr)
    return fallback;
  if (!member->is_boolean())
    fail(key, "true or false", shown(*member));
  return member->get<bool>();
}

// A number with a fraction is no integer, even where the fraction is 0.
int64_t JsonObject::integer(const char* key, int64_t least, int64_t most) {
  const json& member = require(key);
  // nlohmann::json keeps numbers from 2^63 as unsigned ones; read as signed they would be negative.
  const bool is_too_large = member.is_number_unsigned() && member.get<uint64_t>() > INT64_MAX;
  const bool is_integer = member.is_number_integer() && !is_too_large;
  const int64_t value = is_integer ? member.get<int64_t>() : 0;
  if (!is_integer || value < least || value > most)
    fail(key, cat("an integer from ", least, " to ", most), shown(member));
  return value;
}

int JsonObject::small_integer(const char* key, int least, int most) {
  return static_cast<int>(integer(key, least, most));
}

int JsonObject::small_integer_or(const char* key, int least, int fallback) {
  return optional_integer(key, least).value_or(fallback);
}

uint64_t JsonObject::size_or(const char* key, uint64_t fallback) {
  return optional_size(key).value_or(fallback);
}

std::optional<int> JsonObject::optional_integer(const char* key, int least) {
  if (find(key) == nullptr)
    return std::nullopt;
  return small_integer(key, least);
}

std::optional<uint64_t> JsonObject::optional_size(const char* key) {
  if (find(key) == nullptr)
    return std::nullopt;
  return integer(key, 0, INT64_MAX);
}

std::optional<double> JsonObject::optional_number(const char* key) {
  const json* const member = find(key);
  if (member == nullptr)
    return std::nullopt;
  if (!member->is_number())
    fail(key, "a number", shown(*member));
  return member->get<double>();
}

// Each object knows its place in the list, for errors.
std::vector<JsonObject> JsonObject::objects(const char* key) {
  const json& member = require(key);
  if (!member.is_array())
    fail(key, "a list", shown(member));
  std::vector<JsonObject> all;
  all.reserve(member.size());
  for (const size_t i : indices_of(member))
    all.emplace_back(member[i], what_, cat(path_of(key), "[", i, "]"));
  return all;
}

std::vector<JsonObject> JsonObject::objects_or_none(const char* key) {
  return find(key) == nullptr ? std::vector<JsonObject>() : objects(key);
}

Strings JsonObject::texts_or_none(const char* key) {
  const json* const member = find(key);
  if (member == nullptr)
    return {};
  if (!member->is_array())
    fail(key, "a list of texts", shown(*member));
  Strings all;
  for (const json& item : *member) {
    if (!item.is_string())
      fail(key, "a list of texts", cat("a list with ", shown(item)));
    all.push_back(item.get<std::string>());
  }
  return all;
}

// The member must be an object, which its constructor checks.
JsonObject JsonObject::object(const char* key) {
  return {require(key), what_, path_of(key)};
}

std::optional<JsonObject> JsonObject::object_or_none(const char* key) {
  return find(key) == nullptr ? std::nullopt : std::optional(object(key));
}

// A member that nobody asked for is most likely misspelt, so it is not passed over.
void JsonObject::finish() const {
  for (const auto& [key, member] : value_->items()) {
    if (contains(known_, key))
      continue;
    const StringSet known(known_.begin(), known_.end());
    fail(key, cat("only the members ", join(known, ", ")), "an unknown member");
  }
}

// A document of another version is refused as a whole, rather than half understood.
void check_schema(JsonObject& document, const std::string& expected) {
  const std::string schema = document.text("schema");
  if (schema != expected)
    document.fail("schema", in_quotes(expected), in_quotes(schema));
}

}  // namespace muster
