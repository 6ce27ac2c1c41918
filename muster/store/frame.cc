#include "muster/store/frame.h"
#include "muster/store/bytes.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include "muster/base/error.h"
#include "muster/base/strings.h"
#include "muster/store/handshake.h"

namespace muster {

namespace {

size_t read_size(std::string_view from) {
  return read_number(from, kFrameSizeBytes);
}

}  // namespace

void FrameMac::FreeContext::operator()(void* context) const {
  EVP_MAC_CTX_free(static_cast<EVP_MAC_CTX*>(context));
}

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

void FrameMac::next(std::string_view size_and_body, char* mac) {
  auto* context = static_cast<EVP_MAC_CTX*>(context_.get());
  unsigned char number[8];
  for (unsigned i = 0; i < 8; ++i)
    number[i] = static_cast<unsigned char>(number_ >> (8 * i) & 0xff);
  ++number_;
  size_t size = 0;
  // Without a key, init starts again with the old one: no new context, no new key schedule.
  if (EVP_MAC_init(context, nullptr, 0, nullptr) != 1 ||
      EVP_MAC_update(context, number, sizeof(number)) != 1 ||
      EVP_MAC_update(context, unsigned_bytes(size_and_body), size_and_body.size()) != 1 ||
      EVP_MAC_final(context, reinterpret_cast<unsigned char*>(mac), &size, kFrameMacBytes) != 1) {
    throw Error(ErrorCode::internal, "store frame: HMAC-SHA256 failed");
  }
}

void FrameWriter::close(std::string& out, size_t start) {
  const size_t size = out.size() - start - kFrameSizeBytes;
  if (size > kMaxFrameBody)
    throw Error(ErrorCode::internal, cat("store frame: body of ", size, " bytes"));
  for (unsigned i = 0; i < kFrameSizeBytes; ++i)
    out[start + i] = static_cast<char>(size >> (8 * i) & 0xff);
  char mac[kFrameMacBytes];
  mac_.next(std::string_view(out).substr(start), mac);
  out.append(mac, sizeof(mac));
}

std::optional<std::string_view> FrameReader::take(std::string_view& bytes) {
  if (bytes.size() < kFrameSizeBytes)
    return std::nullopt;
  const size_t size = read_size(bytes);
  if (size > kMaxFrameBody) {
    throw Error(
        ErrorCode::io,
        cat("store frame: expected at most ", kMaxFrameBody, " bytes, got a size of ", size));
  }
  if (bytes.size() < kFrameSizeBytes + size + kFrameMacBytes)
    return std::nullopt;
  char mac[kFrameMacBytes];
  mac_.next(bytes.substr(0, kFrameSizeBytes + size), mac);
  if (!equal_in_constant_time({mac, sizeof(mac)},
                              bytes.substr(kFrameSizeBytes + size, kFrameMacBytes)))
    throw Error(ErrorCode::io,
                "store frame: expected the peer's next frame, got one changed or repeated");
  const std::string_view body = bytes.substr(kFrameSizeBytes, size);
  bytes.remove_prefix(kFrameSizeBytes + size + kFrameMacBytes);
  return body;
}

size_t FrameReader::lacking(std::string_view bytes) {
  if (bytes.size() < kFrameSizeBytes)
    return kFrameSizeBytes - bytes.size();
  const size_t whole = kFrameSizeBytes + read_size(bytes) + kFrameMacBytes;
  return whole > bytes.size() ? whole - bytes.size() : 0;
}

}  // namespace muster
