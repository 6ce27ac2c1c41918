#include "muster/store/handshake.h"
#include "muster/store/bytes.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/kdf.h>
#include <openssl/params.h>
#include <openssl/rand.h>

#include <array>

#include "muster/base/error.h"

namespace muster {

namespace {

constexpr std::string_view kProtocol = "muster store 1";
constexpr std::array<char, Secret::kBytes> kNoSecret{};

std::string_view key_of(const Secret& secret) {
  return secret.empty() ? std::string_view(kNoSecret.data(), kNoSecret.size()) : secret.bytes();
}

// Length first, so that no two lists of parts give the same bytes.
void append_part(std::string& out, std::string_view part) {
  put_number(out, part.size(), 4);
  out += part;
}

OSSL_PARAM octets(const char* name, std::string_view value) {
  return OSSL_PARAM_construct_octet_string(name, const_cast<char*>(value.data()), value.size());
}

}  // namespace

std::string make_nonce() {
  std::string nonce(kNonceBytes, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), static_cast<int>(nonce.size())) !=
      1)
    throw Error(ErrorCode::internal, "store handshake: the system gave no random bytes");
  return nonce;
}

std::string make_proof(Side side, const HandshakeFacts& facts) {
  std::string message;
  append_part(message, kProtocol);
  append_part(message, side == Side::client ? "client" : "server");
  for (const auto part : {facts.job, facts.address, facts.client_nonce, facts.server_nonce})
    append_part(message, part);
  const std::string_view key = key_of(facts.secret);
  std::string proof(kProofBytes, '\0');
  unsigned size = 0;
  if (HMAC(EVP_sha256(),
           key.data(),
           static_cast<int>(key.size()),
           unsigned_bytes(message),
           message.size(),
           reinterpret_cast<unsigned char*>(proof.data()),
           &size) == nullptr) {
    throw Error(ErrorCode::internal, "store handshake: HMAC-SHA256 failed");
  }
  return proof;
}

std::string make_session_key(Side sender, const HandshakeFacts& facts) {
  std::string salt(facts.client_nonce);
  salt += facts.server_nonce;
  std::string info;
  append_part(info, kProtocol);
  append_part(info, sender == Side::client ? "client to server" : "server to client");
  std::string digest = "SHA256";
  const OSSL_PARAM parameters[] = {
      OSSL_PARAM_construct_utf8_string(OSSL_KDF_PARAM_DIGEST, digest.data(), digest.size()),
      octets(OSSL_KDF_PARAM_KEY, key_of(facts.secret)),
      octets(OSSL_KDF_PARAM_SALT, salt),
      octets(OSSL_KDF_PARAM_INFO, info),
      OSSL_PARAM_construct_end()};
  EVP_KDF* hkdf = EVP_KDF_fetch(nullptr, OSSL_KDF_NAME_HKDF, nullptr);
  EVP_KDF_CTX* context = EVP_KDF_CTX_new(hkdf);
  std::string key(Secret::kBytes, '\0');
  const bool derived =
      context != nullptr &&
      EVP_KDF_derive(
          context, reinterpret_cast<unsigned char*>(key.data()), key.size(), parameters) == 1;
  EVP_KDF_CTX_free(context);
  EVP_KDF_free(hkdf);
  if (!derived)
    throw Error(ErrorCode::internal, "store handshake: HKDF-SHA256 failed");
  return key;
}

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace muster
