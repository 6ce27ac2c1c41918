#include "tests/cuda/fake_communicator.h"

#include <c10/util/Exception.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <utility>

#include "muster/base/blocked_signals.h"
#include "muster/base/env.h"
#include "muster/base/strings.h"

namespace muster::testing {

namespace {

constexpr std::chrono::milliseconds kLookEvery{20};
constexpr std::chrono::seconds kToGiveUp{2};  // of shared memory, at most

// Until shared memory has ended it, well or not.
void wait_below(const c10::intrusive_ptr<c10d::Work>& work, std::chrono::milliseconds limit) {
  try {
    if (work)
      work->wait(limit);
  } catch (const std::exception&) {
    return;  // NCCL would not know
  }
}

// Whether the host knows, so that nothing can happen to the operation any more.
bool is_known_to_be_over(Collective& one) {
  return one.is_over() && host_knows(one.operation().at);
}

}  // namespace

Collective::Collective(Operation operation,
                       uint64_t sequence,
                       c10::intrusive_ptr<c10d::Work> work,
                       std::vector<Spoilable> written)
    : operation_(std::move(operation)),
      sequence_(sequence),
      written_(std::move(written)),
      work_(std::move(work)) {}

c10::intrusive_ptr<c10d::Work> Collective::work() {
  const std::lock_guard lock(mutex_);
  return work_;
}

// The work goes, and with it the memory that it keeps.
bool Collective::is_over() {
  const std::lock_guard lock(mutex_);
  if (over_ || !work_ || !work_->isCompleted() || !work_->isSuccess())
    return over_;
  source_ = work_->sourceRank();
  work_.reset();
  over_ = true;
  return true;
}

void Collective::wait() {
  wait_below(work(), kNoTimeout);
  wait_until(Deadline(Deadline::kFarthest));
}

bool Collective::wait_until(const Deadline& deadline) {
  while (!is_over()) {
    if (deadline.passed())
      return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

void Collective::give_up() {
  wait_below(work(), kToGiveUp);
  for (const Spoilable& memory : written_)
    memory.spoil();
  const std::lock_guard lock(mutex_);
  work_.reset();
  over_ = true;
}

void Collective::fail(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (!error_)
    error_ = std::move(error);
}

std::exception_ptr Collective::error() {
  const std::lock_guard lock(mutex_);
  return error_;
}

int Collective::source() {
  const std::lock_guard lock(mutex_);
  return source_;
}

Communicator::Communicator(const NcclGroup& group)
    : rank_(group.rank),
      name_(group.name),
      stream_(new_stream({c10::kCUDA, static_cast<c10::DeviceIndex>(group.ordinal)})),
      timeout_(group.watchdog_timeout) {}

void Communicator::set_timeout(std::chrono::milliseconds timeout) {
  const std::lock_guard lock(mutex_);
  timeout_ = timeout;
}

void Communicator::expect_alive(const char* operation) {
  const std::lock_guard lock(mutex_);
  TORCH_CHECK_WITH(
      DistBackendError, !ended_, operation, ": NCCL communicator was aborted on rank ", rank_);
}

c10::intrusive_ptr<c10d::Backend> Communicator::connect(const std::function<bool()>& all_have_come,
                                                        const MakeOnHost& make_on_host) {
  const std::lock_guard lock(connecting_);
  expect_alive("connect");
  while (!all_have_come())
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  on_host_ = make_on_host();
  return on_host_;
}

bool Communicator::hangs_in(const char* operation) {
  const auto told = get_env("FAKE_NCCL_HANGS");
  if (!told)
    return false;
  const std::vector<std::string> words = split(*told, ' ');
  if (words.at(0) != cat(rank_) || words.at(1) != operation)
    return false;
  return ++before_hang_ >= parse_int(words.at(2)).value();
}

// Another thread may have ended the communicator while the operation was started.
std::shared_ptr<Collective> Communicator::add(const Operation& operation,
                                              c10::intrusive_ptr<c10d::Work> work,
                                              std::vector<Spoilable> written) {
  std::unique_lock lock(mutex_);
  auto one =
      std::make_shared<Collective>(operation, ++sequence_, std::move(work), std::move(written));
  if (ended_) {
    lock.unlock();
    one->give_up();
    return one;
  }
  under_way_.push_back(one);
  if (!watchdog_.joinable()) {
    const BlockedSignals blocked;  // in the thread, for good
    watchdog_ = std::thread([this] { watch(); });
  }
  return one;
}

Communicator::Collectives Communicator::take_all() {
  const std::lock_guard lock(mutex_);
  ended_ = true;
  return std::exchange(under_way_, {});
}

// The host waits, and no GPU is asked to let it: that is not counted. The watchdog looks on.
void Communicator::shutdown() {
  Collectives all;
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(ended_, true))
      return;
    all = under_way_;
  }
  for (const auto& one : all) {
    one->wait();
    tell_host(one->operation().knows);
  }
  take_all();
  wait_for_graphs();
  stop_watching();
  if (on_host_)
    on_host_->shutdown();
}

void Communicator::wait_for_graphs() const {
  while (graphs_.use_count() > 1)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

void Communicator::abort() {
  const std::lock_guard lock(connecting_);
  std::fprintf(stderr, "nccl: aborted\n");
  give_up_all();
  wait_for_graphs();
}

// A rank that has seen all of its operations end leaves in good order: others may not have.
void Communicator::give_up_all() {
  Collectives all = take_all();
  std::erase_if(all, [](const auto& one) { return is_known_to_be_over(*one); });
  if (!all.empty())
    on_host_->abort();
  for (const auto& one : all) {
    std::fprintf(stderr,
                 "nccl: rank %d of %s gives up %s #%llu, which nobody has waited for\n",
                 rank_,
                 name_.c_str(),
                 one->operation().name,
                 static_cast<unsigned long long>(one->sequence()));
    one->give_up();
  }
}

void Communicator::destroy() {
  {
    const std::lock_guard lock(mutex_);
    if (ended_)
      return;
  }
  std::fprintf(stderr,
               "nccl: rank %d of %s: destroyed without shutdown(), which aborts it\n",
               rank_,
               name_.c_str());
  give_up_all();
  stop_watching();
}

void Communicator::stop_watching() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_one();
  if (watchdog_.joinable())
    watchdog_.join();
}

void Communicator::watch() {
  std::unique_lock lock(mutex_);
  while (!stop_) {
    std::erase_if(under_way_, [](const auto& one) { return is_known_to_be_over(*one); });
    for (const auto& one : under_way_) {
      const bool late = one->seconds() > std::chrono::duration<double>(timeout_).count();
      if (late && !one->error() && !one->is_over())
        end_for_time(*one);
    }
    changed_.wait_for(lock, kLookEvery, [&] { return stop_; });
  }
}

// By default the process ends. A program may want to find the failure in the work instead.
void Communicator::end_for_time(Collective& late) const {
  const std::string what = cat("nccl: rank ",
                               rank_,
                               " of ",
                               name_,
                               ": Watchdog caught collective operation timeout: ",
                               late.operation().name,
                               " #",
                               late.sequence(),
                               " ran for ",
                               static_cast<int64_t>(late.seconds() * 1e3),
                               " milliseconds before timing out, its limit is ",
                               timeout_.count());
  std::fprintf(stderr, "%s\n", what.c_str());
  if (get_env("TORCH_NCCL_ASYNC_ERROR_HANDLING") != "0")
    std::abort();
  late.fail(std::make_exception_ptr(C10_BUILD_ERROR(DistBackendError, what)));
}

}  // namespace muster::testing
