// How it works: a wait asks due() again and again, which says yes after a while and then at
// doubling intervals. The last eighth of the limit is silent, as the error itself comes soon. Where
// warnings go, and who has more to say, are functions that the program sets once.
#include "muster/base/late_ranks.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>

#include "muster/base/strings.h"
#include "muster/base/units.h"

namespace muster {

namespace {

constexpr std::chrono::seconds kFirstWord{20};

// A program that has set nothing gets its warnings here.
void print_warning(const std::string& text) {
  std::fputs(cat("[muster] warning: ", text, "\n").c_str(), stderr);
}

std::atomic<void (*)(const std::string&)> g_warn = &print_warning;
std::atomic<const char*> g_setting = nullptr;
std::atomic<LateDetail> g_detail = nullptr;

}  // namespace

LateRanks::LateRanks(milliseconds limit)
    : limit_(limit), began_(Clock::now()), next_(std::min<milliseconds>(kFirstWord, limit / 4)) {}

// Each time it is due it doubles the time until the next one.
bool LateRanks::due() {
  const auto waited = Clock::now() - began_;
  if (waited < next_ || waited >= limit_ - limit_ / 8)
    return false;
  next_ = std::max(next_, milliseconds(1)) * 2;
  ++words_;
  return true;
}

void LateRanks::tell(const std::string& operation,
                     const Ints& came,
                     const Ints& late,
                     const char* advice) const {
  const auto waited = Clock::now() - began_;
  const auto left = std::max<Clock::duration>(limit_ - waited, Clock::duration::zero());
  const char* setting = g_setting;
  warn(cat(operation,
           ": waited ",
           format_duration(waited),
           " for rank(s) ",
           join(late, ", "),
           "; rank(s) ",
           join(came, ", "),
           " have come; ",
           advice,
           "; it fails in ",
           format_duration(left),
           setting == nullptr ? "" : cat(" (", setting, ")")));
  const LateDetail detail = g_detail;
  if (detail != nullptr && words_ == 1)
    detail(late, came);
}

void set_late_detail(LateDetail tell) {
  g_detail = tell;
}

void warn(const std::string& text) {
  g_warn.load()(text);
}

void set_warning(void (*warn)(const std::string& text), const char* setting) {
  g_warn = warn;
  g_setting = setting;
}

}  // namespace muster
