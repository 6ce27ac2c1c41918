// How a store's client and server prove to each other that they hold the job's secret, before
// anything is parsed. Pure functions of bytes, called by tcp_server.cc and tcp_store.cc; they know
// nothing of sockets.
//
//   server → client    greeting (8 bytes), server nonce (32)
//   client → server    client nonce (32), client's proof (32): all that a server reads from a
//                      stranger
//   server → client    server's proof (32), or kRefusal
//
// proof = HMAC-SHA256(secret, protocol ‖ role ‖ job ‖ address ‖ client nonce ‖ server nonce). The
// address is the server's, as each side sees its end of the connection. Session keys, one a
// direction, come from HKDF-SHA256(secret, both nonces). A store without a secret runs the same
// exchange under a key of zeros, so that one that needs the secret and one that does not can never
// be mistaken for each other. A client that is refused asks once more, for kAnyJob: the server
// proves that it knows the secret, if it does, and ends the connection. Then the job is another.
#pragma once

#include <string>
#include <string_view>

#include "muster/store/secret.h"

namespace muster {

inline constexpr size_t kNonceBytes = 32;
inline constexpr size_t kProofBytes = 32;
inline constexpr std::string_view kGreetingWelcome = "muster1\n";
inline constexpr std::string_view kGreetingFull =
    "muster0\n";  // no descriptor left for this client
inline constexpr size_t kGreetingBytes = kGreetingWelcome.size() + kNonceBytes;
inline constexpr size_t kClientProofBytes = kNonceBytes + kProofBytes;
// In the place of the job, which has a name without a zero.
inline constexpr std::string_view kAnyJob("any job\0", 8);
inline constexpr std::string_view kRefusal = "muster refuses: another secret.\n";
static_assert(kClientProofBytes == 64 && kRefusal.size() == kProofBytes);

enum class Side { client, server };

// What both sides must agree on.
struct HandshakeFacts {
  const Secret& secret;
  std::string_view job;
  std::string_view address;
  std::string_view client_nonce;
  std::string_view server_nonce;
};

// 32 fresh random bytes.
std::string make_nonce();

// The bytes by which `side` shows that it knows the secret.
std::string make_proof(Side side, const HandshakeFacts& facts);

// The key of the frames that `sender` sends.
std::string make_session_key(Side sender, const HandshakeFacts& facts);

// Equality in a time that does not depend on where the first difference is.
bool equal_in_constant_time(std::string_view a, std::string_view b);

}  // namespace muster
