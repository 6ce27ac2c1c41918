// How it works: proofs and keys are made from a message of parts, each with its length before it.
// The roles differ in the message, so that neither side can send the other's proof back.
#include "muster/store/handshake.h"

#include <openssl/core_names.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/kdf.h>
#include <openssl/params.h>

#include <array>

#include "muster/base/error.h"
#include "muster/base/random_bytes.h"
#include "muster/store/bytes.h"

namespace muster {

namespace {

constexpr std::string_view kProtocol = "muster store 1";
constexpr std::array<char, Secret::kBytes> kNoSecret{};

// A store without a secret has a key of zeros.
std::string_view key_of(const Secret& secret) {
  return secret.empty() ? std::string_view(kNoSecret.data(), kNoSecret.size()) : secret.bytes();
}

// The length comes first, so that no two lists of parts give the same bytes.
void append_part(std::string& out, std::string_view part) {
  put_number(out, part.size(), 4);
  out += part;
}

// OpenSSL's parameters are not const, and it does not write to these.
OSSL_PARAM octets(const char* name, std::string_view value) {
  return OSSL_PARAM_construct_octet_string(name, const_cast<char*>(value.data()), value.size());
}

}  // namespace

// A nonce is used for one connection, so that old proofs prove nothing.
std::string make_nonce() {
  return random_bytes(kNonceBytes);
}

// The address is in it, so that a proof for one server is none for another.
std::string make_proof(Side side, const HandshakeFacts& facts) {
  std::string message;
  append_part(message, kProtocol);
  append_part(message, side == Side::client ? "client" : "server");
  for (const auto part : {facts.job, facts.address, facts.client_nonce, facts.server_nonce})
    append_part(message, part);
  std::string proof(kProofBytes, '\0');
  if (!hmac_sha256(key_of(facts.secret), message, unsigned_bytes(proof)))
    throw Error(ErrorCode::internal, "store handshake: HMAC-SHA256 failed");
  return proof;
}

// Each direction has a key of its own, so that a frame cannot be sent back.
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
  const bool is_derived = context != nullptr &&
                          EVP_KDF_derive(context, unsigned_bytes(key), key.size(), parameters) == 1;
  EVP_KDF_CTX_free(context);
  EVP_KDF_free(hkdf);
  if (!is_derived)
    throw Error(ErrorCode::internal, "store handshake: HKDF-SHA256 failed");
  return key;
}

// The sizes are no secret.
bool equal_in_constant_time(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace muster
