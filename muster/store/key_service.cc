// How it works: a request that waits is listed under the first of its keys that is missing, so that
// a key that is set wakes only those who may go on. A client waits for one thing at a time. Answers
// are gathered for the caller, who sends them: setting one key may answer many clients.
#include "muster/store/key_service.h"

#include "muster/store/store.h"

namespace muster {

namespace {

using Operation = StoreRequest::Operation;

// The other operations are answered at once.
bool may_wait(Operation operation) {
  return operation == Operation::get || operation == Operation::wait;
}

// The reply names the keys that are missing.
StoreReply timed_out(const Table& table, const StoreRequest& request) {
  return {.ok = false, .code = ErrorCode::timeout, .text = table.describe_missing(request.keys)};
}

}  // namespace

// A will is only kept; its entry is appended when the client is lost.
void KeyService::handle(Client client, StoreRequest request, Answers& answers) {
  if (may_wait(request.operation)) {
    begin_wait(client, std::move(request), answers);
    return;
  }
  StoreReply reply;
  if (request.operation == Operation::append_when_lost) {
    last_wills_[client] = std::move(request);
    answers.emplace_back(client, std::move(reply));
    return;
  }
  try {
    reply = answer_now(request, answers);
  } catch (const Error& error) {
    reply = {.ok = false, .code = error.code(), .text = error.message()};
  }
  answers.emplace_back(client, std::move(reply));
}

// Requests that wait, and wills, are answered by handle().
StoreReply KeyService::answer_now(const StoreRequest& request, Answers& answers) {
  StoreReply reply;
  switch (request.operation) {
    case Operation::set:
      store(request.keys[0], request.value, answers);
      break;
    case Operation::add:
      reply.number = table_.sum(request.keys[0], request.number);
      store(request.keys[0], std::to_string(reply.number), answers);
      break;
    case Operation::compare_set: {
      auto comparison = table_.compare(request.keys[0], request.expected, request.value);
      if (comparison.store)
        store(request.keys[0], request.value, answers);
      reply.text = std::move(comparison.result);
      break;
    }
    case Operation::check:
      reply.number = table_.first_missing(request.keys) == request.keys.size() ? 1 : 0;
      break;
    case Operation::remove:
      reply.number = table_.remove(request.keys[0]) ? 1 : 0;
      break;
    case Operation::num_keys:
      reply.number = table_.size();
      break;
    case Operation::append:
      reply.number = append(request, answers);
      break;
    case Operation::values:
      reply.text = encode_values(table_.values(request.keys));
      check_limits("values", "", reply.text);
      break;
    case Operation::get:
    case Operation::wait:
    case Operation::append_when_lost:
      throw Error(ErrorCode::internal, "store server: a waiting request answered as another");
  }
  return reply;
}

// The size comes before the entry: whoever sees the entry finds a size that counts it.
int64_t KeyService::append(const StoreRequest& request, Answers& answers) {
  const auto size = log_size_key(request.keys[0]);
  const int64_t number = table_.sum(size, 1);
  store(size, std::to_string(number), answers);
  store(log_entry_key(request.keys[0], number), request.value, answers);
  return number;
}

// The will of a client whose connection broke is dropped: it may be there still, and will say it
// again.
void KeyService::lose(Client client, Loss loss, Answers& answers) {
  forget(client);
  const auto will = last_wills_.extract(client);
  if (will.empty() || loss == Loss::broken)
    return;
  try {
    append(will.mapped(), answers);
  } catch (const Error&) {
    // Somebody has made the log's size something else than a number: there is no log to append to.
  }
}

// Answers at once where nothing is missing or nobody wants to wait.
void KeyService::begin_wait(Client client, StoreRequest request, Answers& answers) {
  const size_t missing = table_.first_missing(request.keys);
  if (missing == request.keys.size()) {
    answers.emplace_back(client, found(request));
    return;
  }
  const auto timeout = bounded_timeout(milliseconds(request.number));
  if (timeout.count() == 0) {
    answers.emplace_back(client, timed_out(table_, request));
    return;
  }
  const auto deadline = Clock::now() + timeout;
  by_missing_key_[request.keys[missing]].push_back(client);
  deadlines_.emplace(deadline, client);
  waits_.emplace(client, Wait{std::move(request), missing, deadline});
}

// Sets the key, and answers those that have waited for it alone; others wait for their next key.
void KeyService::store(const std::string& key, std::string value, Answers& answers) {
  table_.set(key, std::move(value));
  const auto listed = by_missing_key_.extract(key);
  if (listed.empty())
    return;
  for (const Client client : listed.mapped()) {
    Wait& wait = waits_.at(client);
    const auto& keys = wait.request.keys;
    wait.at = table_.first_missing(keys, wait.at);
    // Keys that were there earlier may have been removed since.
    if (wait.at == keys.size())
      wait.at = table_.first_missing(keys);
    if (wait.at < keys.size()) {
      by_missing_key_[keys[wait.at]].push_back(client);
      continue;
    }
    answers.emplace_back(client, found(wait.request));
    deadlines_.erase({wait.deadline, client});
    waits_.erase(client);
  }
}

// wait has no value to give.
StoreReply KeyService::found(const StoreRequest& request) const {
  StoreReply reply;
  if (request.operation == Operation::get)
    reply.text = *table_.find(request.keys[0]);
  return reply;
}

// The earliest deadline comes first.
void KeyService::expire(TimePoint now, Answers& answers) {
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    const Client client = deadlines_.begin()->second;
    answers.emplace_back(client, timed_out(table_, waits_.at(client).request));
    forget(client);
  }
}

std::optional<TimePoint> KeyService::next_deadline() const {
  return deadlines_.empty() ? std::nullopt : std::optional(deadlines_.begin()->first);
}

// Takes the client off every list.
void KeyService::forget(Client client) {
  const auto found = waits_.find(client);
  if (found == waits_.end())
    return;
  const Wait& wait = found->second;
  const auto listed = by_missing_key_.find(wait.request.keys[wait.at]);
  std::erase(listed->second, client);
  if (listed->second.empty())
    by_missing_key_.erase(listed);
  deadlines_.erase({wait.deadline, client});
  waits_.erase(found);
}

}  // namespace muster
