// What the server does about strangers, breakers and limits.
#include "muster/store/tcp_server.h"

#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "muster/store/open_store.h"
#include "tests/store/support.h"

namespace muster {
namespace {

using namespace store_test;
using testing::HasSubstr;
using Operation = StoreRequest::Operation;

const StoreRequest kAddOne{.operation = Operation::add, .keys = {"n"}, .number = 1};

class TcpServerTest : public testing::Test {
 protected:
  void start(TcpServerOptions options = {}) {
    options.secret = secret_;
    server_.emplace(std::move(options));
    endpoint_ = server_->endpoint();
  }
  std::shared_ptr<Store> open(std::chrono::milliseconds timeout = kLong) const {
    return open_store(to_string(endpoint_), secret_, timeout);
  }
  // The server lives, answers, and its counter "n" is as told.
  void expect_alive(int64_t n = 0) const { EXPECT_EQ(open()->add("n", 0), n); }

  Secret secret_ = Secret::make();
  std::optional<TcpServer> server_;
  Endpoint endpoint_;
};

TEST_F(TcpServerTest, TakesAFreePortOnLoopbackAndListensNowhereElse) {
  start();
  EXPECT_EQ(endpoint_.host, "127.0.0.1");
  EXPECT_GT(endpoint_.port, 0);
  const Endpoint other{.host = "127.0.0.2", .port = endpoint_.port};
  error_of(ErrorCode::unavailable, [&] { connect_to(other, IfRefused::fail, Deadline(kLong)); });
}

TEST_F(TcpServerTest, APortInUseIsNamed) {
  start();
  EXPECT_THAT(error_of(ErrorCode::unavailable,
                       [&] { TcpServer({.endpoint = endpoint_, .secret = secret_}); }),
              HasSubstr(to_string(endpoint_)));
  const Endpoint foreign{.host = "192.0.2.1", .port = 1};  // an address that no machine has
  EXPECT_THAT(error_of(ErrorCode::unavailable,
                       [&] { TcpServer({.endpoint = foreign, .secret = secret_}); }),
              HasSubstr("192.0.2.1:1"));
}

TEST_F(TcpServerTest, ServesWithoutASecretOnlyWhenTold) {
  EXPECT_THAT(error_of(ErrorCode::failed_precondition, [] { TcpServer(); }),
              HasSubstr("--no-auth"));
  error_of(ErrorCode::invalid_argument, [&] { TcpServer({.secret = secret_, .no_auth = true}); });
  const TcpServer open_server({.no_auth = true});
  TcpStore store({.endpoint = open_server.endpoint()});
  EXPECT_EQ(store.add("n", 1), 1);
  // A client that has a secret does not settle for a server without.
  error_of(ErrorCode::invalid_argument,
           [&] { TcpStore({.endpoint = open_server.endpoint(), .secret = secret_}); });
}

TEST_F(TcpServerTest, AnswersAClientThatSpeaksByHand) {
  start();
  RawClient client(endpoint_);
  ASSERT_TRUE(client.authenticate(secret_));
  client.send(client.frame(kAddOne));
  const std::string bytes = client.receive_frame();
  std::string_view rest = bytes;
  EXPECT_EQ(decode_reply(*client.reader->take(rest)).number, 1);
}

TEST_F(TcpServerTest, DropsAReplayedFrame) {
  start();
  RawClient client(endpoint_);
  ASSERT_TRUE(client.authenticate(secret_));
  const std::string frame = client.frame(kAddOne);
  client.send(frame);
  client.receive_frame();
  client.send(frame);
  EXPECT_TRUE(client.closed());
  expect_alive(1);
  EXPECT_EQ(server_->stats().broken, 1U);
}

TEST_F(TcpServerTest, DropsATamperedFrame) {
  start();
  for (const size_t byte : {kFrameSizeBytes, kFrameSizeBytes + 9, size_t{0}}) {
    RawClient client(endpoint_);
    ASSERT_TRUE(client.authenticate(secret_));
    std::string frame = client.frame(kAddOne);
    // A smaller size ends the frame early, on bytes that are no MAC.
    frame[byte] = static_cast<char>(byte == 0 ? 1 : frame[byte] ^ 1);
    client.send(frame);
    EXPECT_TRUE(client.closed());
  }
  expect_alive(0);
}

TEST_F(TcpServerTest, DropsItsOwnFrameSentBackAndOnesOfAnotherSession) {
  start();
  RawClient client(endpoint_), other(endpoint_);
  ASSERT_TRUE(client.authenticate(secret_));
  ASSERT_TRUE(other.authenticate(secret_));
  other.send(client.frame(kAddOne));
  EXPECT_TRUE(other.closed());
  RawClient echo(endpoint_);
  ASSERT_TRUE(echo.authenticate(secret_));
  echo.send(echo.frame(kAddOne));
  echo.send(echo.receive_frame());
  EXPECT_TRUE(echo.closed());
  expect_alive(1);
}

TEST_F(TcpServerTest, DropsAuthenticFramesThatMakeNoSense) {
  start();
  const auto broken_by = [&](const auto& break_it) {
    RawClient client(endpoint_);
    ASSERT_TRUE(client.authenticate(secret_));
    break_it(client);
    EXPECT_TRUE(client.closed());
  };
  broken_by([](RawClient& client) { client.send("\xff\xff\xff\xff"); });
  broken_by([](RawClient& client) {
    client.send(client.frame({.operation = Operation{77}, .keys = {"k"}}));
  });
  broken_by([](RawClient& client) {
    std::string bytes;
    client.writer->append(bytes, [](std::string& out) { out += "nonsense"; });
    client.send(bytes);
  });
  // One that waits and speaks nevertheless.
  broken_by([](RawClient& client) {
    client.send(client.frame({.operation = Operation::get, .keys = {"k"}, .number = 60'000}) +
                client.frame(kAddOne));
  });
  expect_alive(0);
  EXPECT_EQ(server_->stats().broken, 4U);
}

TEST_F(TcpServerTest, ReadsNoMoreThan64BytesOfAStranger) {
  start();
  constexpr size_t kStrangers = 50;
  const std::string garbage(size_t{1} << 20, 'G');
  for (size_t i = 0; i < kStrangers; ++i) {
    RawClient stranger(endpoint_);
    stranger.send(garbage);
    EXPECT_TRUE(stranger.closed());
  }
  expect_alive();
  EXPECT_EQ(server_->stats().dropped, kStrangers);
  EXPECT_EQ(server_->stats().stranger_bytes, kStrangers * 64);
}

TEST_F(TcpServerTest, SurvivesAPortScan) {
  start();
  for (int i = 0; i < 100; ++i)
    RawClient{endpoint_};
  for (const std::string probe : {"GET / HTTP/1.0\r\n\r\n", "\n", "\x16\x03\x01"})
    RawClient(endpoint_).send(probe);
  expect_alive();
}

TEST_F(TcpServerTest, AProofServesOnce) {
  start();
  // What a listener heard of one connection does not open another: the server's nonce is new.
  RawClient honest(endpoint_);
  const std::string greeting = honest.receive(kGreetingBytes);
  const std::string nonce = make_nonce();
  const std::string address = "127.0.0.1:" + std::to_string(endpoint_.port);
  const std::string proof =
      nonce + make_proof(Side::client,
                         {secret_,
                          "",
                          address,
                          nonce,
                          std::string_view(greeting).substr(kGreetingWelcome.size())});
  RawClient thief(endpoint_);
  thief.receive(kGreetingBytes);
  thief.send(proof);
  EXPECT_EQ(thief.receive(kProofBytes), kRefusal);
  EXPECT_TRUE(thief.closed());
  honest.send(proof);
  EXPECT_NE(honest.receive(kProofBytes), kRefusal);
}

TEST_F(TcpServerTest, DropsASlowStrangerAtItsDeadline) {
  start({.handshake_timeout = std::chrono::milliseconds(50)});
  RawClient silent(endpoint_), slow(endpoint_);
  slow.send("only some");
  EXPECT_TRUE(silent.closed());
  EXPECT_TRUE(slow.closed());
  EXPECT_EQ(server_->stats().dropped, 2U);
  expect_alive();  // this one may be slow too, and ask again
}

TEST_F(TcpServerTest, DropsTheOldestOfACrowdOfStrangers) {
  start({.max_strangers = 3});
  std::vector<std::unique_ptr<RawClient>> crowd;
  for (int i = 0; i < 4; ++i) {
    crowd.push_back(std::make_unique<RawClient>(endpoint_));
    crowd.back()->receive(kGreetingBytes);
  }
  RawClient honest(endpoint_);
  EXPECT_TRUE(honest.authenticate(secret_));
  EXPECT_TRUE(crowd[0]->closed());
  EXPECT_TRUE(crowd[1]->closed());
  EXPECT_EQ(server_->stats().dropped, 2U);
}

TEST_F(TcpServerTest, AWaiterThatDiesIsForgotten) {
  start();
  {
    RawClient client(endpoint_);
    ASSERT_TRUE(client.authenticate(secret_));
    client.send(client.frame({.operation = Operation::get, .keys = {"n"}, .number = 60'000}));
  }
  const auto store = open();
  EXPECT_EQ(store->add("n", 1), 1);
  expect_alive(1);
}

TEST_F(TcpServerTest, StopsWhileClientsWait) {
  start();
  RawClient client(endpoint_);
  ASSERT_TRUE(client.authenticate(secret_));
  client.send(client.frame({.operation = Operation::get, .keys = {"n"}, .number = 60'000}));
  server_.reset();
  EXPECT_TRUE(client.closed());
}

TEST_F(TcpServerTest, AUnixSocketIsPrivateAndItsLeftoverIsReplaced) {
  const TempDir dir;
  const Endpoint endpoint = parse_endpoint("unix:" + dir.file("socket"));
  {
    // Somebody who was killed: a socket file to which nobody listens.
    Endpoint leftover = endpoint;
    listen_on(leftover, Deadline(kLong)).reset();
  }
  start({.endpoint = endpoint});
  struct stat info{};
  ASSERT_EQ(::stat(endpoint.path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600U);
  expect_alive();
  EXPECT_THAT(error_of(ErrorCode::unavailable,
                       [&] { TcpServer({.endpoint = endpoint, .secret = secret_}); }),
              HasSubstr(endpoint.path));
  expect_alive();
  server_.reset();
  EXPECT_NE(::stat(endpoint.path.c_str(), &info), 0);
}

size_t num_descriptors() {
  size_t count = 0;
  DIR* dir = ::opendir("/proc/self/fd");
  while (::readdir(dir) != nullptr)
    ++count;
  ::closedir(dir);
  return count;
}

constexpr size_t kRoom = 12;
constexpr auto kAWhile =
    std::chrono::seconds(5);  // more than a client needs that there is room for

// A server whose process has room for few more descriptors than it needs itself.
void serve_in_little_room(const Secret& secret, const ChildProcess::Say& say) {
  const rlimit limit{num_descriptors() + kRoom, num_descriptors() + kRoom};
  ::setrlimit(RLIMIT_NOFILE, &limit);
  const TcpServer server({.secret = secret});
  say(to_string(server.endpoint()));
  wait_to_be_killed();
}

TEST_F(TcpServerTest, StrangersThatHoldAllConnectionsLockNobodyOut) {
  start();
  std::vector<std::unique_ptr<RawClient>> crowd;
  for (int i = 0; i < 200; ++i)
    crowd.push_back(std::make_unique<RawClient>(endpoint_));
  expect_alive();
  EXPECT_GE(server_->stats().dropped, 136U) << "64 at once";
}

TEST_F(TcpServerTest, StrangersThatHoldAllDescriptorsLockNobodyOut) {
  ChildProcess child([&](const auto& say) { serve_in_little_room(secret_, say); });
  endpoint_ = parse_endpoint(child.hear());
  std::vector<std::unique_ptr<RawClient>> crowd;
  for (size_t i = 0; i < 2 * kRoom; ++i)
    crowd.push_back(std::make_unique<RawClient>(endpoint_));
  EXPECT_EQ(open()->add("n", 1), 1);
}

TEST_F(TcpServerTest, AtTheDescriptorLimitOneClientIsTurnedAwayAndTheOthersLive) {
  ChildProcess child([&](const auto& say) { serve_in_little_room(secret_, say); });
  endpoint_ = parse_endpoint(child.hear());
  std::vector<std::shared_ptr<Store>> inside;
  std::string refusal;
  while (refusal.empty() && inside.size() <= kRoom) {
    try {
      inside.push_back(open(kAWhile));
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::unavailable);
      refusal = error.message();
    }
  }
  EXPECT_THAT(refusal, HasSubstr("descriptor"));
  ASSERT_GE(inside.size(), 2U);
  error_of(ErrorCode::unavailable, [&] { open(kAWhile); });
  for (const auto& store : inside)
    store->add("n", 1);
  const auto expected = static_cast<int64_t>(inside.size());
  inside.pop_back();
  EXPECT_EQ(open()->add("n", 0), expected) << "who asked again while there was no room";
}

}  // namespace
}  // namespace muster
