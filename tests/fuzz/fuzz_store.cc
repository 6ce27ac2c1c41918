#include <cstdlib>

#include "muster/store/endpoint.h"
#include "muster/store/file_record.h"
#include "muster/store/frame.h"
#include "muster/store/wire.h"
#include "tests/fuzz/fuzz_targets.h"

namespace muster {

namespace {

// What was read is what writing it gives.
template <class Message>
void check_same(const Message& message, const std::string& text) {
  std::string written;
  encode(message, written);
  if (written != text)
    std::abort();
}

void read_frames(std::string_view bytes) {
  FrameReader reader("key");
  while (reader.take(bytes)) {
  }
  FrameReader::lacking(bytes);
}

void read_records(std::string_view bytes) {
  while (const auto record = take_record(bytes))
    decode_header(record->value);
}

}  // namespace

// What anybody sends to a store's port, and what lies in a store's file.
void fuzz_store(const std::string& text) {
  answer_or_error([&] { check_same(decode_request(text), text); });
  answer_or_error([&] { check_same(decode_reply(text), text); });
  answer_or_error([&] { read_frames(text); });
  answer_or_error([&] { read_records(text); });
  answer_or_error([&] { decode_header(text); });
  answer_or_error([&] { parse_endpoint(text); });
}

}  // namespace muster
