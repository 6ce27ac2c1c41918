// How it works: a message is numbers and texts one after the other, each text with its size before
// it. A reader checks every size before it uses it, and refuses what is left at the end.
#include "muster/store/wire.h"

#include <utility>

#include "muster/base/contains.h"
#include "muster/base/lookup.h"
#include "muster/store/bytes.h"
#include "muster/store/store.h"

namespace muster {

namespace {

// Whoever sends such a message is dropped, so that it needs no advice.
[[noreturn]] void malformed(const char* what) {
  throw Error(ErrorCode::io, std::string("store message: expected a well-formed one, got ") + what);
}

void put_text(std::string& out, std::string_view text) {
  put_number(out, text.size(), 4);
  out += text;
}

// Operations and error codes are sent as their numbers.
template <class Enum>
uint64_t sent_number(Enum value) {
  return static_cast<uint64_t>(value);
}

// Takes a message's parts in their order; throws when they are not there.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  uint64_t number(unsigned size) { return read_number(take(size), size); }
  int64_t signed_number() { return static_cast<int64_t>(number(8)); }
  std::string text() { return std::string(take(number(4))); }
  size_t left() const { return rest_.size(); }
  void end() const {
    if (!rest_.empty())
      malformed("bytes behind its end");
  }

 private:
  std::string_view take(size_t size) {
    if (size > rest_.size())
      malformed("fewer bytes than it says");
    const std::string_view piece = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return piece;
  }
  std::string_view rest_;
};

// These come with any number of keys, num_keys with none, and the others with one.
bool takes_any_number(StoreRequest::Operation operation) {
  using Operation = StoreRequest::Operation;
  return is_one_of(operation, Operation::check, Operation::wait, Operation::values);
}

void check_keys(const StoreRequest& request) {
  const size_t expected = request.operation == StoreRequest::Operation::num_keys ? 0 : 1;
  if (!takes_any_number(request.operation) && request.keys.size() != expected)
    malformed("another number of keys");
  for (const auto& key : request.keys) {
    if (key.size() > kMaxKeyBytes)
      malformed("a key beyond the limit");
  }
  if (request.value.size() > kMaxValueBytes || request.expected.size() > kMaxValueBytes)
    malformed("a value beyond the limit");
}

}  // namespace

const char* to_string(StoreRequest::Operation operation) {
  using Operation = StoreRequest::Operation;
  constexpr std::pair<Operation, const char*> kNames[] = {
      {Operation::set, "set"},
      {Operation::get, "get"},
      {Operation::add, "add"},
      {Operation::compare_set, "compare_set"},
      {Operation::check, "check"},
      {Operation::wait, "wait"},
      {Operation::remove, "remove"},
      {Operation::num_keys, "num_keys"},
      {Operation::append, "append"},
      {Operation::append_when_lost, "append_when_lost"},
      {Operation::values, "values"},
  };
  return lookup(kNames, operation, "unknown");
}

// Every request has all fields, also those that it does not use.
void encode(const StoreRequest& request, std::string& out) {
  put_number(out, sent_number(request.operation), 1);
  put_number(out, request.keys.size(), 4);
  for (const auto& key : request.keys)
    put_text(out, key);
  put_text(out, request.value);
  put_text(out, request.expected);
  put_number(out, request.number, 8);
}

// The status is 0, or 1 + the error's code.
void encode(const StoreReply& reply, std::string& out) {
  put_number(out, reply.ok ? 0 : 1 + sent_number(reply.code), 1);
  put_text(out, reply.text);
  put_number(out, reply.number, 8);
}

// Nothing is taken for right that the sender says.
StoreRequest decode_request(std::string_view bytes) {
  using Operation = StoreRequest::Operation;
  Reader reader(bytes);
  StoreRequest request;
  const uint64_t operation = reader.number(1);
  if (operation < sent_number(Operation::set) || operation > sent_number(Operation::values))
    malformed("an unknown operation");
  request.operation = static_cast<Operation>(operation);
  const uint64_t num_keys = reader.number(4);
  // Each key takes four bytes at least: a count beyond that would only cost memory.
  if (num_keys > reader.left() / 4)
    malformed("fewer bytes than it says");
  request.keys.reserve(num_keys);
  for (uint64_t i = 0; i < num_keys; ++i)
    request.keys.push_back(reader.text());
  request.value = reader.text();
  request.expected = reader.text();
  request.number = reader.signed_number();
  reader.end();
  check_keys(request);
  return request;
}

// A byte says whether there is a value.
std::string encode_values(const std::vector<std::optional<std::string>>& values) {
  std::string bytes;
  for (const auto& value : values) {
    put_number(bytes, value ? 1 : 0, 1);
    if (value)
      put_text(bytes, *value);
  }
  return bytes;
}

std::vector<std::optional<std::string>> decode_values(std::string_view bytes, size_t count) {
  Reader reader(bytes);
  std::vector<std::optional<std::string>> values(count);
  for (auto& value : values) {
    const uint64_t is_there = reader.number(1);
    if (is_there > 1)
      malformed("a value that is neither there nor absent");
    if (is_there == 1)
      value = reader.text();
  }
  reader.end();
  return values;
}

StoreReply decode_reply(std::string_view bytes) {
  Reader reader(bytes);
  StoreReply reply;
  const uint64_t status = reader.number(1);
  if (status > 1 + sent_number(ErrorCode::internal))
    malformed("an unknown status");
  reply.ok = status == 0;
  if (!reply.ok)
    reply.code = static_cast<ErrorCode>(status - 1);
  reply.text = reader.text();
  reply.number = reader.signed_number();
  reader.end();
  return reply;
}

}  // namespace muster
