// The gateway writes bytes in base64 and 64-bit numbers as text, and leaves out what is 0, false or
// empty. The JSON library finds what has another form than is asked for.
#include "muster/store/etcd_answers.h"

#include <openssl/evp.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "muster/base/error.h"
#include "muster/base/json_depth.h"
#include "muster/base/json_words.h"
#include "muster/base/strings.h"
#include "muster/store/bytes.h"

namespace muster {

namespace {

using Answer = nlohmann::json;

constexpr size_t kShownOfAnswer = 80;  // of one that is not etcd's

// OpenSSL counts the padding as bytes. Another text than base64 is no bytes.
std::string from_base64(std::string_view text) {
  std::string bytes(text.size(), '\0');
  const int length = static_cast<int>(text.size());
  int size = EVP_DecodeBlock(unsigned_bytes(bytes), unsigned_bytes(text), length);
  for (int padding = 0; padding < 2 && text.ends_with('='); ++padding) {
    text.remove_suffix(1);
    --size;
  }
  bytes.resize(std::max(size, 0));
  return bytes;
}

// The gateway's numbers are whole, and fit: what is neither is none of them.
int64_t number_in(const Answer& json, const char* name) {
  const auto found = json.find(name);
  if (found == json.end())
    return 0;
  const auto number = parse_int(found->is_string() ? found->get<std::string>() : found->dump());
  if (!number)
    throw unavailable("etcd: expected a whole number as its ",
                      name,
                      ", got ",
                      printable(found->dump().substr(0, kShownOfAnswer)),
                      "; see whether it is etcd that listens there");
  return *number;
}

// The only key that a range has found; nullptr: it found none.
const Answer* key_in(const Answer& range) {
  const auto keys = range.find("kvs");
  return keys == range.end() || keys->empty() ? nullptr : &keys->at(0);
}

std::optional<std::string> value_in(const Answer& range) {
  const Answer* const key = key_in(range);
  return key == nullptr ? std::nullopt : std::optional(from_base64(key->value("value", "")));
}

// Calls `read` with what etcd has answered. Something else may listen there.
template <class Read>
auto read_answer(const std::string& text, const Read& read) {
  std::string got = in_quotes(printable(text.substr(0, kShownOfAnswer)));
  try {
    if (!nests_too_deep(text))
      return read(Answer::parse(text));
  } catch (const Answer::exception& error) {
    got += cat(" (", json_words(error.what()), ")");
  }
  throw unavailable("etcd: expected its answer as JSON, got ",
                    got,
                    "; see whether it is etcd that listens there");
}

}  // namespace

// OpenSSL writes a zero behind the text, which has room here.
std::string to_base64(std::string_view bytes) {
  std::string text(4 * ((bytes.size() + 2) / 3) + 1, '\0');
  const int length = static_cast<int>(bytes.size());
  text.resize(EVP_EncodeBlock(unsigned_bytes(text), unsigned_bytes(bytes), length));
  return text;
}

EtcdFound read_etcd_range(const std::string& answer) {
  return read_answer(answer, [](const Answer& range) -> EtcdFound {
    const Answer* const key = key_in(range);
    if (key == nullptr)
      return {};
    return {value_in(range), number_in(*key, "mod_revision")};
  });
}

int64_t read_etcd_count(const std::string& answer) {
  return read_answer(answer, [](const Answer& range) { return number_in(range, "count"); });
}

bool read_etcd_transaction(const std::string& answer) {
  return read_answer(answer, [](const Answer& said) { return said.value("succeeded", false); });
}

StoreValues read_etcd_values(const std::string& answer, size_t count) {
  return read_answer(answer, [&](const Answer& said) {
    StoreValues values;
    for (size_t i = 0; i < count; ++i)
      values.push_back(value_in(said.at("responses").at(i).at("response_range")));
    return values;
  });
}

int64_t read_etcd_deleted(const std::string& answer) {
  return read_answer(answer, [](const Answer& said) { return number_in(said, "deleted"); });
}

}  // namespace muster
