#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "muster/base/strings.h"
#include "muster/trace/breakdown.h"
#include "muster/trace/compare_activity.h"
#include "muster/trace/late_rank.h"
#include "muster/trace/read_activity.h"
#include "tests/fuzz/fuzz_targets.h"

namespace muster {

namespace {

void check_text(const std::string& text, size_t most) {
  if (text.size() > most || printable(text) != text)
    std::abort();
}

void check_view(const ActivityView& view) {
  check_text(view.host, sizeof(ActivityHeader::host));
  check_text(view.device, sizeof(ActivityHeader::device));
  check_text(view.libtorch, sizeof(ActivityHeader::libtorch));
  check_text(view.backend, sizeof(ActivityHeader::backend));
  check_text(view.device_name, sizeof(ActivityHeader::device_name));
  if (view.rank < 0 || view.rank >= view.world_size || view.calls.size() > kActivityCalls ||
      view.threads.size() > kActivityThreads)
    std::abort();
  for (const ThreadView& thread : view.threads) {
    if (thread.spans.empty() || thread.spans.size() > kActivityDepth || thread.deeper < 0)
      std::abort();
    for (const SpanView& span : thread.spans)
      check_text(span.name, sizeof(ActivitySpan::name));
  }
  for (size_t i = 0; i < view.calls.size(); ++i) {
    if (i > 0 && view.calls[i].number <= view.calls[i - 1].number)
      std::abort();
    check_text(view.calls[i].text(), 200);
  }
  view.totals_at(view.opened_ns);
  check_text(describe_rank(view, ProcessState::unknown, view.opened_ns), 2000);
  ActivityView other = view;
  if (!other.calls.empty())
    other.calls.pop_back();
  for (const Divergence& divergence : compare_activity({view, other}))
    check_text(divergence.text(), 2000);
  if (const auto breakdown = breakdown_of({view, other}, view.opened_ns)) {
    breakdown->lines();
    breakdown->json();
  }
}

}  // namespace

// A file has one length, at which libFuzzer would not arrive: what it gives lies over one that is
// right.
void fuzz_activity(const std::string& text) {
  answer_or_error([&] { check_view(parse_activity(text, "fuzz")); });
  ActivityLayout file = {};
  std::memcpy(file.header.magic, kActivityMagic, sizeof(kActivityMagic));
  file.header.version = kActivityVersion;
  file.header.bytes = sizeof(file);
  file.header.world_size = 2;
  std::string bytes(reinterpret_cast<const char*>(&file), sizeof(file));
  for (size_t at = offsetof(ActivityHeader, rank); !text.empty() && at < bytes.size();
       at += text.size())
    bytes.replace(at, std::min(text.size(), bytes.size() - at), text, 0, bytes.size() - at);
  answer_or_error([&] { check_view(parse_activity(bytes, "fuzz")); });
}

}  // namespace muster
