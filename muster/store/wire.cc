// How it works: a message is numbers and texts one after the other. Each text has its size before
// it, and a list of texts its count. A reader checks every size before it uses it, and refuses what
// is left at the end.
#include "muster/store/wire.h"

#include <utility>

#include "muster/base/contains.h"
#include "muster/base/lookup.h"
#include "muster/base/mapped.h"
#include "muster/base/to_underlying.h"
#include "muster/store/bytes.h"
#include "muster/store/store.h"

namespace muster {

namespace {

using Operation = StoreRequest::Operation;

constexpr std::pair<Operation, const char*> kOperationNames[] = {
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

constexpr unsigned kSizeBytes = 4;  // that a text's size takes, or a list's count

// The error names no next step: whoever sends such a message is dropped.
[[noreturn]] void malformed(const char* what) {
  throw Error(ErrorCode::io, std::string("store message: expected a well-formed one, got ") + what);
}

void put_text(std::string& out, std::string_view text) {
  put_number(out, text.size(), kSizeBytes);
  out += text;
}

// It takes a message's parts in their order. Throws: io when they are not there.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}

  uint64_t number(unsigned size) { return read_number(take(size), size); }
  int64_t signed_number() { return static_cast<int64_t>(number(8)); }
  std::string text() { return std::string(take(number(kSizeBytes))); }
  Strings texts() {
    const uint64_t count = number(kSizeBytes);
    // Each text has a size at least: memory for a count beyond that would be wasted.
    if (count > rest_.size() / kSizeBytes)
      malformed("fewer bytes than it says");
    return mapped_indices(count, [this](uint64_t) { return text(); });
  }
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

void check_num_keys(const StoreRequest& request) {
  if (is_one_of(request.operation, Operation::check, Operation::wait, Operation::values))
    return;  // any number
  const size_t expected = request.operation == Operation::num_keys ? 0 : 1;
  if (request.keys.size() != expected)
    malformed("another number of keys");
}

void check_sizes(const StoreRequest& request) {
  const auto is_too_long = [](const std::string& key) {
    return key.size() > kMaxKeyBytes;
  };
  if (any_of(request.keys, is_too_long))
    malformed("a key beyond the limit");
  if (request.value.size() > kMaxValueBytes || request.expected.size() > kMaxValueBytes)
    malformed("a value beyond the limit");
}

}  // namespace

const char* to_string(Operation operation) {
  return lookup(kOperationNames, operation, "unknown");
}

// A request is sent with all of its fields, also those that its operation does not use.
void encode(const StoreRequest& request, std::string& out) {
  put_number(out, to_underlying(request.operation), 1);
  put_number(out, request.keys.size(), kSizeBytes);
  for (const auto& key : request.keys)
    put_text(out, key);
  put_text(out, request.value);
  put_text(out, request.expected);
  put_number(out, request.number, 8);
}

// The status is 0, or 1 + the error's code.
void encode(const StoreReply& reply, std::string& out) {
  put_number(out, reply.ok ? 0 : 1 + to_underlying(reply.code), 1);
  put_text(out, reply.text);
  put_number(out, reply.number, 8);
}

StoreRequest decode_request(std::string_view bytes) {
  Reader reader(bytes);
  StoreRequest request;
  request.operation = static_cast<Operation>(reader.number(1));
  if (lookup(kOperationNames, request.operation, nullptr) == nullptr)
    malformed("an unknown operation");
  request.keys = reader.texts();
  request.value = reader.text();
  request.expected = reader.text();
  request.number = reader.signed_number();
  reader.end();
  check_num_keys(request);
  check_sizes(request);
  return request;
}

StoreReply decode_reply(std::string_view bytes) {
  Reader reader(bytes);
  StoreReply reply;
  const uint64_t status = reader.number(1);
  if (status > 1 + to_underlying(ErrorCode::internal))
    malformed("an unknown status");
  reply.ok = status == 0;
  if (!reply.ok)
    reply.code = static_cast<ErrorCode>(status - 1);
  reply.text = reader.text();
  reply.number = reader.signed_number();
  reader.end();
  return reply;
}

// A byte before each value says whether there is one.
std::string encode_values(const StoreValues& values) {
  std::string bytes;
  for (const auto& value : values) {
    put_number(bytes, value ? 1 : 0, 1);
    if (value)
      put_text(bytes, *value);
  }
  return bytes;
}

StoreValues decode_values(std::string_view bytes, size_t count) {
  Reader reader(bytes);
  StoreValues values(count);
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

}  // namespace muster
