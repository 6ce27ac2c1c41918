// Frames of an authenticated connection: `size (4 bytes, little endian) ‖ body ‖ MAC (32)`. The MAC
// covers the frame's number in its direction, its size and its body, so a frame that was changed,
// left out, repeated or sent back does not open. Called by tcp_server.cc and tcp_store.cc; knows
// nothing of what a body means.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "muster/store/store.h"

namespace muster {

inline constexpr size_t kFrameMacBytes = 32;
inline constexpr size_t kFrameSizeBytes = 4;
// The largest request is a compare_set: a key and two values.
inline constexpr size_t kMaxFrameBody = 2 * kMaxValueBytes + kMaxKeyBytes + 256;

// MACs of the frames of one direction, in order. One OpenSSL context serves them all.
class FrameMac {
 public:
  explicit FrameMac(std::string_view key);
  // The MAC of the next frame, of kFrameMacBytes; valid until the next call.
  std::string_view next(std::string_view size_and_body);

 private:
  struct FreeContext {
    void operator()(void* context) const;
  };
  std::unique_ptr<void, FreeContext> context_;  // EVP_MAC_CTX
  uint64_t number_ = 0;
  std::string mac_ = std::string(kFrameMacBytes, '\0');
};

class FrameWriter {
 public:
  explicit FrameWriter(std::string_view session_key) : mac_(session_key) {}

  // Appends a frame to `out`; `fill(out)` appends its body.
  template <class Fill>
  void append(std::string& out, const Fill& fill) {
    const size_t start = out.size();
    out.append(kFrameSizeBytes, '\0');
    fill(out);
    close(out, start);
  }

 private:
  void close(std::string& out, size_t start);
  FrameMac mac_;
};

class FrameReader {
 public:
  explicit FrameReader(std::string_view session_key) : mac_(session_key) {}

  // Takes a frame from the front of `bytes` and returns its body, a part of them; nothing while it
  // is not whole. Throws: io when the frame is too large, or not the sender's next one.
  std::optional<std::string_view> take(std::string_view& bytes);

  // How many bytes more than `bytes` the frame at their front needs, as far as is known.
  static size_t lacking(std::string_view bytes);

 private:
  FrameMac mac_;
};

}  // namespace muster
