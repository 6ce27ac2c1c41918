// How it works: both ends count the frames of each direction, and the MAC covers that number, which
// is not sent. One OpenSSL context serves all frames of a direction, with its key schedule.
#include "muster/store/frame.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/store/bytes.h"
#include "muster/store/handshake.h"

namespace muster {

namespace {

// `from` has the bytes of a size at least.
size_t read_size(std::string_view from) {
  return read_number(from, kFrameSizeBytes);
}

}  // namespace

void FrameMac::FreeContext::operator()(void* context) const {
  EVP_MAC_CTX_free(static_cast<EVP_MAC_CTX*>(context));
}

// The context keeps the key, so that it is set up once.
FrameMac::FrameMac(std::string_view key) {
  EVP_MAC* hmac = EVP_MAC_fetch(nullptr, OSSL_MAC_NAME_HMAC, nullptr);
  EVP_MAC_CTX* context = EVP_MAC_CTX_new(hmac);
  EVP_MAC_free(hmac);
  context_.reset(context);
  std::string digest = "SHA256";
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_MAC_PARAM_DIGEST, digest.data(), digest.size()),
      OSSL_PARAM_construct_end()};
  if (context == nullptr || EVP_MAC_init(context, unsigned_bytes(key), key.size(), parameters) != 1)
    throw Error(ErrorCode::internal, "store frame: HMAC-SHA256 cannot be set up");
}

// Without a key, init starts again with the old one.
std::string_view FrameMac::next(std::string_view size_and_body) {
  auto* context = static_cast<EVP_MAC_CTX*>(context_.get());
  std::string number;
  put_number(number, number_++, 8);
  size_t size = 0;
  const bool is_done =
      EVP_MAC_init(context, nullptr, 0, nullptr) == 1 &&
      EVP_MAC_update(context, unsigned_bytes(number), number.size()) == 1 &&
      EVP_MAC_update(context, unsigned_bytes(size_and_body), size_and_body.size()) == 1 &&
      EVP_MAC_final(context, unsigned_bytes(mac_), &size, mac_.size()) == 1;
  if (!is_done)
    throw Error(ErrorCode::internal, "store frame: HMAC-SHA256 failed");
  return mac_;
}

// The size was left open when the frame was begun at `start`.
void FrameWriter::close(std::string& out, size_t start) {
  const size_t size = out.size() - start - kFrameSizeBytes;
  if (size > kMaxFrameBody)
    throw Error(ErrorCode::internal, "store frame: body of ", size, " bytes");
  std::string size_bytes;
  put_number(size_bytes, size, kFrameSizeBytes);
  out.replace(start, kFrameSizeBytes, size_bytes);
  out += mac_.next(std::string_view(out).substr(start));
}

// The size is checked before anybody waits for that many bytes.
std::optional<std::string_view> FrameReader::take(std::string_view& bytes) {
  if (bytes.size() < kFrameSizeBytes)
    return std::nullopt;
  const size_t size = read_size(bytes);
  if (size > kMaxFrameBody)
    throw Error(ErrorCode::io,
                "store frame: expected at most ",
                kMaxFrameBody,
                " bytes, got a size of ",
                size);
  if (bytes.size() < kFrameSizeBytes + size + kFrameMacBytes)
    return std::nullopt;
  const std::string_view mac = mac_.next(bytes.substr(0, kFrameSizeBytes + size));
  if (!equal_in_constant_time(mac, bytes.substr(kFrameSizeBytes + size, kFrameMacBytes)))
    throw Error(ErrorCode::io,
                "store frame: expected the peer's next frame, got one changed or repeated");
  const std::string_view body = bytes.substr(kFrameSizeBytes, size);
  bytes.remove_prefix(kFrameSizeBytes + size + kFrameMacBytes);
  return body;
}

// Until the size is there, only its own bytes are known to be missing.
size_t FrameReader::lacking(std::string_view bytes) {
  if (bytes.size() < kFrameSizeBytes)
    return kFrameSizeBytes - bytes.size();
  const size_t whole = kFrameSizeBytes + read_size(bytes) + kFrameMacBytes;
  return whole > bytes.size() ? whole - bytes.size() : 0;
}

}  // namespace muster
