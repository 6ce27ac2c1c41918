#include "muster/store/handshake.h"

#include <set>

#include "tests/store/support.h"

namespace muster {
namespace {

TEST(Handshake, EveryFactChangesProofsAndNonces) {
  const Secret secret = Secret::from_hex(std::string(64, '1'));
  const Secret other = Secret::from_hex(std::string(64, '2'));
  const Secret none;
  const std::string a(kNonceBytes, 'a'), b(kNonceBytes, 'b');
  std::set<std::string> proofs;
  for (const Secret& key : {secret, other, none}) {
    for (const std::string job : {"", "job"}) {
      for (const std::string address : {"127.0.0.1:1", "unix"}) {
        for (const auto& [mine, theirs] : {std::pair(a, b), std::pair(b, a), std::pair(a, a)}) {
          const HandshakeFacts facts{key, job, address, mine, theirs};
          proofs.insert(make_proof(Side::client, facts));
          proofs.insert(make_proof(Side::server, facts));
        }
      }
    }
  }
  EXPECT_EQ(proofs.size(), 3U * 2 * 2 * 3 * 2);
  EXPECT_NE(make_nonce(), make_nonce());
}

TEST(Handshake, PartsCannotSlideIntoOneAnother) {
  const Secret secret = Secret::from_hex(std::string(64, '1'));
  const std::string nonce(kNonceBytes, 'n');
  EXPECT_NE(make_proof(Side::client, {secret, "ab", "c", nonce, nonce}),
            make_proof(Side::client, {secret, "a", "bc", nonce, nonce}));
}

TEST(Handshake, EachDirectionAndSessionHasItsOwnKey) {
  const Secret secret = Secret::make();
  const std::string a(kNonceBytes, 'a'), b(kNonceBytes, 'b');
  const HandshakeFacts one{secret, "", "unix", a, b}, another{secret, "", "unix", a, a};
  EXPECT_EQ(make_session_key(Side::client, one), make_session_key(Side::client, one));
  EXPECT_NE(make_session_key(Side::client, one), make_session_key(Side::server, one));
  EXPECT_NE(make_session_key(Side::client, one), make_session_key(Side::client, another));
  EXPECT_EQ(make_session_key(Side::client, one).size(), Secret::kBytes);
}

TEST(Handshake, ComparesWholeTexts) {
  EXPECT_TRUE(equal_in_constant_time("abc", "abc"));
  EXPECT_FALSE(equal_in_constant_time("abc", "abd"));
  EXPECT_FALSE(equal_in_constant_time("abc", "abcd"));
}

}  // namespace
}  // namespace muster
