// What the client says when things go wrong, and many of them at once.
#include "muster/store/tcp_store.h"

#include <thread>

#include "muster/store/open_store.h"
#include "tests/store/support.h"

namespace muster {
namespace {

using namespace store_test;
using testing::HasSubstr;
using testing::Not;

constexpr auto kShort = std::chrono::milliseconds(100);  // for what is not to succeed

// A server of something else: accepts one connection, says `words`, and keeps it.
class OtherServer {
 public:
  explicit OtherServer(std::string words) : listener_(listen_on(endpoint_, Deadline(kLong))) {
    thread_ = std::thread([this, words = std::move(words)] {
      pollfd waiting{listener_.get(), POLLIN, 0};
      ::poll(&waiting, 1, -1);
      client_.reset(::accept(listener_.get(), nullptr, nullptr));
      (void)!::send(client_.get(), words.data(), words.size(), MSG_NOSIGNAL);
    });
  }
  ~OtherServer() { thread_.join(); }
  const Endpoint& endpoint() const { return endpoint_; }

 private:
  Endpoint endpoint_;
  Fd listener_, client_;
  std::thread thread_;
};

TEST(TcpStore, AnotherSecretOrJobIsRefusedClearly) {
  const Secret secret = Secret::make();
  const Secret wrong = Secret::make();
  const TcpServer server({.secret = secret, .job = "a"});
  const auto message = [&](TcpStoreOptions options, ErrorCode code = ErrorCode::invalid_argument) {
    options.endpoint = server.endpoint();
    return error_of(code, [&] { TcpStore{options}; });
  };
  EXPECT_THAT(message({.secret = wrong, .job = "a"}),
              testing::AllOf(HasSubstr("secret"),
                             HasSubstr(to_string(server.endpoint())),
                             Not(HasSubstr(secret.hex())),
                             Not(HasSubstr(wrong.hex()))));
  EXPECT_THAT(message({.job = "a"}), HasSubstr("(none)"));
  EXPECT_THAT(message({.secret = secret, .job = "b"}, ErrorCode::failed_precondition),
              testing::AllOf(HasSubstr("to be that of job 'b' (--rdzv-id), got another job's"),
                             Not(HasSubstr("--secret-file"))));
  TcpStore right({.endpoint = server.endpoint(), .secret = secret, .job = "a"});
  EXPECT_EQ(right.num_keys(), 0);
  EXPECT_EQ(server.stats().dropped, 6U) << "each asks again, whether the job is another";
  EXPECT_EQ(server.stats().authenticated, 1U);
}

TEST(TcpStore, AServerThatDoesNotKnowTheSecretIsRefused) {
  // It speaks the protocol, takes any proof, and answers with bytes of its own.
  const OtherServer impostor(std::string(kGreetingWelcome) + std::string(kNonceBytes, 'n') +
                             std::string(kProofBytes, 'p'));
  EXPECT_THAT(error_of(ErrorCode::invalid_argument,
                       [&] { open_store(to_string(impostor.endpoint()), Secret::make(), kLong); }),
              HasSubstr("does not know"));
}

TEST(TcpStore, AnotherProgramOrASilentOneIsNamed) {
  const OtherServer web("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n");
  EXPECT_THAT(error_of(ErrorCode::unavailable,
                       [&] { open_store(to_string(web.endpoint()), Secret::make(), kLong); }),
              testing::AllOf(HasSubstr("another program"), HasSubstr(to_string(web.endpoint()))));
  const OtherServer silent("");
  EXPECT_THAT(error_of(ErrorCode::timeout,
                       [&] { open_store(to_string(silent.endpoint()), Secret::make(), kShort); }),
              HasSubstr(to_string(silent.endpoint())));
}

TEST(TcpStore, AHostThatDoesNotResolveIsNamed) {
  EXPECT_THAT(error_of(ErrorCode::unavailable,
                       [] {
                         open_store("tcp://no-such-host.invalid:1",
                                    Secret::make(),
                                    std::chrono::seconds(5));
                       }),
              HasSubstr("no-such-host.invalid"));
}

TEST(TcpStore, WaitsForAServerThatIsStarting) {
  const Secret secret = Secret::make();
  const TempDir dir;
  const std::string endpoint = "unix:" + dir.file("socket");
  std::thread client([&] { EXPECT_EQ(open_store(endpoint, secret, kLong)->add("n", 1), 1); });
  const TcpServer server({.endpoint = parse_endpoint(endpoint), .secret = secret});
  client.join();
}

TEST(TcpStore, AServerThatHasGoneIsNamed) {
  const Secret secret = Secret::make();
  std::optional<TcpServer> server(std::in_place, TcpServerOptions{.secret = secret});
  const std::string endpoint = to_string(server->endpoint());
  const auto store = open_store(endpoint, secret, kLong);
  std::thread waiter([&] {
    store->set("waiting", "");
    EXPECT_THAT(error_of(ErrorCode::unavailable, [&] { store->get("never", kLong); }),
                HasSubstr(endpoint));
  });
  store->get("waiting", kLong);
  server.reset();
  waiter.join();
  for (int i = 0; i < 3; ++i)
    EXPECT_THAT(error_of(ErrorCode::unavailable, [&] { store->add("n", 1); }), HasSubstr(endpoint));
}

TEST(TcpStore, AServerThatIsKilledIsNamedAndOneThatIsStoppedTimesOut) {
  const Secret secret = Secret::make();
  ChildProcess child([&](const auto& say) {
    const TcpServer server({.secret = secret});
    say(to_string(server.endpoint()));
    wait_to_be_killed();
  });
  const Endpoint endpoint = parse_endpoint(child.hear());
  TcpStore store({.endpoint = endpoint, .secret = secret, .timeout = std::chrono::seconds(5)});
  store.set("k", "v");
  ::kill(child.pid(), SIGSTOP);
  int status = 0;
  ::waitpid(child.pid(), &status, WUNTRACED);
  EXPECT_THAT(error_of(ErrorCode::timeout, [&] { store.add("n", 1); }),
              HasSubstr(to_string(endpoint)));
  ::kill(child.pid(), SIGCONT);
  EXPECT_EQ(store.get("k", kLong), "v");  // the broken connection was not used again
  child.kill();
  error_of(ErrorCode::unavailable, [&] { store.add("n", 1); });
}

TEST(TcpStore, CarriesValuesUpToTheLimit) {
  const Secret secret = Secret::make();
  const TcpServer server({.secret = secret});
  const auto store = open_store(to_string(server.endpoint()), secret, kLong);
  std::string value(kMaxValueBytes, 'v');
  value.back() = 'e';
  store->set("k", value);
  EXPECT_TRUE(store->get("k", kLong) == value);
}

TEST(TcpStore, ServesSixtyFourClientsAtOnce) {
  constexpr int kThreads = 64;
  constexpr int kAdds = 200;
  const Secret secret = Secret::make();
  const TcpServer server({.secret = secret});
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      const auto store = open_store(to_string(server.endpoint()), secret, kLong);
      for (int k = 0; k < kAdds; ++k)
        store->add("n", 1);
      store->add("finished", 1);
    });
  }
  for (auto& thread : threads)
    thread.join();
  const auto store = open_store(to_string(server.endpoint()), secret, kLong);
  EXPECT_EQ(store->add("n", 0), kThreads * kAdds);
  EXPECT_EQ(server.stats().authenticated, kThreads + 1U);
}

}  // namespace
}  // namespace muster
