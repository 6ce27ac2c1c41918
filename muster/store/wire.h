// What a store's client and server say to each other inside a frame. The functions are pure, and
// decoding accepts exactly what encoding makes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/store/store.h"

namespace muster {

struct StoreRequest {
  enum class Operation : uint8_t {
    set = 1,
    get,
    add,
    compare_set,
    check,
    wait,
    remove,
    num_keys,
    append,
    append_when_lost,  // as append, when this connection ends
    values,
  };

  Operation operation = Operation::num_keys;
  Strings keys{};          // one, except for check, wait and values
  std::string value{};     // of set and both appends; `desired` of compare_set
  std::string expected{};  // of compare_set
  int64_t number = 0;      // amount of add; milliseconds to wait of get and wait
};

struct StoreReply {
  bool ok = true;
  ErrorCode code = ErrorCode::internal;  // when not ok
  // A value, the missing keys (timeout), the error's message, or encoded values.
  std::string text{};
  int64_t number = 0;  // of add, num_keys, append; 0 or 1 of check, remove
};

// Returns "get" and so on, for errors.
const char* to_string(StoreRequest::Operation operation);

// Appends the encoding to `out`.
void encode(const StoreRequest& request, std::string& out);
void encode(const StoreReply& reply, std::string& out);

// Throws: io when the bytes are not one well-formed request (reply).
StoreRequest decode_request(std::string_view bytes);
StoreReply decode_reply(std::string_view bytes);

// The values of several keys are one text. nullopt: the store has no such key.
std::string encode_values(const StoreValues& values);

// Throws: io when the bytes are not `count` values.
StoreValues decode_values(std::string_view bytes, size_t count);

}  // namespace muster
