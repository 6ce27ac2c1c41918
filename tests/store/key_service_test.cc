#include "muster/store/key_service.h"

#include "tests/store/support.h"

namespace muster {
namespace {

using Operation = StoreRequest::Operation;

class KeyServiceTest : public testing::Test {
 protected:
  // The clients answered, in order.
  std::vector<KeyService::Client> ask(KeyService::Client client, const StoreRequest& request) {
    answers_.clear();
    service_.handle(client, request, answers_);
    return answered();
  }
  std::vector<KeyService::Client> answered() const {
    std::vector<KeyService::Client> clients;
    for (const auto& [client, reply] : answers_)
      clients.push_back(client);
    return clients;
  }
  StoreRequest wait_for(std::vector<std::string> keys, int64_t ms = 60'000) const {
    return {.operation = Operation::wait, .keys = std::move(keys), .number = ms};
  }
  StoreRequest set(const std::string& key) const {
    return {.operation = Operation::set, .keys = {key}, .value = key};
  }

  using Clients = std::vector<KeyService::Client>;
  KeyService service_;
  KeyService::Answers answers_;
};

TEST_F(KeyServiceTest, AnswersWaitersWhenTheirLastKeyCame) {
  EXPECT_EQ(ask(1, wait_for({"a", "b"})), Clients{});
  EXPECT_EQ(ask(2, {.operation = Operation::get, .keys = {"b"}, .number = 1000}), Clients{});
  EXPECT_TRUE(service_.is_waiting(1));
  EXPECT_EQ(ask(3, set("b")), (Clients{2, 3}));
  EXPECT_EQ(answers_[0].second.text, "b");
  EXPECT_EQ(ask(3, set("a")), (Clients{1, 3}));
  EXPECT_FALSE(service_.is_waiting(1));
  EXPECT_FALSE(service_.next_deadline());
}

TEST_F(KeyServiceTest, AKeyRemovedMeanwhileIsWaitedForAgain) {
  ask(1, wait_for({"a", "b"}));
  ask(2, set("a"));
  ask(2, {.operation = Operation::remove, .keys = {"a"}});
  EXPECT_EQ(ask(2, set("b")), Clients{2});
  EXPECT_EQ(ask(2, set("a")), (Clients{1, 2}));
}

TEST_F(KeyServiceTest, ExpiresInOrderOfDeadlines) {
  ask(1, wait_for({"a"}, 60'000));
  ask(2, wait_for({"a", "b"}, 1));
  answers_.clear();
  service_.expire(Clock::now() + std::chrono::seconds(1), answers_);
  ASSERT_EQ(answered(), Clients{2});
  EXPECT_EQ(answers_[0].second.code, ErrorCode::timeout);
  EXPECT_EQ(answers_[0].second.text, "'a', 'b'");
  EXPECT_TRUE(service_.is_waiting(1));
  EXPECT_EQ(ask(3, set("a")), (Clients{1, 3}));
}

TEST_F(KeyServiceTest, ForgetsWaitersThatHaveGone) {
  ask(1, wait_for({"a"}));
  ask(2, wait_for({"a"}));
  answers_.clear();
  service_.lose(1, KeyService::Loss::ended, answers_);
  service_.lose(7, KeyService::Loss::broken, answers_);
  EXPECT_EQ(answered(), Clients{});
  EXPECT_EQ(ask(3, set("a")), (Clients{2, 3}));
}

TEST_F(KeyServiceTest, SaysForAClientThatHasGoneWhatItWanted) {
  EXPECT_EQ(
      ask(1, {.operation = Operation::append_when_lost, .keys = {"log"}, .value = "1 has gone"}),
      Clients{1});
  ask(2, wait_for({"log/1"}));
  answers_.clear();
  service_.lose(1, KeyService::Loss::ended, answers_);
  EXPECT_EQ(answered(), Clients{2});
  service_.lose(1, KeyService::Loss::ended, answers_);
  EXPECT_EQ(ask(2, {.operation = Operation::append, .keys = {"log"}, .value = "2"}), Clients{2});
  EXPECT_EQ(answers_[0].second.number, 2) << "a last will is carried out once";
}

TEST_F(KeyServiceTest, SaysNothingForAClientWhoseConnectionHasBroken) {
  ask(1, {.operation = Operation::append_when_lost, .keys = {"log"}, .value = "1 has gone"});
  ask(2, wait_for({"log/1"}));
  answers_.clear();
  service_.lose(1, KeyService::Loss::broken, answers_);
  EXPECT_EQ(answered(), Clients{}) << "it may live, and connect again";
  service_.lose(1, KeyService::Loss::ended, answers_);
  EXPECT_EQ(answered(), Clients{}) << "the will went with the connection";
}

TEST_F(KeyServiceTest, AnswersErrorsToTheOneWhoMadeThem) {
  ask(1, {.operation = Operation::set, .keys = {"k"}, .value = "text"});
  EXPECT_EQ(ask(1, {.operation = Operation::add, .keys = {"k"}, .number = 1}), Clients{1});
  EXPECT_EQ(answers_[0].second.code, ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace muster
