// How it works: sum() and compare() only say what an operation would do, so that a store that keeps
// its values elsewhere can decide by them and write for itself.
#include "muster/store/table.h"

#include <algorithm>
#include <chrono>
#include <optional>

#include "muster/base/hex.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/strings.h"
#include "muster/base/units.h"
#include "muster/store/store.h"

namespace muster {

namespace {

// Keys come from programs, and may be any bytes of any length.
std::string quote(std::string_view text) {
  return in_quotes(escaped(text, 80));
}

}  // namespace

// Values may be large, so that none is copied.
const std::string* Table::find(const std::string& key) const {
  return value_at(values_, key);
}

// A counter is a text, as all values are.
int64_t Table::sum(const std::string& key, int64_t amount) const {
  const std::string* value = find(key);
  const auto number = value == nullptr ? 0 : parse_int(*value);
  if (!number) {
    throw invalid_argument("store add: expected a decimal number in ",
                           quote(key),
                           ", got ",
                           quote(*value),
                           "; use a key of its own");
  }
  int64_t sum = 0;
  if (__builtin_add_overflow(*number, amount, &sum)) {
    throw invalid_argument(
        "store add: expected a sum of 64 bits in ", quote(key), ", got ", *number, " + ", amount);
  }
  return sum;
}

Table::Comparison Table::compare(const std::string& key,
                                 const std::string& expected,
                                 const std::string& desired) const {
  const std::string* value = find(key);
  const bool is_expected = value == nullptr ? expected.empty() : *value == expected;
  if (is_expected)
    return {true, desired};
  return {false, value == nullptr ? expected : *value};
}

StoreValues Table::values(const Strings& keys) const {
  return mapped(keys, [&](const auto& key) {
    const std::string* const value = find(key);
    return value == nullptr ? std::nullopt : std::optional(*value);
  });
}

size_t Table::first_missing(const Strings& keys, size_t from) const {
  while (from < keys.size() && values_.contains(keys[from]))
    ++from;
  return from;
}

// A few names are enough for a message.
std::string Table::describe_missing(const Strings& keys) const {
  constexpr size_t kNamed = 8;
  const auto missing = filtered(keys, [&](const auto& key) { return !values_.contains(key); });
  return join_first(mapped(missing, quote), ", ", kNamed);
}

void check_limits(std::string_view operation, const std::string& key, const std::string& value) {
  if (key.size() > kMaxKeyBytes) {
    throw invalid_argument("store ",
                           operation,
                           ": expected a key of at most ",
                           format_bytes(kMaxKeyBytes),
                           ", got ",
                           key.size(),
                           " bytes");
  }
  if (value.size() > kMaxValueBytes) {
    throw invalid_argument("store ",
                           operation,
                           ": expected a value of at most ",
                           format_bytes(kMaxValueBytes),
                           ", got ",
                           value.size(),
                           " bytes (key ",
                           quote(key),
                           "); split it over several keys");
  }
}

// Each key has four bytes for its size in a request.
void check_limits(std::string_view operation, const Strings& keys) {
  size_t total = 0;
  for (const auto& key : keys) {
    check_limits(operation, key);
    total += key.size() + 4;
  }
  if (total > kMaxValueBytes) {
    const Strings texts = format_compared_bytes({kMaxValueBytes, total});
    throw invalid_argument("store ",
                           operation,
                           ": expected keys of at most ",
                           texts[0],
                           " together, got ",
                           texts[1],
                           "; ask in parts");
  }
}

// The rank that was to set a key may never have started, which is the first thing to look at.
Error missing_keys_error(std::string_view operation,
                         const std::string& missing,
                         milliseconds timeout,
                         const std::string& where) {
  return Error(ErrorCode::timeout,
               "store ",
               operation,
               ": expected ",
               missing,
               " within ",
               format_duration(timeout),
               ", got nothing (",
               where,
               "); see whether the rank that sets it has started");
}

// A clock plus a longer time could overflow.
milliseconds bounded_timeout(milliseconds timeout) {
  return std::clamp<milliseconds>(timeout, milliseconds(0), std::chrono::years(1));
}

}  // namespace muster
